// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/rpctext"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

const (
	// drainTimeout limits one attempt to copy the last resources.
	drainTimeout = time.Minute
	// takeOverTimeout limits a call of TakeOver.
	takeOverTimeout = 40 * time.Second
)

// promotion makes this datacenter the primary. It follows the former primary
// until that datacenter is demoted and all of its resources are copied, or
// until an operator calls TakeOver.
type promotion struct {
	*PrimaryManager
	former  string
	copying background // follows the former primary
}

// run makes this datacenter the primary, and then runs it as the primary. Until
// the former primary consents or TakeOver is called, run copies its resources
// and repeats the probe.
func (p *promotion) run(ctx context.Context) error {
	p.cfg.Logger.Info("promotion of this datacenter started", "former", p.former)
	defer p.copying.stop()
	for {
		if p.replaced(p.former) { // only the last primary can consent
			p.copying.stop()
			p.former = p.SupersededBy().Datacenter
		}
		pathsChanged := p.cfg.Remote.PathsChanged()
		begin, cause := p.probe(ctx, p.former)
		takeOver := p.takeOverFrom(p.former)
		switch {
		case p.replaced(p.former):
			continue
		case takeOver != nil:
			p.copying.stop()
			p.cfg.Logger.Warn("take-over without the consent of the former primary: "+
				"acknowledged writes that were not copied are lost, or in a file of the former primary",
				"former", p.former, "index", p.follower.HighestIndex(), "err", cause)
			if err := p.promote(ctx, p.former, takeOver); !errors.Is(err, errOutdated) {
				return err
			}
		case cause == nil && begin.GetBegin().GetHandedTo() == p.cfg.DC:
			p.copying.stop()
			if consent, ok := p.drain(ctx); ok && !p.replaced(p.former) {
				if err := p.checkConsent(consent, p.former); err != nil {
					p.setPending("%s cannot use the consent of %[2]s: %[3]v; if that remains, run in %[1]s: "+
						"wanfed operator primary take-over --from %[2]s", p.cfg.DC, p.former, err)
				} else if err := p.promote(ctx, p.former, consent.proof); !errors.Is(err, errOutdated) {
					return err
				}
			}
		case cause == nil:
			p.setPending("%s is to be the primary, but %s still is: "+
				"set primary_datacenter = %q on all servers of %s, and restart them", p.cfg.DC, p.former,
				p.cfg.DC, p.former)
			p.copying.start(ctx, p.followFormer)
		default:
			p.setPending("%s is to be the primary, but waits for the consent of %[2]s: %[3]v; "+
				"if %[2]s is lost, run in %[1]s: wanfed operator primary take-over --from %[2]s", p.cfg.DC,
				p.former, cause)
		}
		if !p.pause(ctx, pathsChanged) {
			return nil
		}
	}
}

// replaced reports whether another datacenter has replaced former as the
// primary.
func (p *PrimaryManager) replaced(former string) bool {
	by := p.SupersededBy().Datacenter
	return by != "" && by != former
}

func (p *promotion) followFormer(ctx context.Context) { _ = p.follow(ctx, p.former) }

// takeOver is a call of TakeOver.
type takeOver struct {
	former string
	proof  *pb.EpochProof
}

// takeOverFrom returns the proof of the running TakeOver from former, or nil.
func (p *PrimaryManager) takeOverFrom(former string) *pb.EpochProof {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.takeOver == nil || p.takeOver.former != former {
		return nil
	}
	return p.takeOver.proof
}

// TakeOver makes this datacenter the primary in place of req.From, without the
// consent of that datacenter. All alive servers must be configured with this
// datacenter as the primary. Only an operator may call it, at the leader, which
// runs RunLeader. TakeOver blocks until this datacenter is the primary, at most
// takeOverTimeout. With req.Check, it changes nothing and blocks for at most
// probeTimeout. Without, the operator has signed req.Proof for the epoch that the
// response to req.Check names.
func (p *PrimaryManager) TakeOver(ctx context.Context, req *pb.TakeOverRequest) (*pb.TakeOverResponse, error) {
	if err := p.checkTakeOver(req.From); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	before := p.KnownEpoch()
	if req.Check {
		resp := &pb.TakeOverResponse{Datacenter: p.cfg.DC, Epoch: before.Number, Complete: p.stored().GetComplete(),
			Index: p.follower.HighestIndex(), NextEpoch: p.nextTakeOver().Number}
		if at := p.follower.Status().LastContact; !at.IsZero() {
			resp.LastContact = durationpb.New(time.Since(at))
		}
		if _, err := p.probe(ctx, req.From); err != nil {
			resp.Unreachable = rpctext.Plain(err.Error())
		}
		return resp, nil
	}
	next := p.nextTakeOver()
	proof, err := p.countersign(req.Proof, next)
	if err != nil {
		return nil, err
	}
	p.setTakeOver(&takeOver{req.From, proof})
	defer p.setTakeOver(nil)
	ctx, cancel := context.WithTimeout(ctx, takeOverTimeout)
	defer cancel()
	err = p.waitStored(ctx, func() bool { return !next.Supersedes(p.KnownEpoch()) })
	switch st := p.stored(); {
	case err != nil:
		return nil, status.Errorf(codes.DeadlineExceeded, "%s is not the primary yet: see wanfed status: %v",
			p.cfg.DC, err)
	case ownEpoch(st) != next:
		return nil, p.errNotNext()
	}
	return &pb.TakeOverResponse{Datacenter: p.cfg.DC, Epoch: next.Number}, nil
}

