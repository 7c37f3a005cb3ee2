// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
)

const (
	// unknownServerTimeout is the time from the start of this process after
	// which a server that has not reported its configuration counts as dead.
	unknownServerTimeout = 5 * time.Second
	// checkInterval is the interval at which the leader checks the desired
	// primary and, during a change, probes other datacenters.
	checkInterval = time.Second
	probeTimeout  = 3 * time.Second
)

// RunLeader follows the primary in a secondary, until ctx ends. It performs a
// change of the primary when all alive servers of the datacenter are configured
// with another primary.
func (p *PrimaryManager) RunLeader(ctx context.Context) error {
	for ctx.Err() == nil {
		desired := p.desired()
		err := p.runWhile(ctx, func() bool { return p.desired() == desired }, func(ctx context.Context) error {
			return p.runRole(ctx, desired)
		})
		p.setPending("")
		switch {
		case errors.Is(err, resource.ErrConflict): // the status of the primary resource was written
			p.pause(ctx, nil)
		case err != nil && ctx.Err() == nil:
			return err
		}
	}
	return nil
}

// desired returns the configured primary of all alive servers. If their
// configurations differ, desired returns the current primary in a secondary,
// and "" in the primary.
func (p *PrimaryManager) desired() string {
	byNode, unknown := p.cfg.Servers.ConfiguredPrimaries()
	agreed := len(unknown) == 0 || time.Since(p.started) >= unknownServerTimeout
	for _, dc := range byNode {
		agreed = agreed && dc == p.cfg.ConfiguredPrimary
	}
	if agreed {
		return p.cfg.ConfiguredPrimary
	}
	if owner := p.stored().GetDatacenter(); owner != p.cfg.DC {
		return owner
	}
	return ""
}

// runWhile runs f until cond returns false or ctx ends. It joins f.
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

// runRole performs the task of the leader until ctx ends. The task depends on
// the desired primary and on the actual primary.
func (p *PrimaryManager) runRole(ctx context.Context, desired string) error {
	st := p.stored()
	owner := st.GetDatacenter()
	switch {
	case desired == "": // the servers of the primary are configured differently: change nothing
		<-ctx.Done()
		return nil
	case desired == p.cfg.DC && owner == p.cfg.DC:
		return p.runPrimary(ctx, st)
	case desired == p.cfg.DC && owner == "": // the first start of this datacenter
		return p.promote(ctx, "", nil)
	case desired == p.cfg.DC:
		return (&promotion{PrimaryManager: p, former: owner}).run(ctx)
	case owner == "" || owner == desired:
		return p.follow(ctx, desired)
	case owner == p.cfg.DC:
		if err := p.demote(ctx, st, desired); err != nil {
			return err
		}
		return p.followWhenPrimary(ctx, "", desired)
	}
	return p.followWhenPrimary(ctx, owner, desired)
}

// runPrimary is the task of the leader of the primary. It ends a demotion that
// was canceled. When another datacenter has become the primary, runPrimary
// waits until that datacenter is demoted in favor of this one, or TakeOver
// makes this datacenter the primary again.
func (p *PrimaryManager) runPrimary(ctx context.Context, st *pb.Primary) error {
	if st.GetEpoch() == 0 { // stored by an older version
		if err := p.update(ctx, func(st *pb.Primary) { st.Epoch = firstEpoch }); err != nil {
			return err
		}
	}
	if successor := st.GetHandedTo(); successor != "" {
		if canceled, err := p.cancelDemotion(ctx, successor); !canceled {
			return err
		}
	}
	if err := p.waitStored(ctx, func() bool { return p.SupersededBy() != Epoch{} }); err != nil {
		return ignoreEnd(ctx, err)
	}
	for {
		by := p.SupersededBy()
		if proof := p.takeOverFrom(by.Datacenter); proof != nil {
			if err := p.promote(ctx, by.Datacenter, proof); !errors.Is(err, errOutdated) {
				return err
			}
		}
		if begin, err := p.probe(ctx, by.Datacenter); err == nil && begin.GetBegin().GetHandedTo() == p.cfg.DC {
			return (&promotion{PrimaryManager: p, former: by.Datacenter}).run(ctx)
		}
		p.setPending("%v", p.Writable())
		if !p.pause(ctx, nil) {
			return nil
		}
	}
}

// cancelDemotion makes the federated resources writable again after a demotion
// in favor of successor. successor may have become the primary. Therefore
// cancelDemotion withdraws the consent, and waits until successor confirms that
// it will not use it, unless TakeOver is called. The number of the new epoch is
// higher than the one that the consent permits.
func (p *PrimaryManager) cancelDemotion(ctx context.Context, successor string) (canceled bool, err error) {
	var takeOver *pb.EpochProof
	for {
		epoch := p.Epoch()
		_, err := p.probeWith(ctx, successor, &pb.FollowHello{Withdrawn: epoch})
		if p.SupersededBy() != (Epoch{}) {
			return true, nil // successor is the primary: the demotion ends when this datacenter follows it
		}
		if takeOver = p.takeOverFrom(successor); takeOver != nil || confirmsWithdrawn(err, epoch) {
			break
		}
		p.setPending("%s was demoted in favor of %[2]s, which does not respond and may be the primary: %[3]v; "+
			"if it is lost: wanfed operator primary take-over --from %[2]s", p.cfg.DC, successor, err)
		if !p.pause(ctx, p.cfg.Remote.PathsChanged()) {
			return false, nil
		}
	}
	p.cfg.Logger.Info("demotion of this datacenter canceled: its servers are configured with it again",
		"handed_to", successor)
	p.setPending("")
	return true, p.update(ctx, func(st *pb.Primary) {
		st.HandedTo, st.Epoch = "", cmp.Or(takeOver.GetEpoch().GetNumber(), p.KnownEpoch().Number+2)
		st.Proofs = addProof(st.Proofs, takeOver)
	})
}

