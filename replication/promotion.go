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
	// takeoverTimeout is the time without a response from the former primary
	// after which this datacenter takes over. It is long enough for local
	// gateways that restart at the same time to become available.
	takeoverTimeout = 20 * time.Second
	// silenceStep is the interval at which the leader stores the time without a
	// response. The next leader continues from the stored time.
	silenceStep = takeoverTimeout / 5
	// drainTimeout limits one attempt to copy the last records.
	drainTimeout = time.Minute
)

// formerState is the state of the former primary during a promotion.
type formerState int

const (
	formerActive  formerState = iota // it is still the primary
	formerDemoted                    // it is demoted in favor of this datacenter
	formerSilent                     // it does not respond
	formerLost                       // it has not responded for takeoverTimeout
)

// promotion makes this datacenter the primary in place of former.
type promotion struct {
	*PrimaryManager
	former  string
	copying background // runs followFormer

	lastAnswer time.Time
	recorded   time.Duration // stored time without a response from former
}

func (p *promotion) run(ctx context.Context) error {
	p.cfg.Logger.Info("this datacenter takes over as the primary", "former", p.former)
	defer p.copying.stop()
	p.recorded = p.silence(p.record())
	p.lastAnswer = time.Now().Add(-p.recorded)
	for {
		pathsChanged := p.cfg.Remote.PathsChanged()
		state, cause, err := p.checkFormer(ctx)
		if err != nil {
			return err
		}
		switch state {
		case formerActive:
			p.setPending("%s is to be the primary, but %s still is: "+
				"set primary_datacenter = %q on all servers of %s, and restart them", p.cfg.DC, p.former, p.cfg.DC, p.former)
			p.copying.start(ctx, p.followFormer)
		case formerDemoted:
			p.copying.stop()
			if p.drain(ctx) {
				return p.promote(ctx, p.former)
			}
		case formerSilent:
			p.setPending("takes over from %s, which does not answer, in %v: %v",
				p.former, takeoverTimeout-time.Since(p.lastAnswer).Round(time.Second), cause)
		case formerLost:
			p.copying.stop()
			p.cfg.Logger.Warn("the former primary does not answer: acknowledged records that were not copied are lost",
				"former", p.former, "index", p.follower.HighestIndex(), "err", cause)
			return p.promote(ctx, p.former)
		}
		if !p.pause(ctx, pathsChanged) {
			return nil
		}
	}
}

func (p *promotion) followFormer(ctx context.Context) { _ = p.follow(ctx, p.former) }

// checkFormer probes the former primary and stores the time without a response.
// cause is the error of the probe, nil after a response.
func (p *promotion) checkFormer(ctx context.Context) (state formerState, cause, err error) {
	successor, cause := p.probe(ctx, p.former)
	if cause == nil {
		p.lastAnswer = time.Now()
	}
	silence := time.Since(p.lastAnswer).Round(time.Second)
	if silence >= p.recorded+silenceStep || cause == nil && p.recorded > 0 {
		if err := p.recordSilence(ctx, silence); err != nil {
			return 0, cause, err
		}
		p.recorded = silence
	}
	switch {
	case cause != nil && time.Since(p.lastAnswer) >= takeoverTimeout:
		return formerLost, cause, nil
	case cause != nil:
		return formerSilent, cause, nil
	case successor == p.cfg.DC:
		return formerDemoted, nil, nil
	}
	return formerActive, nil, nil
}

// silence returns the time for which earlier leaders have had no response from
// the primary in rec. The result is at most the uptime of this process. After a
// restart of all servers, the former primary therefore has the whole
// takeoverTimeout again.
func (p *PrimaryManager) silence(rec *pb.Primary) time.Duration {
	return min(rec.GetUnanswered().AsDuration(), time.Since(p.started))
}

func (p *PrimaryManager) recordSilence(ctx context.Context, silence time.Duration) error {
	rec := p.record()
	if rec == nil {
		return nil
	}
	if rec.Unanswered = nil; silence > 0 {
		rec.Unanswered = durationpb.New(silence)
	}
	return p.writeRecord(ctx, rec)
}

