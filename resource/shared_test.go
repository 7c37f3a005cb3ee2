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

// clock is a question that takes a second, and whose answer is how often it was asked when it began.
type clock struct {
	shared[int]
	asked int
	err   error
}

func newClock() *clock {
	c := &clock{}
	c.ask = func(ctx context.Context) (int, error) {
		c.asked++ // one at a time
		n := c.asked
		select {
		case <-time.After(time.Second):
			return n, c.err
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return c
}

// get asks after a delay, with a limit, and says what came when.
func (c *clock) after(wg *sync.WaitGroup, delay, limit time.Duration, check func(n int, took time.Duration, err error)) {
	wg.Go(func() {
		time.Sleep(delay)
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		start := time.Now()
		n, err := c.get(ctx)
		check(n, time.Since(start), err)
	})
}

func TestSharedAnswersOfLaterQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock()
		var wg sync.WaitGroup
		expect := func(who string, n int, took time.Duration) func(int, time.Duration, error) {
			return func(gotN int, gotTook time.Duration, err error) {
				if gotN != n || gotTook != took || err != nil {
					t.Errorf("%s: answer %d after %v (%v), want %d after %v", who, gotN, gotTook, err, n, took)
				}
			}
		}
		c.after(&wg, 0, time.Minute, expect("first", 1, time.Second))
		for range 5 { // while it is asked: all of them the next
			c.after(&wg, 100*time.Millisecond, time.Minute, expect("meanwhile", 2, 1900*time.Millisecond))
		}
		c.after(&wg, 1500*time.Millisecond, time.Minute, expect("during the second", 3, 1500*time.Millisecond))
		c.after(&wg, 10*time.Second, time.Minute, expect("alone", 4, time.Second))
		wg.Wait()
		if c.asked != 4 || c.now != nil || c.next != nil {
			t.Errorf("asked %d times, left %v %v", c.asked, c.now, c.next)
		}
	})
}

// The context of who asks ends for nobody else, and who leaves takes nobody's turn along.
func TestSharedContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock()
		var wg sync.WaitGroup
		ended := func(took time.Duration) func(int, time.Duration, error) {
			return func(_ int, got time.Duration, err error) {
				if got != took || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("ended after %v with %v, want %v", got, err, took)
				}
			}
		}
		fine := func(_ int, _ time.Duration, err error) {
			if err != nil {
				t.Errorf("answer: %v", err)
			}
		}
		c.after(&wg, 0, 500*time.Millisecond, ended(500*time.Millisecond)) // asks for itself
		c.after(&wg, 100*time.Millisecond, 200*time.Millisecond, ended(200*time.Millisecond))
		c.after(&wg, 100*time.Millisecond, 600*time.Millisecond, func(_ int, got time.Duration, err error) { // has the turn, or not
			if got > 600*time.Millisecond || err == nil {
				t.Errorf("after %v: %v", got, err)
			}
		})
		for range 3 {
			c.after(&wg, 100*time.Millisecond, time.Minute, fine)
		}
		wg.Wait()
		// All who waited for the turn have gone before it came.
		c.after(&wg, 0, time.Minute, fine)
		c.after(&wg, 100*time.Millisecond, 300*time.Millisecond, ended(300*time.Millisecond))
		wg.Wait()
		c.after(&wg, 0, time.Minute, fine)
		wg.Wait()
		if c.now != nil || c.next != nil {
			t.Errorf("left %v %v", c.now, c.next)
		}
	})
}

// The turn comes to one who has just left: the next one takes it, and with nobody there the question is not put.
func TestSharedTurnOfWhoHasLeft(t *testing.T) {
	c := newClock()
	a := newAsking[int]()
	a.waiters = 1
	c.now = newAsking[int]()
	c.next = a
	c.mu.Lock()
	c.finishLocked(c.now)
	c.mu.Unlock()
	c.leave(a)
	if c.now != nil || c.asked != 0 {
		t.Error("a question without askers is still there")
	}
	select {
	case <-a.done:
	default:
		t.Error("not ended")
	}
}

func TestSharedErrorIsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock()
		c.err = ErrNotLeader
		var wg sync.WaitGroup
		for range 4 {
			c.after(&wg, 0, time.Minute, func(_ int, _ time.Duration, err error) {
				if !errors.Is(err, ErrNotLeader) {
					t.Errorf("error %v", err)
				}
			})
		}
		wg.Wait()
		if c.asked > 2 { // once, if all came before it was put
			t.Errorf("asked %d times", c.asked)
		}
	})
}
