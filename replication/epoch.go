// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

const (
	// firstEpoch is the number of the epoch of a primary that replaced no other
	// one. Two datacenters may both be in it by mistake, and neither supersedes
	// the other.
	firstEpoch = 1
	// maxEpochStep limits the difference between a reported epoch and the known
	// one. A false report therefore cannot use up the numbers.
	maxEpochStep = 1 << 16
	// storeInterval is the minimum interval between two attempts to prove or to
	// store an epoch. It limits the probes that false reports can cause.
	storeInterval = 500 * time.Millisecond
	// maxReporters limits the datacenters that are probed for one reported epoch, in
	// addition to its own one. A probe may take probeTimeout.
	maxReporters = 2
	// maxReported limits the datacenters whose reports are kept.
	maxReported = 256
	// reportTimeout is the time for which a report is kept. A server that knows a
	// newer epoch reports it in each call, at least every few seconds.
	reportTimeout = 30 * time.Second
)

// Epoch identifies a period in which one datacenter is the primary. The zero
// value means that no epoch is known.
type Epoch struct {
	Number     uint64
	Datacenter string
}

// ParseEpoch is the inverse of Epoch.String.
func ParseEpoch(s string) (Epoch, error) {
	number, dc, _ := strings.Cut(s, ":")
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil || n == 0 || tlsutil.CheckLabel(dc) != nil {
		return Epoch{}, fmt.Errorf("epoch %.80q is not NUMBER:DATACENTER", s)
	}
	return Epoch{n, dc}, nil
}

// String returns NUMBER:DATACENTER, or "" for the zero value.
func (e Epoch) String() string {
	if e == (Epoch{}) {
		return ""
	}
	return strconv.FormatUint(e.Number, 10) + ":" + e.Datacenter
}

// Supersedes reports whether the primary of e replaces the primary of other.
// Two datacenters that take over at the same time use the same number. Then the
// name decides.
func (e Epoch) Supersedes(other Epoch) bool {
	if e.Number != other.Number || e.Datacenter == other.Datacenter {
		return e.Number > other.Number
	}
	return e.Number > firstEpoch && e.Datacenter > other.Datacenter
}

func (e Epoch) proto() *pb.PrimaryEpoch {
	if e == (Epoch{}) {
		return nil
	}
	return &pb.PrimaryEpoch{Number: e.Number, Datacenter: e.Datacenter}
}

func epochOf(p *pb.PrimaryEpoch) Epoch { return Epoch{p.GetNumber(), p.GetDatacenter()} }

// ownEpoch returns the epoch of the primary in st.
func ownEpoch(st *pb.Primary) Epoch {
	if st.GetEpoch() == 0 {
		return Epoch{}
	}
	return Epoch{st.GetEpoch(), st.GetDatacenter()}
}

// highest returns b if b supersedes a, and otherwise a.
func highest(a, b Epoch) Epoch {
	if b.Supersedes(a) {
		return b
	}
	return a
}

// addEpoch records in st that e exists. It reports whether st changed.
func addEpoch(st *pb.Primary, e Epoch) bool {
	switch {
	case !e.Supersedes(highest(ownEpoch(st), epochOf(st.GetSupersededBy()))):
		return false
	case e.Datacenter == st.GetDatacenter():
		st.Epoch, st.SupersededBy = e.Number, nil
	default:
		st.SupersededBy = e.proto()
	}
	return true
}

// KnownEpoch returns the highest epoch that this server knows. It travels in
// every call to another datacenter and in the tags of the WAN pool.
func (p *PrimaryManager) KnownEpoch() Epoch {
	st := p.stored()
	p.mu.Lock()
	defer p.mu.Unlock()
	return highest(highest(ownEpoch(st), epochOf(st.GetSupersededBy())), p.learned)
}

// Epoch returns the number of the epoch of the primary of this datacenter, or 0
// if a server of an older version has stored the primary.
func (p *PrimaryManager) Epoch() uint64 { return p.stored().GetEpoch() }