// ignoreEnd returns nil if ctx has ended, and otherwise err.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// demote stops writes of federated resources in this datacenter, the primary.
// Other datacenters can follow this datacenter until they can follow desired. A
// demotion in favor of a datacenter other than desired must be canceled first,
// because that datacenter may have become the primary. A superseded primary is
// not demoted: its writes already fail.
func (p *PrimaryManager) demote(ctx context.Context, st *pb.Primary, desired string) error {
	if earlier := st.GetHandedTo(); earlier != "" && earlier != desired && p.SupersededBy() == (Epoch{}) {
		if canceled, err := p.cancelDemotion(ctx, earlier); !canceled {
			return err
		}
	}
	if st.GetHandedTo() == desired || p.SupersededBy() != (Epoch{}) {
		return nil
	}
	p.cfg.Logger.Info("primary demoted: federated resources cannot be written until the new primary is promoted",
		"primary", desired)
	return p.update(ctx, func(st *pb.Primary) { st.HandedTo = desired })
}

// followWhenPrimary waits until desired is a primary, and then follows desired.
// While it waits, it follows former unless former is "".
func (p *PrimaryManager) followWhenPrimary(ctx context.Context, former, desired string) error {
	var following background
	defer following.stop()
	if former != "" {
		following.start(ctx, func(ctx context.Context) { _ = p.follow(ctx, former) })
	}
	for {
		pathsChanged := p.cfg.Remote.PathsChanged()
		begin, err := p.probe(ctx, desired)
		if err == nil {
			err = errors.Join(supersededError(begin, desired), p.checkLearned(begin, desired))
		}
		if err == nil {
			break
		}
		p.setPending("waits until %s, the primary_datacenter of the servers here, is the primary: %v", desired, err)
		if !p.pause(ctx, pathsChanged) {
			return nil
		}
	}
	p.setPending("")
	following.stop()
	return p.follow(ctx, desired)
}

// follow follows datacenter dc until ctx ends.
func (p *PrimaryManager) follow(ctx context.Context, dc string) error {
	p.mu.Lock()
	changed := p.followed != dc
	p.followed = dc
	p.mu.Unlock()
	if changed {
		p.follower.clearIndex()
	}
	return p.follower.run(ctx)
}

// background is a goroutine that can be started and stopped repeatedly. The
// zero value is stopped. Only one goroutine may call its methods.
type background struct {
	cancel context.CancelFunc // nil: stopped
	wg     sync.WaitGroup
}

// start runs f unless the goroutine is running.
func (b *background) start(ctx context.Context, f func(context.Context)) {
	if b.cancel != nil {
		return
	}
	ctx, b.cancel = context.WithCancel(ctx)
	b.wg.Go(func() { f(ctx) })
}

// stop ends and joins the goroutine if it is running.
func (b *background) stop() {
	if b.cancel != nil {
		b.cancel()
		b.wg.Wait()
		b.cancel = nil
	}
}

// probe opens a stream without types to any server of dc. It returns the first
// message if dc can be followed. The two datacenters exchange the epochs that
// they know.
func (p *PrimaryManager) probe(ctx context.Context, dc string) (begin *pb.FollowResponse, err error) {
	return p.probeWith(ctx, dc, &pb.FollowHello{})
}

func (p *PrimaryManager) probeWith(
	ctx context.Context, dc string, hello *pb.FollowHello,
) (begin *pb.FollowResponse, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	client, err := p.cfg.Remote.ReplicationClient(dc)
	if err != nil {
		return nil, err
	}
	stream, err := client.Follow(ctx, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	_ = stream.Send(&pb.FollowRequest{Part: &pb.FollowRequest_Hello{Hello: hello}}) // Recv returns the error
	begin, err = stream.Recv()
	if err := p.checkGroup(dc, begin.GetBegin()); err != nil {
		return nil, err
	}
	p.learnFromError(dc, err)
	p.learnFrom(dc, begin)
	if err == nil && begin.GetBegin() == nil {
		err = errors.New("the first message of the response is not the beginning of a stream")
	}
	return begin, err
}

// supersededError returns an error if datacenter dc, which has sent begin,
// knows that another primary has replaced it.
func supersededError(begin *pb.FollowResponse, dc string) error {
	if by := begin.GetKnown(); by != nil && by.Datacenter != dc {
		return fmt.Errorf("%s has replaced %s as the primary, in epoch %d", by.Datacenter, dc, by.Number)
	}
	return nil
}

// checkLearned returns an error if datacenter dc, which has sent begin, does not know
// yet that another one has replaced it. Following it would end the newer epoch.
func (p *PrimaryManager) checkLearned(begin *pb.FollowResponse, dc string) error {
	known := p.KnownEpoch()
	if known.Datacenter == dc || !known.Supersedes(epochOf(begin.GetKnown())) {
		return nil
	}
	return fmt.Errorf("%s does not know yet that %s has replaced it, in epoch %d", dc, known.Datacenter, known.Number)
}

// ProbePrimary reports whether datacenter dc responds and is a primary that no
// other one has replaced, as far as dc knows.
func (p *PrimaryManager) ProbePrimary(ctx context.Context, dc string) bool {
	begin, err := p.probe(ctx, dc)
	return err == nil && supersededError(begin, dc) == nil
}
