// SPDX-License-Identifier: MPL-2.0

package controllertest

import (
	"context"
	"sync"

	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/internal/broadcast"
)

// Election elects one of several candidates, as the test chooses. Its methods
// may be called from any goroutine.
type Election struct {
	changed broadcast.Broadcast
	active  chan struct{} // full while a candidate runs its function

	mu     sync.Mutex
	leader string
	term   int
}

// NewElection returns an Election without a leader.
func NewElection() *Election { return &Election{active: make(chan struct{}, 1)} }

// Elect makes a candidate the leader of a new term, and ends the term of the
// previous leader. If candidate is "", no candidate leads.
func (e *Election) Elect(candidate string) {
	e.mu.Lock()
	e.leader = candidate
	e.term++
	e.mu.Unlock()
	e.changed.Notify()
}

// Candidate returns the Elector of a candidate. A new leader waits until the
// function of the previous leader has returned, as leaders wait for the end of
// a lease.
func (e *Election) Candidate(name string) controller.Elector { return candidate{e, name} }

type candidate struct {
	e    *Election
	name string
}

// leads reports whether the candidate leads, in which term, and returns a
// channel that is closed when this may have changed.
func (c candidate) leads() (bool, int, <-chan struct{}) {
	changed := c.e.changed.Wait()
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	return c.e.leader == c.name, c.e.term, changed
}

// RunWhileLeader implements controller.Elector.
func (c candidate) RunWhileLeader(ctx context.Context, fn func(context.Context) error) error {
	for ctx.Err() == nil {
		leads, term, changed := c.leads()
		if leads {
			if err := c.runTerm(ctx, term, fn); err != nil {
				return err
			}
			_, now, _ := c.leads()
			if now != term {
				continue
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return nil
}

func (c candidate) runTerm(ctx context.Context, term int, fn func(context.Context) error) error {
	select {
	case c.e.active <- struct{}{}:
		defer func() { <-c.e.active }()
	case <-ctx.Done():
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer cancel()
		for {
			leads, now, changed := c.leads()
			if !leads || now != term {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	err := fn(ctx)
	cancel()
	<-ended
	return err
}