// SupersededBy returns the known epoch if it supersedes the epoch of the
// primary of this datacenter, and otherwise the zero value.
func (p *PrimaryManager) SupersededBy() Epoch {
	st := p.stored()
	e := p.KnownEpoch()
	if e.Datacenter != st.GetDatacenter() && e.Datacenter != p.cfg.DC && e.Supersedes(ownEpoch(st)) {
		return e
	}
	return Epoch{}
}

// report is the last epoch that a datacenter has reported and that is not proven.
type report struct {
	epoch Epoch
	at    time.Time
}

// Report records an epoch that a server of datacenter from has reported. It is a
// hint, because a certificate of from proves nothing about another datacenter, and
// a stolen one could stop the primary. Run requests the proof. Report reports
// whether the epoch supersedes the known one. It does not block.
func (p *PrimaryManager) Report(e Epoch, from string) (newer bool) {
	if !e.Supersedes(p.KnownEpoch()) {
		return false
	}
	if e.Datacenter == p.cfg.DC {
		return true // only this datacenter knows its own epoch
	}
	p.mu.Lock()
	if _, ok := p.reported[from]; ok || len(p.reported) < maxReported {
		p.reported[from] = report{e, time.Now()}
	}
	p.mu.Unlock()
	p.wakeRun()
	return true
}

// learn records an epoch. proof is nil if the last known primary itself reports a
// higher number.
// If the epoch supersedes the one of this datacenter, Writable fails from now on,
// also after a restart. learn does not block. Run stores the epoch.
func (p *PrimaryManager) learn(e Epoch, proof *pb.EpochProof) {
	known := p.KnownEpoch()
	if !e.Supersedes(known) {
		return
	}
	if e.Number-known.Number > maxEpochStep {
		p.refused.Log(e.Datacenter, slog.LevelError, "refused an epoch of the primary: its number is too high",
			"peer_dc", e.Datacenter, "epoch", e.String())
		return
	}
	p.mu.Lock()
	p.learned = highest(p.learned, e)
	p.proofs = addProof(p.proofs, proof)
	p.mu.Unlock()
	if e.Datacenter != p.PrimaryDC() {
		p.cfg.Logger.Warn("another datacenter became the primary",
			"primary", e.Datacenter, "epoch", e.Number, "former", p.PrimaryDC())
	}
	p.wakeRun()
}

func (p *PrimaryManager) wakeRun() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run requests the proofs of reported epochs, and stores the epochs that are proven,
// until ctx ends. Every server runs it. b is a Backend of the same store that also
// writes on followers.
func (p *PrimaryManager) Run(ctx context.Context, b resource.Backend) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		}
		p.proveReported(ctx)
		for failed := true; failed && ctx.Err() == nil; {
			failed = p.storeLearned(ctx, b) != nil
			backoff.Sleep(ctx, storeInterval, nil)
		}
	}
}

// proveReported probes the datacenters of reported epochs for proofs, all at once:
// some may not respond. If an epoch is not proven then, proveReported probes some of
// those that have reported it. The datacenters learn the known epoch in turn.
func (p *PrimaryManager) proveReported(ctx context.Context) {
	reports := map[Epoch][]string{} // the datacenters that have reported an epoch
	p.mu.Lock()
	maps.DeleteFunc(p.reported, func(_ string, r report) bool { return time.Since(r.at) >= reportTimeout })
	for from, r := range p.reported {
		reports[r.epoch] = append(reports[r.epoch], from)
	}
	p.mu.Unlock()
	var wg sync.WaitGroup
	defer wg.Wait()
	for e, from := range reports {
		if !e.Supersedes(p.KnownEpoch()) {
			continue
		}
		wg.Go(func() {
			var err error
			others := slices.DeleteFunc(from, func(dc string) bool { return dc == e.Datacenter || dc == p.cfg.DC })
			others = others[:min(len(others), maxReporters)] // in another order in each call
			for _, dc := range append([]string{e.Datacenter}, others...) {
				if !p.cfg.Remote.Known(dc) {
					continue
				}
				_, probeErr := p.probe(ctx, dc)
				if !e.Supersedes(p.KnownEpoch()) || ctx.Err() != nil {
					return
				}
				err = errors.Join(err, probeErr)
			}
			p.refused.Log(e.Datacenter, slog.LevelWarn, "a reported epoch of the primary is not proven: "+
				"neither an operator nor the known primary has signed it", "primary", e.Datacenter,
				"epoch", e.Number, "known", p.KnownEpoch().String(), "err", err)
		})
	}
}

