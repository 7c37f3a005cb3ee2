// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
)

// drainTimeout bounds the time that Close waits for pending calls.
const drainTimeout = time.Second

// errRefused marks an error of calls.do for a call that did not reach Raft.
var errRefused = errors.New("store takes no calls")

// calls runs the calls to Raft. It also records that the store is closing or
// has failed, which ends the calls.
type calls struct {
	logger   *slog.Logger
	onFail   func(error) // called once, by fail
	failOnce sync.Once
	failedc  chan struct{}  // closed by fail
	donec    chan struct{}  // closed when Close stops waiting for pending calls
	pending  sync.WaitGroup // calls.do adds to it with mu held, unless err is set

	mu  sync.Mutex
	err error // reason for the failure of the store; ErrClosed while the store closes; nil before
}

func newCalls(logger *slog.Logger, onFail func(error)) *calls {
	return &calls{logger: logger, onFail: onFail, failedc: make(chan struct{}), donec: make(chan struct{})}
}

// do runs start, which calls Raft, and waits for the result of Raft, for the
// end of ctx or for Close. A future of Raft has no context, so each call has a
// goroutine that waits for the future. If ctx or Close ends the wait, Raft may
// still complete the call.
func (c *calls) do(ctx context.Context, start func() raft.Future) (raft.Future, error) {
	c.mu.Lock()
	if err := c.err; err != nil {
		c.mu.Unlock()
		return nil, fmt.Errorf("%w: %w", errRefused, err)
	}
	futurec := make(chan raft.Future, 1)
	c.pending.Go(func() {
		f := start()
		_ = f.Error() // waits; each later call returns the same result
		futurec <- f
	})
	c.mu.Unlock()

	select {
	case f := <-futurec:
		return f, f.Error()
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.donec:
		return nil, resource.ErrClosed
	}
}

// fail stops the store with err as the reason. Later calls have no effect.
func (c *calls) fail(err error) {
	c.failOnce.Do(func() {
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
		c.logger.Error("store stopped", "err", err)
		c.onFail(err)
		close(c.failedc)
	})
}

// Failed returns a channel that is closed when the store fails. Err then
// returns the reason.
func (c *calls) Failed() <-chan struct{} { return c.failedc }

// Err returns the reason for the failure of the store, resource.ErrClosed after
// Close, or nil while the store works.
func (c *calls) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// failure returns the reason for the failure of the store, or nil if the store
// has not failed.
func (c *calls) failure() error {
	if err := c.Err(); !errors.Is(err, resource.ErrClosed) {
		return err
	}
	return nil
}

// refuse makes every later call fail with resource.ErrClosed.
func (c *calls) refuse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = cmp.Or(c.err, resource.ErrClosed)
}

// drain waits for the pending calls, at most drainTimeout.
func (c *calls) drain() {
	drained := make(chan struct{})
	go func() { c.pending.Wait(); close(drained) }()
	backoff.Sleep(context.Background(), drainTimeout, drained)
}

// untilDeadline returns the time until the deadline of ctx, at least 1 ns. It
// returns 0, which Raft takes as no limit, if ctx has no deadline.
func untilDeadline(ctx context.Context) time.Duration {
	if d, ok := ctx.Deadline(); ok {
		return max(time.Until(d), time.Nanosecond)
	}
	return 0
}

// writeError converts an error of Raft for a write. The write had no effect if
// the result is ErrNotLeader, ErrReadOnly, DeadlineExceeded or errRefused.
func writeError(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return resource.ErrNotLeader
	case errors.Is(err, raft.ErrEnqueueTimeout): // Raft did not accept the write
		return context.DeadlineExceeded
	case errors.Is(err, errRefused), errors.Is(err, resource.ErrReadOnly):
		return err
	default: // leadership lost, disk error, shutdown or timeout: a server may have the entry in its log
		return fmt.Errorf("%w: %w", resource.ErrUnknownOutcome, err)
	}
}

// readError converts an error of Raft for a call that changes nothing.
func readError(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipLost),
		errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return resource.ErrNotLeader
	case errors.Is(err, raft.ErrRaftShutdown):
		return resource.ErrClosed
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return context.DeadlineExceeded
	}
	return err
}