func (p *PrimaryManager) setTakeOver(t *takeOver) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.takeOver = t
}

// countersign returns proof, which an operator has signed for the epoch next, with the
// signature of this server. An error is a gRPC status.
func (p *PrimaryManager) countersign(proof *pb.EpochProof, next Epoch) (*pb.EpochProof, error) {
	switch {
	case proof == nil:
		return nil, status.Error(codes.InvalidArgument, "the call has no signature of an operator: "+
			"use the command wanfed of this version")
	case epochOf(proof.Epoch) != next:
		return nil, p.errNotNext()
	}
	proof = &pb.EpochProof{Epoch: proof.Epoch, Signatures: proof.Signatures[:min(1, len(proof.Signatures))]}
	if err := p.verifySignature(proof, tlsutil.RoleOperator, p.cfg.DC); err != nil {
		return nil, status.Errorf(codes.PermissionDenied, "the take-over is not signed by an operator of %s: %v",
			p.cfg.DC, err)
	}
	if err := addSignature(p.cfg.Identity, proof); err != nil {
		return nil, status.Errorf(codes.Internal, "sign the take-over: %v", err)
	}
	return proof, nil
}

// errNotNext means that another epoch has begun since the operator has decided.
func (p *PrimaryManager) errNotNext() error {
	return status.Errorf(codes.Aborted, "the epoch of the primary has changed to %v: repeat the command",
		p.KnownEpoch())
}

// checkTakeOver returns the reason why this datacenter cannot take over from
// the datacenter from, or nil.
func (p *PrimaryManager) checkTakeOver(from string) error {
	st := p.stored()
	former := cmp.Or(p.SupersededBy().Datacenter, st.GetDatacenter())
	if former == p.cfg.DC {
		former = st.GetHandedTo()
	}
	switch {
	case p.desired() != p.cfg.DC:
		return fmt.Errorf("not all servers of %s are configured with it as the primary: "+
			"set primary_datacenter = %[1]q on all of them, restart them, and repeat the command", p.cfg.DC)
	case former == "":
		return fmt.Errorf("%s is the primary already", p.cfg.DC)
	case former != from:
		return fmt.Errorf("the primary of %s is %s, not %q", p.cfg.DC, former, from)
	}
	return nil
}

// drain copies the last resources of the former primary, which accepts no more
// writes. It reports whether the copy is complete, and the consent.
// A server of the former primary may not have applied the demotion yet.
// Therefore the stream that sends the last resources must also announce the
// demotion.
func (p *promotion) drain(ctx context.Context) (c consent, complete bool) {
	p.setPending("takes over from %s: copies its last resources", p.former)
	start := time.Now()
	p.copying.start(ctx, p.followFormer)
	defer p.copying.stop()
	for time.Since(start) < drainTimeout && !p.follower.syncedSince(start) {
		if backoff.Sleep(ctx, checkInterval/50, nil); ctx.Err() != nil {
			return consent{}, false
		}
	}
	c, handed := p.follower.syncedAfterDemotion(p.cfg.DC)
	return c, handed && p.follower.syncedSince(start)
}

