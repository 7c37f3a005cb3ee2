// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
)

const (
	// unknownServerTimeout limits the time for which a new leader waits for the
	// configuration of all servers. A server that has not reported its
	// configuration within that time counts as dead.
	unknownServerTimeout = 5 * time.Second
	// checkInterval is the interval at which the leader checks the desired
	// primary and probes other datacenters during a change.
	checkInterval = time.Second
	probeTimeout  = 3 * time.Second
)

// role is the task that a leader performs for its datacenter.
type role int

const (
	// roleUndecided: this datacenter is the primary, but its servers are
	// configured with different primaries. Nothing changes.
	roleUndecided role = iota
	// rolePrimary: this datacenter is the primary and stays it.
	rolePrimary
	// roleSecondary: this datacenter follows the primary.
	roleSecondary
	// rolePromotion: this datacenter becomes the primary. It follows the former
	// primary until one of two events. Either the former primary is demoted and
	// all of its records are copied, or it has not responded for
	// takeoverTimeout.
	rolePromotion
	// roleDemotion: this datacenter stops being the primary. It accepts no
	// writes. It can be followed until the new primary can be followed.
	roleDemotion
	// roleSwitch: this datacenter follows its primary until another primary can
	// be followed.
	roleSwitch
)

// roleFor returns the role of datacenter dc, whose record names owner and whose
// servers agree on the primary desired. desired is "" while they disagree.
func roleFor(dc, owner, desired string) role {
	switch {
	case desired == "":
		return roleUndecided
	case desired == dc && owner == dc:
		return rolePrimary
	case desired == dc:
		return rolePromotion
	case owner == "" || owner == desired:
		return roleSecondary
	case owner == dc:
		return roleDemotion
	}
	return roleSwitch
}

// RunLeader does the leader's work until ctx ends. In a secondary it follows the
// primary. When all alive servers of the datacenter are configured with another
// primary, it performs the change.
func (p *PrimaryManager) RunLeader(ctx context.Context) error {
	start := time.Now()
	for ctx.Err() == nil {
		desired := p.desired(start)
		err := p.runWhile(ctx, func() bool { return p.desired(start) == desired }, func(ctx context.Context) error {
			return p.runRole(ctx, desired)
		})
		p.setPending("")
		switch {
		case errors.Is(err, resource.ErrConflict): // the record was written, for example its status
			p.pause(ctx, nil)
		case err != nil && ctx.Err() == nil:
			return err
		}
	}
	return nil
}

// desired returns the primary that all alive servers are configured with. If
// their configurations differ, desired returns the current primary in a
// secondary, and "" in the primary.
func (p *PrimaryManager) desired(start time.Time) string {
	byNode, unknown := p.cfg.Servers.ConfiguredPrimaries()
	agreed := len(unknown) == 0 || time.Since(start) >= unknownServerTimeout
	for _, dc := range byNode {
		agreed = agreed && dc == p.cfg.ConfiguredPrimary
	}
	if agreed {
		return p.cfg.ConfiguredPrimary
	}
	if owner := p.record().GetDatacenter(); owner != p.cfg.DC {
		return owner
	}
	return ""
}

// runWhile runs f until cond returns false or ctx ends. It returns after f.
func (p *PrimaryManager) runWhile(ctx context.Context, cond func() bool, f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		defer cancel()
		for changed := p.cfg.Servers.Changed(); cond(); changed = p.cfg.Servers.Changed() {
			if !p.pause(ctx, changed) {
				return
			}
		}
	})
	if err := f(ctx); ctx.Err() == nil {
		return err
	}
	return nil
}

// pause waits until changed is closed, at most for checkInterval. It returns
// false if ctx has ended.
func (p *PrimaryManager) pause(ctx context.Context, changed <-chan struct{}) bool {
	backoff.Sleep(ctx, checkInterval, changed)
	return ctx.Err() == nil
}