// storeLearned stores the learned epoch unless the store has it.
func (p *PrimaryManager) storeLearned(ctx context.Context, b resource.Backend) error {
	r, err := p.cfg.Backend.Read(ctx, resource.Eventual, resource.ID(PrimaryType, primaryName))
	if err != nil {
		return err // the first leader has not created the resource yet
	}
	st, err := resource.Decode[*pb.Primary](r)
	if err != nil {
		return err
	}
	st = proto.CloneOf(st)
	p.mu.Lock()
	e, proofs := p.learned, p.proofs
	p.mu.Unlock()
	if !addEpoch(st, e) {
		return nil
	}
	for _, proof := range proofs {
		st.Proofs = addProof(st.Proofs, proof)
	}
	next, err := resource.WithData(r, st)
	if err != nil {
		return err
	}
	_, err = b.Commit(ctx, resource.PutOp(next, r.GetVersion()))
	return err
}

// learnFromError records the epochs in the error of a Source of dc that refuses a
// follower.
func (p *PrimaryManager) learnFromError(dc string, err error) {
	details := status.Convert(err).Details()
	for _, d := range details {
		if proofs, ok := d.(*pb.EpochProofs); ok {
			p.learnProven(proofs.GetProofs())
		}
	}
	for _, d := range details {
		if e, ok := d.(*pb.PrimaryEpoch); ok && tlsutil.CheckLabel(e.Datacenter) == nil {
			p.Report(epochOf(e), dc)
		}
	}
}

// learnFrom records the epochs in a message of a Source of dc, which this server
// has dialed. Without a proof, it believes only the last known primary about its own
// epoch: the number grows when the primary withdraws a consent.
func (p *PrimaryManager) learnFrom(dc string, m *pb.FollowResponse) {
	p.learnProven(m.GetBegin().GetProofs())
	e := m.GetKnown()
	switch {
	case e == nil || tlsutil.CheckLabel(e.Datacenter) != nil || e.Datacenter == p.cfg.DC:
	case e.Datacenter == dc && dc == p.lastPrimary():
		p.learn(epochOf(e), nil)
	default:
		p.Report(epochOf(e), dc)
	}
}

// errSuperseded is the reason why a superseded primary accepts no writes.
func (p *PrimaryManager) errSuperseded(by Epoch) error {
	return fmt.Errorf("%w: %s is not the primary any more: %[3]s is, since epoch %[4]d; "+
		"set primary_datacenter = %[3]q on all servers of %[2]s, and restart them; "+
		"to make %[2]s the primary again: wanfed operator primary take-over --from %[3]s",
		resource.ErrNoPrimary, p.cfg.DC, by.Datacenter, by.Number)
}

// update changes the primary resource with change.
func (p *PrimaryManager) update(ctx context.Context, change func(st *pb.Primary)) error {
	old, err := p.cfg.Backend.Read(ctx, resource.Eventual, resource.ID(PrimaryType, primaryName))
	if err != nil && !errors.Is(err, resource.ErrNotFound) {
		return err
	}
	st, err := resource.Decode[*pb.Primary](old)
	if err != nil || st == nil {
		st = &pb.Primary{}
	}
	st = proto.CloneOf(st)
	known := p.KnownEpoch()
	p.mu.Lock()
	proofs := p.proofs
	p.mu.Unlock()
	for _, proof := range proofs {
		st.Proofs = addProof(st.Proofs, proof)
	}
	change(st)
	st.SupersededBy = nil // known has it
	addEpoch(st, known)
	r, err := resource.New(PrimaryType, primaryName, st)
	if err == nil && old != nil {
		r, err = resource.WithData(old, st)
	}
	if err != nil {
		return err
	}
	if _, err := p.cfg.Backend.Commit(ctx, resource.PutOp(r, old.GetVersion())); err != nil {
		return fmt.Errorf("store that the primary is %s: %w", st.GetDatacenter(), err)
	}
	return nil
}
