// SPDX-License-Identifier: MPL-2.0

package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
)

// ErrLost is the cause of a work context that ended because the lease expired,
// was deleted, or could not be renewed in time.
var ErrLost = errors.New("lease lost")

const (
	// DefaultDuration is the default of ElectorConfig.Duration.
	DefaultDuration = 15 * time.Second
	// marginPart is the part of the duration by which the work context ends
	// before the lease can expire. It permits clock rates that differ by 10%.
	marginPart = 10
	// renewPart is the part of the duration between two renewals.
	renewPart = 4
	// minPause and maxPause bound the pause after a failed call.
	minPause = 50 * time.Millisecond
	maxPause = 2 * time.Second
	// callTimeout bounds one call of the Client.
	callTimeout = 10 * time.Second
	// minRenewTimeout is the minimum timeout of a renewal. It is longer than the
	// sum of the delays by which a client, a follower and the leader merge
	// renewals.
	minRenewTimeout = 500 * time.Millisecond
)

// ElectorConfig configures an Elector.
type ElectorConfig struct {
	// Client acquires the lease. Required.
	Client Client
	// Name is the name of the lease. Required.
	Name string
	// Holder names this process in the lease. The Elector appends a random part,
	// because two processes must not be the same holder. Required.
	Holder string
	// Duration is the time from the last renewal to the expiry. Another
	// candidate takes over at most this long after the holder has died. Default:
	// DefaultDuration. Minimum: MinDuration.
	Duration time.Duration
	// Logger gets a line for each change of the holder. Default: no log.
	Logger *slog.Logger
}

// Elector runs work while it holds a lease. Of all Electors of one lease, one
// runs its work.
type Elector struct {
	cfg    ElectorConfig
	holder string
	now    func() time.Time // with a monotonic clock
}

// NewElector returns an Elector. Run starts it.
func NewElector(cfg ElectorConfig) (*Elector, error) {
	cfg.Duration = cmp.Or(cfg.Duration, DefaultDuration)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Client == nil || cfg.Name == "" || cfg.Holder == "" {
		return nil, errors.New("lease: Client, Name and Holder of ElectorConfig are required")
	}
	holder := cfg.Holder + "/" + resource.NewUID()
	if err := checkAcquire(holder, cfg.Duration); err != nil {
		return nil, err
	}
	cfg.Logger = cfg.Logger.With("lease", cfg.Name)
	return &Elector{cfg: cfg, holder: holder, now: time.Now}, nil
}

// Run competes for the lease until ctx ends, and calls work each time it has
// acquired the lease. When the context of work ends, Run waits until work has
// returned. Run then releases the lease and competes again. If work returns
// while it holds the lease, Run releases the lease and returns the error of
// work. Run returns nil when ctx ends.
//
// The context of work ends before another candidate can acquire the lease: see
// Held.
func (e *Elector) Run(ctx context.Context, work func(ctx *Held) error) error {
	pause := backoff.Backoff{Min: minPause, Max: maxPause}
	for ctx.Err() == nil {
		h, err := e.acquire(ctx)
		switch {
		case err == nil && h != nil:
			pause.Reset()
			lost, err := e.hold(ctx, h, work)
			if !lost {
				return err
			}
		case err != nil && ctx.Err() == nil:
			e.cfg.Logger.Debug("cannot acquire the lease", "err", err)
			backoff.Sleep(ctx, pause.Next(), nil)
		}
	}
	return nil
}

// RunWhileLeader calls fn each time this process has acquired the lease. It
// implements controller.Elector: several processes can run the same controllers,
// and the holder of the lease runs those with the placement LeaderOnly. The
// context of fn is a Held. If fn returns nil while the lease is held, its work is
// complete, and the lease stays held. RunWhileLeader returns nil when ctx ends,
// or an error of fn.
func (e *Elector) RunWhileLeader(ctx context.Context, fn func(ctx context.Context) error) error {
	return e.Run(ctx, func(h *Held) error {
		if err := fn(h); err != nil {
			return err
		}
		<-h.Done()
		return nil
	})
}

// acquire waits until the lease is free and makes one attempt. It returns nil
// if another candidate was faster.
func (e *Elector) acquire(ctx context.Context) (*Held, error) {
	if err := e.cfg.Client.WaitFree(ctx, e.cfg.Name); err != nil {
		return nil, err
	}
	for pause := (backoff.Backoff{Min: minPause, Max: maxPause}); ; {
		sent := e.now()
		cctx, cancel := context.WithTimeout(ctx, callTimeout)
		g, err := e.cfg.Client.Acquire(cctx, e.cfg.Name, e.holder, e.cfg.Duration)
		cancel()
		switch {
		case err == nil && g.Token == 0:
			return nil, nil
		case err == nil:
			return newHeld(ctx, e.now, g, sent), nil
		case ctx.Err() != nil || resource.Rejected(err) || errors.Is(err, resource.ErrDenied):
			return nil, err
		}
		// The outcome may be unknown. The next attempt returns the lease if this
		// one has acquired it.
		backoff.Sleep(ctx, pause.Next(), nil)
	}
}

