// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

const (
	// unknownFor is how long a leader waits to hear of all servers of its datacenter. Who is silent then is dead.
	unknownFor = 5 * time.Second
	// lookEvery is how often what others think is looked at anew while it matters, and askTimeout bounds one such question.
	lookEvery  = time.Second
	askTimeout = 3 * time.Second
)

// Lead is what the leader does until ctx ends: in a secondary it follows the primary, and when the servers of its datacenter are
// configured with another primary, all living ones alike, it sees to the change.
//
//   - A primary that is to be one no more hands over: it writes nothing from then on, and can be followed until it follows itself.
//   - A secondary that is to be the primary follows the one before it until that has handed over, and it has all of it; or until it
//     has not been heard of for takeOverAfter. Then the records become its own.
//   - Any other follows the primary that it has until the new one is one.
func (p *PrimaryManager) RunLeader(ctx context.Context) error {
	began := time.Now()
	for ctx.Err() == nil {
		want := p.wanted(began)
		err := p.while(ctx, func() bool { return p.wanted(began) == want }, func(ctx context.Context) error {
			return p.be(ctx, want)
		})
		p.waitsFor("")
		switch {
		case errors.Is(err, resource.ErrConflict): // a status was written, say: look at everything anew
			p.pause(ctx, nil)
		case err != nil && ctx.Err() == nil:
			return err
		}
	}
	return nil
}

// agreed is the primary that all living servers of this datacenter are configured with; empty: they differ.
func (p *PrimaryManager) agreed(began time.Time) string {
	named, unknown := p.cfg.ServerSettings()
	if len(unknown) > 0 && time.Since(began) < unknownFor {
		return ""
	}
	for _, dc := range named {
		if dc != p.cfg.ConfiguredPrimary {
			return ""
		}
	}
	return p.cfg.ConfiguredPrimary
}

// wanted is agreed. While the servers differ a secondary goes on as it is; nobody can say whether a primary is to stay one.
func (p *PrimaryManager) wanted(began time.Time) string {
	want := p.agreed(began)
	if of := p.mark().GetDatacenter(); want == "" && of != p.cfg.DC {
		return of
	}
	return want
}

// while runs f with a context that ends when holds does not any more, and joins it.
func (p *PrimaryManager) while(ctx context.Context, holds func() bool, f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		defer cancel()
		for changed := p.cfg.SettingsChanged(); holds(); changed = p.cfg.SettingsChanged() {
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

// pause waits for a change, or lookEvery. It says whether ctx lasts.
func (p *PrimaryManager) pause(ctx context.Context, changed <-chan struct{}) bool {
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-changed:
	case <-timer.C:
	}
	return ctx.Err() == nil
}

// be does what is to be done as long as the primary is to be want; "" if nobody can say.
func (p *PrimaryManager) be(ctx context.Context, want string) error {
	m := p.mark()
	switch of := m.GetDatacenter(); {
	case want == "":
		<-ctx.Done()
		return nil
	case want == of && of != p.cfg.DC:
		if p.cfg.ConfiguredPrimary != p.cfg.DC && m.GetUnanswered() != nil { // it is not to take over any more
			if err := p.note(ctx, 0); err != nil {
				return err
			}
		}
		return p.follow(ctx, of)
	case want == p.cfg.DC && of == "":
		return p.become(ctx, m)
	case want == p.cfg.DC && of == p.cfg.DC:
		if m.GetHandedTo() != "" {
			p.cfg.Logger.Info("this datacenter stays the primary after all", "was handed to", m.GetHandedTo())
			if err := p.set(ctx, &pb.Primary{Datacenter: p.cfg.DC, Complete: true}); err != nil {
				return err
			}
		}
		<-ctx.Done()
		return nil
	case want == p.cfg.DC:
		return p.takeOver(ctx, m)
	case of == "":
		return p.follow(ctx, want)
	default:
		return p.change(ctx, m, want)
	}
}

// follow follows a primary until ctx ends.
func (p *PrimaryManager) follow(ctx context.Context, dc string) error {
	p.mu.Lock()
	p.target = dc
	p.mu.Unlock()
	return p.follower.Run(ctx)
}

// behind follows dc beside what its caller does, until stop is called.
func (p *PrimaryManager) behind(ctx context.Context, dc string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { _ = p.follow(ctx, dc) }) // it only ends with ctx
	return func() { cancel(); wg.Wait() }
}

// change follows another primary than before, once that is one.
func (p *PrimaryManager) change(ctx context.Context, m *pb.Primary, want string) error {
	of, stop := m.GetDatacenter(), func() {}
	defer func() { stop() }()
	if of == p.cfg.DC {
		if m.GetHandedTo() != want {
			p.cfg.Logger.Info("this datacenter is no longer to be the primary: it writes no federated records any more, until the new one does", "primary", want)
			if err := p.set(ctx, &pb.Primary{Datacenter: of, Complete: true, HandedTo: want}); err != nil {
				return err
			}
		}
	} else {
		stop = p.behind(ctx, of)
	}
	for {
		ways := p.cfg.PathsChanged()
		_, err := p.ask(ctx, want)
		if err == nil {
			break
		}
		p.waitsFor("waits for %s to be the primary, as primary_datacenter of the servers here says: %v", want, err)
		if !p.pause(ctx, ways) {
			return nil
		}
	}
	p.waitsFor("")
	stop()
	return p.follow(ctx, want)
}

// ask asks any server of a datacenter whether it can be followed, and to whom it has handed over.
func (p *PrimaryManager) ask(ctx context.Context, dc string) (handedTo string, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	client, err := p.cfg.Connect(dc)
	if err != nil {
		return "", err
	}
	stream, err := client.Follow(ctx, grpc.WaitForReady(true))
	if err != nil {
		return "", err
	}
	if err := stream.Send(&pb.FollowRequest{Part: &pb.FollowRequest_Hello{Hello: &pb.FollowHello{}}}); err != nil {
		_, err = stream.Recv()
		return "", err
	}
	got, err := stream.Recv()
	if err == nil && got.GetBegin() == nil {
		err = errors.New("the answer to hello does not begin")
	}
	return got.GetBegin().GetHandedTo(), err
}

// ProbePrimary asks any server of a datacenter whether that is a primary.
func (p *PrimaryManager) ProbePrimary(ctx context.Context, dc string) bool {
	_, err := p.ask(ctx, dc)
	return err == nil
}