func (p *PrimaryManager) runRole(ctx context.Context, desired string) error {
	rec := p.record()
	owner := rec.GetDatacenter()
	switch roleFor(p.cfg.DC, owner, desired) {
	case rolePrimary:
		return p.runPrimary(ctx, rec)
	case roleSecondary:
		if p.cfg.ConfiguredPrimary != p.cfg.DC && rec.GetUnanswered() != nil { // a promotion was cancelled
			if err := p.recordSilence(ctx, 0); err != nil {
				return err
			}
		}
		return p.follow(ctx, desired)
	case rolePromotion:
		if owner == "" { // the first start of this datacenter
			return p.promote(ctx, "")
		}
		return (&promotion{PrimaryManager: p, former: owner}).run(ctx)
	case roleDemotion:
		if err := p.demote(ctx, rec, desired); err != nil {
			return err
		}
		return p.runSwitch(ctx, "", desired)
	case roleSwitch:
		return p.runSwitch(ctx, owner, desired)
	}
	<-ctx.Done() // roleUndecided
	return nil
}

func (p *PrimaryManager) runPrimary(ctx context.Context, rec *pb.Primary) error {
	if rec.GetHandedTo() != "" {
		p.cfg.Logger.Info("this datacenter stays the primary: its servers are configured with it again",
			"handed_to", rec.GetHandedTo())
		if err := p.writeRecord(ctx, &pb.Primary{Datacenter: p.cfg.DC, Complete: true}); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return nil
}

// demote ends writes in this datacenter, the primary, in favor of desired.
func (p *PrimaryManager) demote(ctx context.Context, rec *pb.Primary, desired string) error {
	if rec.GetHandedTo() == desired {
		return nil
	}
	p.cfg.Logger.Info("primary demoted: federated records cannot be written until the new primary takes over",
		"primary", desired)
	return p.writeRecord(ctx, &pb.Primary{Datacenter: p.cfg.DC, Complete: true, HandedTo: desired})
}

// runSwitch follows former until desired is a primary, and then follows
// desired. If former is "", it only waits for desired.
func (p *PrimaryManager) runSwitch(ctx context.Context, former, desired string) error {
	var bg background
	defer bg.stop()
	if former != "" {
		bg.start(ctx, func(ctx context.Context) { _ = p.follow(ctx, former) })
	}
	for {
		pathsChanged := p.cfg.Remote.PathsChanged()
		_, err := p.probe(ctx, desired)
		if err == nil {
			break
		}
		p.setPending("waits for %s to be the primary, according to primary_datacenter of the servers here: %v", desired, err)
		if !p.pause(ctx, pathsChanged) {
			return nil
		}
	}
	p.setPending("")
	bg.stop()
	return p.follow(ctx, desired)
}

// follow follows datacenter dc until ctx ends.
func (p *PrimaryManager) follow(ctx context.Context, dc string) error {
	p.mu.Lock()
	p.target = dc
	p.mu.Unlock()
	return p.follower.Run(ctx)
}

// background is a goroutine that can be started and stopped repeatedly. Its zero
// value is stopped. Only one goroutine may call its methods.
type background struct {
	cancel context.CancelFunc // nil: stopped
	wg     sync.WaitGroup
}

// start runs f unless it is running.
func (b *background) start(ctx context.Context, f func(context.Context)) {
	if b.cancel != nil {
		return
	}
	ctx, b.cancel = context.WithCancel(ctx)
	b.wg.Go(func() { f(ctx) })
}

// stop ends and joins f if it is running.
func (b *background) stop() {
	if b.cancel != nil {
		b.cancel()
		b.wg.Wait()
		b.cancel = nil
	}
}

// probe opens a stream without types to any server of a datacenter. It returns
// nil if the datacenter can be followed. successor is the datacenter in favor
// of which the probed one is demoted, or "".
func (p *PrimaryManager) probe(ctx context.Context, dc string) (successor string, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	client, err := p.cfg.Remote.ReplicationClient(dc)
	if err != nil {
		return "", err
	}
	stream, err := client.Follow(ctx, grpc.WaitForReady(true))
	if err != nil {
		return "", err
	}
	hello := &pb.FollowRequest_Hello{Hello: &pb.FollowHello{}}
	if err := stream.Send(&pb.FollowRequest{Part: hello}); err != nil {
		_, err = stream.Recv()
		return "", err
	}
	got, err := stream.Recv()
	if err == nil && got.GetBegin() == nil {
		err = errors.New("the first message of the response is not the beginning of a stream")
	}
	return got.GetBegin().GetHandedTo(), err
}

// ProbePrimary reports whether datacenter dc answers and is a primary.
func (p *PrimaryManager) ProbePrimary(ctx context.Context, dc string) bool {
	_, err := p.probe(ctx, dc)
	return err == nil
}
