// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// slowCounter is a coalescer of a function that takes a second and returns how
// often it was called.
type slowCounter struct {
	coalescer[int]
	calls int
	err   error
}

func newSlowCounter() *slowCounter {
	c := &slowCounter{}
	c.call = func(ctx context.Context) (int, error) {
		c.calls++ // one call at a time
		n := c.calls
		select {
		case <-time.After(time.Second):
			return n, c.err
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return c
}

// after calls get after a delay, with a timeout, and checks the result.
func (c *slowCounter) after(
	wg *sync.WaitGroup, delay, timeout time.Duration, check func(n int, took time.Duration, err error),
) {
	wg.Go(func() {
		time.Sleep(delay)
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		start := time.Now()
		n, err := c.get(ctx)
		check(n, time.Since(start), err)
	})
}

// TestCoalescer_SharesLaterCalls checks that a caller never gets the result of a
// call that began before the caller arrived.
func TestCoalescer_SharesLaterCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSlowCounter()
		var wg sync.WaitGroup
		want := func(caller string, n int, took time.Duration) func(int, time.Duration, error) {
			return func(gotN int, gotTook time.Duration, err error) {
				if gotN != n || gotTook != took || err != nil {
					t.Errorf("%s: get() = %d, %v after %v, want %d after %v", caller, gotN, err, gotTook, n, took)
				}
			}
		}
		c.after(&wg, 0, time.Minute, want("first", 1, time.Second))
		for range 5 {
			c.after(&wg, 100*time.Millisecond, time.Minute, want("during the first call", 2, 1900*time.Millisecond))
		}
		c.after(&wg, 1500*time.Millisecond, time.Minute, want("during the second call", 3, 1500*time.Millisecond))
		c.after(&wg, 10*time.Second, time.Minute, want("later", 4, time.Second))
		wg.Wait()
		synctest.Wait()
		if c.calls != 4 || c.next != nil {
			t.Errorf("calls = %d, next = %v, want 4 calls and no next call", c.calls, c.next)
		}
	})
}

// TestCoalescer_Contexts checks that the end of one caller's context affects no
// other caller.
func TestCoalescer_Contexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSlowCounter()
		var wg sync.WaitGroup
		ends := func(want time.Duration) func(int, time.Duration, error) {
			return func(_ int, took time.Duration, err error) {
				if took != want || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("get() = %v after %v, want DeadlineExceeded after %v", err, took, want)
				}
			}
		}
		succeeds := func(_ int, _ time.Duration, err error) {
			if err != nil {
				t.Errorf("get() = %v, want a result", err)
			}
		}
		c.after(&wg, 0, 500*time.Millisecond, ends(500*time.Millisecond))
		c.after(&wg, 100*time.Millisecond, 200*time.Millisecond, ends(200*time.Millisecond))
		c.after(&wg, 100*time.Millisecond, 600*time.Millisecond, ends(600*time.Millisecond))
		for range 3 {
			c.after(&wg, 100*time.Millisecond, time.Minute, succeeds)
		}
		wg.Wait()
		// All callers that waited for the second call have left before it began.
		c.after(&wg, 0, time.Minute, succeeds)
		c.after(&wg, 100*time.Millisecond, 300*time.Millisecond, ends(300*time.Millisecond))
		wg.Wait()
		c.after(&wg, 0, time.Minute, succeeds)
		wg.Wait()
		synctest.Wait()
		if c.next != nil {
			t.Errorf("next = %v, want no next call", c.next)
		}
	})
}

// TestCoalescer_RetriesAfterTimeout checks that a caller with time left outlives
// a call that timed out.
func TestCoalescer_RetriesAfterTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		c := coalescer[int]{call: func(ctx context.Context) (int, error) {
			if calls++; calls == 1 {
				<-ctx.Done()
				return 0, ctx.Err()
			}
			return calls, nil
		}}
		start := time.Now()
		if n, err := c.get(t.Context()); n != 2 || err != nil || time.Since(start) != coalesceTimeout {
			t.Errorf("get() = %d, %v after %v, want 2 after %v", n, err, time.Since(start), coalesceTimeout)
		}
	})
}

// TestCoalescer_SharesErrors checks that concurrent callers share an error.
func TestCoalescer_SharesErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSlowCounter()
		c.err = ErrNotLeader
		var wg sync.WaitGroup
		for range 4 {
			c.after(&wg, 0, time.Minute, func(_ int, _ time.Duration, err error) {
				if !errors.Is(err, ErrNotLeader) {
					t.Errorf("get() = %v, want ErrNotLeader", err)
				}
			})
		}
		wg.Wait()
		if c.calls > 2 {
			t.Errorf("calls = %d, want at most 2", c.calls)
		}
	})
}