// promote converts the replicas in this datacenter to own resources, and stores
// that this datacenter is the primary, in a new epoch. Then it runs as the
// primary until ctx ends. proof is the consent of former or the command of an
// operator, both verified. At the first start, former is "" and proof nil. promote
// returns errOutdated if former has withdrawn the consent, or a higher epoch is known.
func (p *PrimaryManager) promote(ctx context.Context, former string, proof *pb.EpochProof) error {
	epoch, formers := uint64(firstEpoch), []*pb.FormerPrimary(nil)
	if proof != nil {
		epoch = proof.GetEpoch().GetNumber()
	}
	outdated := func(st *pb.Primary) bool {
		return former != "" && (!Epoch{epoch, p.cfg.DC}.Supersedes(p.KnownEpoch()) ||
			proof.GetFormer() != "" && withdrawn(st, epoch-1))
	}
	if outdated(p.stored()) {
		return errOutdated
	}
	n, err := p.adoptReplicas(ctx, epoch)
	if err != nil {
		return err
	}
	if former != "" {
		if formers, err = p.formersAfter(ctx, former); err != nil {
			return err
		}
	}
	void := false
	err = p.update(ctx, func(st *pb.Primary) {
		if void = outdated(st); void {
			return
		}
		st.Datacenter, st.Complete, st.HandedTo, st.Epoch, st.DemotedAt = p.cfg.DC, true, "", epoch, nil
		st.Formers, st.Reached, st.GroupId = formers, 0, ""
		st.Proofs = addProof(st.Proofs, proof)
	})
	if void && err == nil {
		p.follower.position = nil // replicas were adopted: compare all
		err = errOutdated
	}
	if err != nil {
		return err
	}
	p.setPending("")
	if former != "" || n > 0 {
		p.cfg.Logger.Info("this datacenter is the primary now", "former", former, "count", n, "epoch", epoch)
	}
	if former != "" {
		_, _ = p.probe(ctx, former) // reports the epoch to the former primary, if it can be reached
	}
	return p.runPrimary(ctx, p.stored())
}

// adoptReplicas converts replicas to resources of this datacenter, and returns
// their number. Uid, generation and data stay. The version is new and of the
// given epoch, and finalizers and owners take effect. Resources whose owner the
// former primary had deleted are deleted. No other writer changes federated
// resources during the call. The call may be repeated after an error.
func (p *PrimaryManager) adoptReplicas(ctx context.Context, epoch uint64) (n int, err error) {
	var owned []*pb.Resource
	for _, k := range p.follower.kinds {
		all, _, err := p.cfg.Backend.List(ctx, resource.Eventual, k.query())
		if err != nil {
			return n, err
		}
		var ops []*pb.Op
		for _, r := range all {
			if r.GetPrimaryModifyIndex() == 0 {
				continue
			}
			ops = append(ops, resource.PutOp(&pb.Resource{
				Id: r.Id, Owner: r.Owner, Generation: r.Generation, Metadata: r.Metadata, Status: r.Status,
				Data: r.Data, PrimaryEpoch: epoch,
			}, r.GetVersion()))
			// An owner of a type that is not federated was never replicated.
			if o := r.GetOwner(); o != nil && p.follower.types[kindOf(o.GetType())] != nil {
				owned = append(owned, r)
			}
		}
		n += len(ops)
		if err := p.commitBatches(ctx, ops); err != nil {
			return n, fmt.Errorf("adopt replicas of %v: %w", k, err)
		}
	}
	return n, p.deleteOrphans(ctx, owned)
}

// deleteOrphans deletes the resources in owned whose owner does not exist.
func (p *PrimaryManager) deleteOrphans(ctx context.Context, owned []*pb.Resource) error {
	var ops []*pb.Op
	for _, r := range owned {
		o := r.GetOwner()
		owner, err := p.cfg.Backend.Read(ctx, resource.Eventual,
			&pb.ID{Type: o.GetType(), Tenancy: o.GetTenancy(), Name: o.GetName()})
		if mismatch, ok := errors.AsType[*resource.GroupVersionError](err); ok {
			owner, err = mismatch.Stored, nil
		}
		switch {
		case err == nil && owner.GetId().GetUid() == o.GetUid():
			continue
		case err != nil && !errors.Is(err, resource.ErrNotFound):
			return err
		}
		p.cfg.Logger.Warn("deleting a resource whose owner the former primary had deleted",
			"resource", resource.IDString(r.GetId()), "owner", resource.IDString(o))
		ops = append(ops, resource.RemoveOp(r.GetId(), resource.AnyVersion))
	}
	return p.commitBatches(ctx, ops)
}

// commitBatches commits operations in Raft entries of limited size.
func (p *PrimaryManager) commitBatches(ctx context.Context, ops []*pb.Op) error {
	for len(ops) > 0 {
		n, bytes := 1, proto.Size(ops[0])
		for n < min(len(ops), batchChanges) && bytes+proto.Size(ops[n]) <= batchBytes {
			bytes += proto.Size(ops[n])
			n++
		}
		if _, err := p.cfg.Backend.Commit(ctx, ops[:n]...); err != nil {
			return err
		}
		ops = ops[n:]
	}
	return nil
}
