// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
)

const (
	// takeoverTimeout is the time without a response of the former primary
	// after which this datacenter is promoted without it. In that time, local
	// gateways that restart together with the servers become available.
	takeoverTimeout = 20 * time.Second
	// silenceStep is the interval at which the leader stores the time without a
	// response. The next leader continues from the stored time.
	silenceStep = takeoverTimeout / 5
	// drainTimeout limits one attempt to copy the last resources.
	drainTimeout = time.Minute
)

// promotion makes this datacenter the primary. It follows the former primary
// until that datacenter is demoted and all of its resources are copied, or
// until it has not responded for takeoverTimeout.
type promotion struct {
	*PrimaryManager
	former  string
	copying background // follows the former primary

	lastResponse  time.Time     // of the former primary
	storedSilence time.Duration // stored time without a response
}

func (p *promotion) run(ctx context.Context) error {
	p.cfg.Logger.Info("promotion of this datacenter started", "former", p.former)
	defer p.copying.stop()
	p.storedSilence = p.silence(p.stored())
	p.lastResponse = time.Now().Add(-p.storedSilence)
	for {
		pathsChanged := p.cfg.Remote.PathsChanged()
		successor, cause := p.probe(ctx, p.former)
		if err := p.updateSilence(ctx, cause == nil); err != nil {
			return err
		}
		switch silence := time.Since(p.lastResponse); {
		case cause == nil && successor == p.cfg.DC:
			p.copying.stop()
			if p.drain(ctx) {
				return p.promote(ctx, p.former)
			}
		case cause == nil:
			p.setPending("%s is to be the primary, but %s still is: "+
				"set primary_datacenter = %q on all servers of %s, and restart them", p.cfg.DC, p.former,
				p.cfg.DC, p.former)
			p.copying.start(ctx, p.followFormer)
		case silence >= takeoverTimeout:
			p.copying.stop()
			p.cfg.Logger.Warn("former primary does not respond: acknowledged writes that were not copied are lost",
				"former", p.former, "index", p.follower.HighestIndex(), "err", cause)
			return p.promote(ctx, p.former)
		default:
			p.setPending("takes over from %s, which does not respond, in %v: %v",
				p.former, takeoverTimeout-silence.Round(time.Second), cause)
		}
		if !p.pause(ctx, pathsChanged) {
			return nil
		}
	}
}

func (p *promotion) followFormer(ctx context.Context) { _ = p.follow(ctx, p.former) }

// updateSilence stores the time without a response at each silenceStep, and
// resets it after a response.
func (p *promotion) updateSilence(ctx context.Context, responded bool) error {
	if responded {
		p.lastResponse = time.Now()
	}
	silence := time.Since(p.lastResponse).Round(time.Second)
	if silence < p.storedSilence+silenceStep && (!responded || p.storedSilence == 0) {
		return nil
	}
	p.storedSilence = silence
	return p.storeSilence(ctx, silence)
}

// silence returns the stored time without a response. The result is at most the
// uptime of this process. After a restart of all servers, the former primary
// therefore has the whole takeoverTimeout again.
func (p *PrimaryManager) silence(st *pb.Primary) time.Duration {
	return min(st.GetUnanswered().AsDuration(), time.Since(p.started))
}

// storeSilence stores the time without a response of the former primary.
func (p *PrimaryManager) storeSilence(ctx context.Context, silence time.Duration) error {
	st := p.stored()
	if st == nil {
		return nil
	}
	if st.Unanswered = nil; silence > 0 {
		st.Unanswered = durationpb.New(silence)
	}
	return p.store(ctx, st)
}

// drain copies the last resources of the former primary, which accepts no more
// writes. It reports whether the copy is complete. A server of the former
// primary may not have applied the demotion yet. Therefore the stream that
// sends the last resources must also announce the demotion.
func (p *promotion) drain(ctx context.Context) bool {
	p.setPending("takes over from %s: copies its last resources", p.former)
	start := time.Now()
	p.copying.start(ctx, p.followFormer)
	defer p.copying.stop()
	for time.Since(start) < drainTimeout && !p.follower.syncedSince(start) {
		if backoff.Sleep(ctx, checkInterval/50, nil); ctx.Err() != nil {
			return false
		}
	}
	return p.follower.syncedSince(start) && p.follower.syncedAfterDemotion(p.cfg.DC)
}

// promote converts the replicas in this datacenter to own resources, and stores
// that this datacenter is the primary. Then it waits until ctx ends. former is
// "" at the first start.
func (p *PrimaryManager) promote(ctx context.Context, former string) error {
	n, err := p.adoptReplicas(ctx)
	if err != nil {
		return err
	}
	if err := p.store(ctx, &pb.Primary{Datacenter: p.cfg.DC, Complete: true}); err != nil {
		return err
	}
	p.setPending("")
	if former != "" || n > 0 {
		p.cfg.Logger.Info("this datacenter is the primary now", "former", former, "count", n)
	}
	<-ctx.Done()
	return nil
}

// adoptReplicas converts replicas to own resources, and returns their number.
// Uid, generation and data stay. The version is new, and finalizers and owners
// take effect. Resources whose owner the former primary had deleted are
// deleted. No other writer changes federated resources during the call. The
// call may be repeated after an error.
func (p *PrimaryManager) adoptReplicas(ctx context.Context) (n int, err error) {
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
				Data: r.Data,
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
