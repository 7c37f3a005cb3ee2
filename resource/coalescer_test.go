// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// slowCounter is a coalescer of a function that takes a second and returns the
// number of its calls.
type slowCounter struct {
	coalescer[int]
	calls int
	err   error // error of each call
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

// getAfter calls get after a delay, with a timeout, and passes the result to
// check.
func (c *slowCounter) getAfter(
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

// TestCoalescer_SharesLaterCalls checks that a caller never gets the result of
// a call that began before the caller arrived.
func TestCoalescer_SharesLaterCalls(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		c := newSlowCounter()
		var wg sync.WaitGroup
		want := func(caller string, wantN int, wantTook time.Duration) func(int, time.Duration, error) {
			return func(n int, took time.Duration, err error) {
				if n != wantN || took != wantTook || err != nil {
					t.Errorf("%s: get() = %d, %v after %v, want %d after %v", caller, n, err, took, wantN, wantTook)
				}
			}
		}
		c.getAfter(&wg, 0, time.Minute, want("first", 1, time.Second))
		for range 5 {
			c.getAfter(&wg, 100*time.Millisecond, time.Minute, want("during the first call", 2, 1900*time.Millisecond))
		}
		c.getAfter(&wg, 1500*time.Millisecond, time.Minute, want("during the second call", 3, 1500*time.Millisecond))
		c.getAfter(&wg, 10*time.Second, time.Minute, want("later", 4, time.Second))
		wg.Wait()
		synctest.Wait()
		if c.calls != 4 || c.next != nil {
			t.Errorf("calls = %d, next = %v, want 4 calls and no next call", c.calls, c.next)
		}
	})
}

// TestCoalescer_Contexts checks that the end of one caller's context does not
// affect other callers.
func TestCoalescer_Contexts(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
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
				t.Errorf("get() = %v, want nil", err)
			}
		}
		c.getAfter(&wg, 0, 500*time.Millisecond, ends(500*time.Millisecond))
		c.getAfter(&wg, 100*time.Millisecond, 200*time.Millisecond, ends(200*time.Millisecond))
		c.getAfter(&wg, 100*time.Millisecond, 600*time.Millisecond, ends(600*time.Millisecond))
		for range 3 {
			c.getAfter(&wg, 100*time.Millisecond, time.Minute, succeeds)
		}
		wg.Wait()
		// The second call begins after the contexts of all its callers have
		// ended.
		c.getAfter(&wg, 0, time.Minute, succeeds)
		c.getAfter(&wg, 100*time.Millisecond, 300*time.Millisecond, ends(300*time.Millisecond))
		wg.Wait()
		c.getAfter(&wg, 0, time.Minute, succeeds)
		wg.Wait()
		synctest.Wait()
		if c.next != nil {
			t.Errorf("next = %v, want no next call", c.next)
		}
	})
}

// TestCoalescer_RetriesAfterTimeout checks that get calls the function again
// after a call has timed out, while its context has not ended.
func TestCoalescer_RetriesAfterTimeout(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
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
	testutil.Bubble(t, func(t *testing.T) {
		c := newSlowCounter()
		c.err = ErrNotLeader
		var wg sync.WaitGroup
		for range 4 {
			c.getAfter(&wg, 0, time.Minute, func(_ int, _ time.Duration, err error) {
				if !errors.Is(err, ErrNotLeader) {
					t.Errorf("get() = %v, want ErrNotLeader", err)
				}
			})
		}
		wg.Wait()
		if c.calls > 2 {
			t.Errorf("four callers made %d calls, want at most 2", c.calls)
		}
	})
}
