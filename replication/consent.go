// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// A primary that is demoted consents that one other datacenter, its successor,
// becomes the primary. The consent has the epoch of the demoted primary. Before
// the demoted primary accepts writes again, or consents to another successor,
// it withdraws the consent with a probe. The successor stores the withdrawal in
// its primary resource, and then confirms it. Both the withdrawal and the
// promotion write that resource, so only one of them succeeds. A primary that
// withdraws a consent begins a new epoch. Therefore a later consent has a
// higher epoch.

// errOutdated is returned by promote.
var errOutdated = errors.New("the consent was withdrawn, or the epoch is superseded")

// consent is the consent that a stream of the primary announces.
type consent struct {
	dc    string         // successor; "" if there is none
	epoch uint64         // of the primary
	proof *pb.EpochProof // only in the successor
}

// checkConsent returns an error unless c is a consent of datacenter former that makes
// this datacenter the primary.
func (p *PrimaryManager) checkConsent(c consent, former string) error {
	next, known := Epoch{c.epoch + 1, p.cfg.DC}, p.KnownEpoch()
	switch {
	case epochOf(c.proof.GetEpoch()) != next || c.proof.GetFormer() != former:
		return errors.New("it has no signature")
	case !next.Supersedes(known):
		return fmt.Errorf("it is of epoch %d, but %v is known: %s may have been restored from an older snapshot",
			c.epoch, known, former)
	}
	return p.verifyProof(c.proof)
}

// withdrawn reports whether the consent of an epoch is withdrawn, according to st.
func withdrawn(st *pb.Primary, epoch uint64) bool { return epoch <= st.GetWithdrawn() }

// confirmsWithdrawn reports whether the error of a probe confirms the withdrawal
// of a consent.
func confirmsWithdrawn(err error, epoch uint64) bool {
	for _, d := range status.Convert(err).Details() {
		if w, ok := d.(*pb.ConsentWithdrawn); ok && w.GetEpoch() >= epoch {
			return true
		}
	}
	return false
}

// confirmWithdrawn returns refusal, the error of checkFollow for a probe. If the
// probe withdraws the consent of an epoch, confirmWithdrawn first stores the
// withdrawal with b, which also writes on followers, and adds ConsentWithdrawn
// to the error. It ignores a withdrawal that the caller of ctx may not make.
func (p *PrimaryManager) confirmWithdrawn(
	ctx context.Context, b resource.Backend, epoch uint64, refusal error,
) error {
	if caller, ok := tlsutil.PeerFromContext(ctx); epoch == 0 || !ok || !p.mayWithdraw(caller.DC, epoch) {
		return refusal
	}
	if err := p.storeWithdrawn(ctx, b, epoch); err != nil {
		return resource.StatusError(err) // the sender repeats the probe
	}
	detailed, err := status.Convert(refusal).WithDetails(&pb.ConsentWithdrawn{Epoch: epoch})
	if err != nil {
		return refusal
	}
	return detailed.Err()
}

// mayWithdraw reports whether datacenter dc was the primary in an epoch, or in a
// later one. Only that datacenter withdraws its consent: otherwise a stolen
// certificate of a third datacenter could prevent each planned move. An epoch that
// dc did not have would also void consents of later epochs.
func (p *PrimaryManager) mayWithdraw(dc string, epoch uint64) bool {
	for _, e := range []Epoch{ownEpoch(p.stored()), p.KnownEpoch()} {
		if e.Datacenter == dc && epoch <= e.Number {
			return true
		}
	}
	return false
}

// storeWithdrawn stores the withdrawal, unless this datacenter is the primary or
// the primary resource changes at the same time.
func (p *PrimaryManager) storeWithdrawn(ctx context.Context, b resource.Backend, epoch uint64) error {
	r, err := b.Read(ctx, resource.Strong, resource.ID(PrimaryType, primaryName))
	if err != nil {
		return err
	}
	st, err := resource.Decode[*pb.Primary](r)
	switch {
	case err != nil:
		return err
	case st.GetDatacenter() == p.cfg.DC:
		return resource.ErrConflict
	case withdrawn(st, epoch):
		return nil
	}
	st = proto.CloneOf(st)
	st.Withdrawn = epoch
	next, err := resource.WithData(r, st)
	if err != nil {
		return err
	}
	_, err = b.Commit(ctx, resource.PutOp(next, r.GetVersion()))
	return err
}