// drain copies the last records of the former primary, which accepts no more
// writes. It reports whether the copy is complete. A server of the former
// primary may lag behind the demotion. Therefore the server that sends the
// records must also confirm the demotion in the same stream.
func (p *promotion) drain(ctx context.Context) bool {
	p.setPending("takes over from %s: copies the last of its records", p.former)
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

// promote converts the replicas in this datacenter to its own records, and
// stores that this datacenter is the primary. Then it waits until ctx ends.
// former is "" at the first start.
func (p *PrimaryManager) promote(ctx context.Context, former string) error {
	n, err := p.adoptReplicas(ctx)
	if err != nil {
		return err
	}
	if err := p.writeRecord(ctx, &pb.Primary{Datacenter: p.cfg.DC, Complete: true}); err != nil {
		return err
	}
	p.setPending("")
	if former != "" || n > 0 {
		p.cfg.Logger.Info("this datacenter is the primary now", "former", former, "count", n)
	}
	<-ctx.Done()
	return nil
}

// adoptReplicas turns replicas into this datacenter's own resources. Uid,
// generation and data stay, the version is new, and finalizers and owners become
// effective. It deletes resources whose owner the former primary had deleted,
// and returns the number of replicas. No other writer changes federated
// resources during the call. It may be repeated after an error.
func (p *PrimaryManager) adoptReplicas(ctx context.Context) (n int, err error) {
	order, types := kindsOf(p.cfg.Registry)
	var owned []*pb.Resource
	for _, k := range order {
		all, _, err := p.cfg.Backend.List(ctx, resource.Eventual, k.query())
		if err != nil {
			return n, err
		}
		batch := opBatch{backend: p.cfg.Backend}
		for _, r := range all {
			if r.GetPrimaryModifyIndex() == 0 {
				continue
			}
			n++
			own := &pb.Resource{
				Id: r.Id, Owner: r.Owner, Generation: r.Generation, Metadata: r.Metadata, Status: r.Status, Data: r.Data,
			}
			if err := batch.add(ctx, resource.PutOp(own, r.GetVersion()), proto.Size(r)); err != nil {
				return n, fmt.Errorf("adopt replicas of %v: %w", k, err)
			}
			if o := r.GetOwner(); o != nil && types[kindOf(o.GetType())] != nil {
				owned = append(owned, r)
			}
		}
		if err := batch.flush(ctx); err != nil {
			return n, fmt.Errorf("adopt replicas of %v: %w", k, err)
		}
	}
	return n, p.deleteOrphans(ctx, owned)
}

// deleteOrphans deletes the resources in owned whose owner does not exist.
// Their owners are of federated types. An owner of another type was never
// replicated.
func (p *PrimaryManager) deleteOrphans(ctx context.Context, owned []*pb.Resource) error {
	batch := opBatch{backend: p.cfg.Backend}
	for _, r := range owned {
		o := r.GetOwner()
		got, err := p.cfg.Backend.Read(ctx, resource.Eventual,
			&pb.ID{Type: o.GetType(), Tenancy: o.GetTenancy(), Name: o.GetName()})
		if mismatch, ok := errors.AsType[*resource.GroupVersionError](err); ok {
			got, err = mismatch.Stored, nil
		}
		switch {
		case err == nil && got.GetId().GetUid() == o.GetUid():
			continue
		case err != nil && !errors.Is(err, resource.ErrNotFound):
			return err
		}
		p.cfg.Logger.Warn("deleting a record whose owner the former primary had deleted",
			"resource", resource.IDString(r.GetId()), "owner", resource.IDString(o))
		if err := batch.add(ctx, resource.RemoveOp(r.GetId(), resource.AnyVersion), proto.Size(r.GetId())); err != nil {
			return err
		}
	}
	return batch.flush(ctx)
}

// opBatch commits ops in Raft entries of limited size.
type opBatch struct {
	backend resource.Backend
	ops     []*pb.Op
	bytes   int
}

func (b *opBatch) add(ctx context.Context, op *pb.Op, bytes int) error {
	if len(b.ops) > 0 && (len(b.ops) >= batchRecords || b.bytes+bytes > batchBytes) {
		if err := b.flush(ctx); err != nil {
			return err
		}
	}
	b.ops, b.bytes = append(b.ops, op), b.bytes+bytes
	return nil
}

func (b *opBatch) flush(ctx context.Context) error {
	if len(b.ops) == 0 {
		return nil
	}
	_, err := b.backend.Commit(ctx, b.ops...)
	b.ops, b.bytes = nil, 0
	return err
}
