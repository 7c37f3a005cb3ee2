// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/wanfed"
)

var errDown = errors.New("down")

func hopsTo(dc string, addrs ...string) *wanfed.AddressBook {
	r := &wanfed.AddressBook{Paths: map[string][]wanfed.Path{}}
	for _, a := range addrs {
		r.Paths[dc] = append(r.Paths[dc], wanfed.Path{Addr: a})
	}
	return r
}

// newTestRedial gives a redial, and a function that changes its address book.
func newTestRedial() (*redial, func(*wanfed.AddressBook)) {
	book := &wanfed.SharedAddressBook{}
	r := newRedial("dc1", book)
	return r, func(now *wanfed.AddressBook) {
		old := book.Load()
		book.Store(now)
		r.routesChanged(old, now)
	}
}

func TestRedialPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, change := newTestRedial()
		key := connKey{dc: "dc2"}
		var at []time.Duration
		began := time.Now()
		for range 9 {
			_ = r.do(t.Context(), key, func(context.Context) error {
				at = append(at, time.Since(began))
				return errDown
			})
		}
		want := []time.Duration{0, 50, 150, 350, 750, 1550, 3150, 5150, 7150}
		for i := range want {
			want[i] *= time.Millisecond
		}
		if !slices.Equal(at, want) {
			t.Errorf("dialed at %v, want %v", at, want)
		}

		// News end the pause, and pauses are short again.
		began = time.Now()
		time.AfterFunc(time.Second, func() { change(hopsTo("dc2", "a:1")) })
		if err := r.do(t.Context(), key, func(context.Context) error { return nil }); err != nil || time.Since(began) != time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		change(hopsTo("dc3", "a:1")) // of another datacenter: none of dc2
		if err := r.do(t.Context(), key, func(context.Context) error { return nil }); err != nil || time.Since(began) != time.Second {
			t.Errorf("after a success there is a pause: %v", time.Since(began))
		}
	})
}

func TestRedialBeginsAnewWithOtherWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, change := newTestRedial()
		change(hopsTo("dc2", "dead:1"))
		began, dials := time.Now(), 0
		time.AfterFunc(time.Second, func() { r.heardOf("dc2") }) // the ways are as they were
		time.AfterFunc(2*time.Second, func() { change(hopsTo("dc2", "new:1")) })
		err := r.do(t.Context(), connKey{dc: "dc2"}, func(ctx context.Context) error {
			if dials++; dials == 3 {
				return nil
			}
			<-ctx.Done() // a dial that hangs: the second one passed a gateway that had not heard yet
			return context.Cause(ctx)
		})
		if err != nil || dials != 3 || time.Since(began) != 2*time.Second+waysSettle {
			t.Errorf("%d dials, %v, done after %v", dials, err, time.Since(began))
		}
	})
}

func TestRedialObeysItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newTestRedial()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		hang := func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }
		if err := r.do(ctx, connKey{dc: "dc2"}, hang); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("do() = %v", err)
		}
		if err := r.do(ctx, connKey{dc: "dc2"}, hang); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("do() in its pause = %v", err)
		}
	})
}

func TestRedialContacts(t *testing.T) {
	r, _ := newTestRedial()
	fails, works := func(context.Context) error { return errDown }, func(context.Context) error { return nil }
	_, changed := r.contacts()
	_ = r.do(t.Context(), connKey{dc: "dc2"}, works)
	select {
	case <-changed:
		t.Error("a dial that works, after none that failed, changes nothing")
	default:
	}
	_ = r.do(t.Context(), connKey{dc: "dc2"}, fails)
	<-changed
	if now, _ := r.contacts(); !now["dc2"].Unreachable || now["dc2"].Recoveries != 0 {
		t.Errorf("after a failure: %+v", now)
	}
	_ = r.do(t.Context(), connKey{dc: "dc2"}, works)
	_ = r.do(t.Context(), connKey{dc: "dc2", node: "srv1"}, fails) // a certain server: says nothing of the datacenter
	if now, _ := r.contacts(); now["dc2"].Unreachable || now["dc2"].Recoveries != 1 {
		t.Errorf("after a success: %+v", now)
	}
}