// hold runs work and renews the lease. lost is true if work ended because the
// lease was lost.
func (e *Elector) hold(ctx context.Context, h *Held, work func(ctx *Held) error) (lost bool, err error) {
	e.cfg.Logger.Info("lease acquired", "token", h.token)
	var renewals sync.WaitGroup
	renewals.Go(func() { e.renew(h) })
	err = work(h)
	lost = errors.Is(context.Cause(h.cancelable), ErrLost) || h.Err() != nil && ctx.Err() == nil
	h.cancel(context.Canceled)
	h.timer.Stop()
	renewals.Wait()
	e.cfg.Logger.Info("lease ended", "token", h.token, "err", context.Cause(h.cancelable))
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(callTimeout, e.cfg.Duration))
	defer cancel()
	if rerr := e.cfg.Client.Release(rctx, e.cfg.Name, h.token); rerr != nil {
		e.cfg.Logger.Debug("cannot release the lease, which then expires", "err", rerr)
	}
	if ctx.Err() != nil {
		return false, nil
	}
	return lost, err
}

// renew renews the lease until the context of h ends.
func (e *Elector) renew(h *Held) {
	every := h.duration / renewPart
	pause := backoff.Backoff{Min: minPause, Max: max(minPause, every/2)}
	for wait := every; ; {
		backoff.Sleep(h, wait, nil)
		if h.Err() != nil {
			return
		}
		sent := e.now()
		ctx, cancel := context.WithTimeout(h, max(every, minRenewTimeout))
		held, err := e.cfg.Client.Renew(ctx, e.cfg.Name, h.token)
		cancel()
		switch {
		case err == nil && held:
			h.extend(sent)
			pause.Reset()
			wait = max(0, every-e.now().Sub(sent))
		case err == nil:
			h.cancel(fmt.Errorf("%w: it has expired, or was deleted", ErrLost))
		default:
			e.cfg.Logger.Debug("cannot renew the lease", "err", err)
			wait = pause.Next()
		}
	}
}

// Held is the context of work that needs a lease. It ends at the latest when
// nine tenths of the duration have passed since the last successful renewal was
// sent. The lease expires only after the whole duration. The time is measured
// by the monotonic clock, which a change of the wall clock does not move.
//
// A process that is stopped, for example by SIGSTOP or by its hypervisor, does
// not run its timers. Therefore Err compares the clock with the deadline at
// each call: the first call after the stop returns an error. Work calls Err
// before each step that only the holder may do. A context that is derived from
// a Held ends by timer, which may be a moment later.
//
// No check in the holder can cover all cases: the process may stop between the
// check and the step, a request may be delayed in the network, and the
// monotonic clock of Linux stands still while the machine is suspended. A
// system that must not accept a step of an earlier holder compares fencing
// tokens: each step carries Token, and the system rejects a token below the
// highest one that it has received.
type Held struct {
	cancelable context.Context
	cancel     context.CancelCauseFunc
	now        func() time.Time
	token      uint64
	duration   time.Duration

	mu       sync.Mutex
	deadline time.Time
	timer    *time.Timer
}

func newHeld(ctx context.Context, now func() time.Time, g Grant, sent time.Time) *Held {
	h := &Held{now: now, token: g.Token, duration: g.Duration}
	h.cancelable, h.cancel = context.WithCancelCause(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deadline = h.deadlineAfter(sent)
	h.timer = time.AfterFunc(h.deadline.Sub(now()), func() { h.expire() })
	return h
}

// Token returns the fencing token. Each later holder of the lease has a higher
// token, also after the lease was deleted and created again.
func (h *Held) Token() uint64 { return h.token }

func (h *Held) deadlineAfter(sent time.Time) time.Time {
	return sent.Add(h.duration - h.duration/marginPart)
}

// extend moves the deadline after a renewal that was sent at the given time.
func (h *Held) extend(sent time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cancelable.Err() == nil {
		h.deadline = h.deadlineAfter(sent)
		h.timer.Reset(h.deadline.Sub(h.now()))
	}
}

// expire cancels the context if the deadline has passed.
func (h *Held) expire() {
	h.mu.Lock()
	left := h.deadline.Sub(h.now())
	if left > 0 { // extended while the timer fired
		h.timer.Reset(left)
	}
	h.mu.Unlock()
	if left <= 0 {
		h.cancel(fmt.Errorf("%w: it could not be renewed in time", ErrLost))
	}
}

// Err implements context.Context.
func (h *Held) Err() error {
	if err := h.cancelable.Err(); err != nil {
		return err
	}
	h.mu.Lock()
	passed := !h.now().Before(h.deadline)
	h.mu.Unlock()
	if passed {
		h.expire()
	}
	return h.cancelable.Err()
}

// Done implements context.Context.
func (h *Held) Done() <-chan struct{} { return h.cancelable.Done() }

// Deadline implements context.Context. It returns the deadline of the context
// of Run, because each renewal moves the deadline of the lease.
func (h *Held) Deadline() (time.Time, bool) { return h.cancelable.Deadline() }

// Value implements context.Context.
func (h *Held) Value(key any) any { return h.cancelable.Value(key) }
