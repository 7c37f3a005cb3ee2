// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/wanfed/wanfed/lease"
)

const (
	// callTimeout bounds one call to a server.
	callTimeout = 10 * time.Second
	// renewPart is the part of the duration of a lease between two renewals.
	renewPart = 4
	// marginPart is the part of the duration by which a claim ends in this
	// process before its lease can expire.
	marginPart = 10
)

// claims holds leases of a daemon: one for the daemon, and one for each task
// that it runs. Unlike a lease.Elector, it renews all leases from one goroutine
// and does not wait for leases that another daemon holds: the daemon watches all
// leases anyway.
type claims struct {
	client   lease.Client
	holder   string
	duration time.Duration
	logger   *slog.Logger
	// lost is called with the name of a lease that a server reports as not held
	// by this daemon. It must not block.
	lost func(name string)

	mu   sync.Mutex
	held map[string]claim // by name of the lease
}

// claim is a held lease.
type claim struct {
	token uint64
	until time.Time // the lease cannot expire before
	since time.Time // the lease was acquired before
}

// acquire returns the fencing token of the lease, or 0 if another daemon has it.
// A holder that has the lease already gets its token again.
func (c *claims) acquire(ctx context.Context, name string) (token uint64, err error) {
	if token := c.token(name); token != 0 {
		return token, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	sent := time.Now()
	grant, err := c.client.Acquire(ctx, name, c.holder, c.duration)
	if err != nil || grant.Token == 0 {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[name] = claim{grant.Token, c.deadline(sent), time.Now()}
	return grant.Token, nil
}

func (c *claims) deadline(sent time.Time) time.Time {
	return sent.Add(c.duration - c.duration/marginPart)
}

// get returns a lease that this daemon has. The result is zero if there is none,
// or if the lease may have expired.
func (c *claims) get(name string) claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.held[name]; time.Now().Before(h.until) {
		return h
	}
	return claim{}
}

// token returns the fencing token of a lease that this daemon has, or 0.
func (c *claims) token(name string) uint64 { return c.get(name).token }

// release frees a lease. Another daemon can then acquire it at once.
func (c *claims) release(ctx context.Context, name string) {
	c.mu.Lock()
	h, ok := c.held[name]
	delete(c.held, name)
	c.mu.Unlock()
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := c.client.Release(ctx, name, h.token); err != nil {
		c.logger.Warn("cannot release the claim, it expires", "lease", name, "err", err)
	}
}

// releaseAll frees every lease.
func (c *claims) releaseAll(ctx context.Context) {
	c.mu.Lock()
	names := make([]string, 0, len(c.held))
	for name := range c.held {
		names = append(names, name)
	}
	c.mu.Unlock()
	var wg sync.WaitGroup
	for _, name := range names {
		wg.Go(func() { c.release(ctx, name) })
	}
	wg.Wait()
}

// run renews the leases until ctx ends. It joins its goroutines.
func (c *claims) run(ctx context.Context) {
	tick := time.NewTicker(c.duration / renewPart)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c.mu.Lock()
		var wg sync.WaitGroup
		for name, h := range c.held {
			wg.Go(func() { c.renew(ctx, name, h.token) })
		}
		c.mu.Unlock()
		wg.Wait()
	}
}

// renew renews one lease. The client merges the calls. A failed call changes
// nothing: the claim ends at its deadline, and a later renewal may revive it,
// because a lease that no other daemon has taken is still held.
func (c *claims) renew(ctx context.Context, name string, token uint64) {
	ctx, cancel := context.WithTimeout(ctx, max(c.duration/renewPart, time.Second))
	defer cancel()
	sent := time.Now()
	held, err := c.client.Renew(ctx, name, token)
	if err != nil {
		c.logger.Debug("cannot renew the claim", "lease", name, "err", err)
		return
	}
	c.mu.Lock()
	h, ok := c.held[name]
	switch {
	case !ok || h.token != token: // released, or acquired again
		c.mu.Unlock()
		return
	case held:
		c.held[name] = claim{token, c.deadline(sent), h.since}
	default:
		delete(c.held, name)
	}
	c.mu.Unlock()
	if !held {
		c.lost(name)
	}
}
