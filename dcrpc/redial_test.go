// SPDX-License-Identifier: MPL-2.0

package dcrpc

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/connectivity"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/wanfed"
)

var errDown = errors.New("down")

// newTestClient returns a client of dc1 without a tunnel, and a function that
// changes its address book.
func newTestClient() (*Client, func(*wanfed.AddressBook)) {
	book := &wanfed.SharedAddressBook{}
	c := New(Config{DC: "dc1", PrimaryDC: "dc1", Book: book})
	return c, func(now *wanfed.AddressBook) {
		old := book.Load()
		book.Store(now)
		c.bookChanged(old, now)
	}
}

// addConn makes the connection of key dial with dial.
func (c *Client) addConn(t *testing.T, key connKey, dial func(ctx context.Context) (net.Conn, error)) *conn {
	t.Helper()
	cc := &conn{key: key, maxBackoff: maxBackoff}
	cc.retired, cc.retire = context.WithCancel(t.Context())
	var err error
	cc.ClientConn, err = api.NewGRPCClient(func(ctx context.Context) (net.Conn, error) { return c.redial(ctx, cc, dial) }, dialAtOnce)
	if err != nil {
		t.Fatal(err)
	}
	c.conns[key] = cc
	if key.dc != c.cfg.DC {
		c.running.Go(func() { c.follow(cc) })
	}
	return cc
}

func pathsTo(dc string, addrs ...string) *wanfed.AddressBook {
	r := &wanfed.AddressBook{Paths: map[string][]wanfed.Path{}}
	for _, a := range addrs {
		r.Paths[dc] = append(r.Paths[dc], wanfed.Path{Addr: a})
	}
	return r
}

// TestBackoff_EndsWithNews lets dials fail: the pauses between them double up to a
// limit, and news of the datacenter end a pause and make the next ones short.
func TestBackoff_EndsWithNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, change := newTestClient()
		began := time.Now()
		var mu sync.Mutex
		var all []time.Duration
		dials := func() []time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(all)
		}
		cc := c.addConn(t, connKey{dc: "dc2"}, func(context.Context) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, time.Since(began))
			return nil, errDown
		})
		cc.Connect()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		dialed, want := dials(), minBackoff
		for i := 1; i < len(dialed); i++ {
			if got := dialed[i] - dialed[i-1]; got < want || got > want*5/4+10*time.Millisecond {
				t.Errorf("pause %d = %v, want %v and up to a quarter more", i, got, want)
			}
			want = min(2*want, maxBackoff)
		}
		if len(dialed) < 10 {
			t.Errorf("%d dials in 20 s, want at least 10", len(dialed))
		}

		change(pathsTo("dc3", "a:1"))
		synctest.Wait()
		before, at := len(dials()), time.Since(began)
		change(pathsTo("dc2", "a:1"))
		synctest.Wait()
		if dialed = dials(); len(dialed) != before+1 || dialed[before] != at {
			t.Fatalf("dials after news at %v: %v, want one at once", at, dialed[before:])
		}
		time.Sleep(minBackoff*5/4 + 10*time.Millisecond)
		synctest.Wait()
		if n := len(dials()); n != before+2 {
			t.Errorf("%d dials in a short pause after news, want 2", n-before)
		}
		if now, _ := c.Reachability(); !now["dc2"].Unreachable {
			t.Error("a datacenter that cannot be dialed is not lost")
		}
		if err := c.close(); err != nil {
			t.Error(err)
		}
	})
}

// TestRedial_OtherPaths restarts a dial when the datacenter has other paths, but
// not for news that leave the paths as they are.
func TestRedial_OtherPaths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, change := newTestClient()
		change(pathsTo("dc2", "dead:1"))
		began, dials := time.Now(), 0
		time.AfterFunc(time.Second, func() { c.news.Notify("dc2") })
		time.AfterFunc(2*time.Second, func() { change(pathsTo("dc2", "new:1")) })
		_, err := c.redial(t.Context(), &conn{key: connKey{dc: "dc2"}, maxBackoff: maxBackoff}, func(ctx context.Context) (net.Conn, error) {
			if dials++; dials == 3 {
				return nil, nil
			}
			<-ctx.Done() // a dial that hangs: the second passed a gateway that did not have the news yet
			return nil, context.Cause(ctx)
		})
		if err != nil || dials != 3 || time.Since(began) != 2*time.Second+settleTime {
			t.Errorf("redial() = %v after %d dials and %v, want nil after 3 and %v", err, dials, time.Since(began), 2*time.Second+settleTime)
		}
	})
}

// TestRedial_NewsDuringDial: news during a failed dial prevent the pause after it.
func TestRedial_NewsDuringDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newTestClient()
		cc := &conn{key: connKey{dc: "dc2"}, maxBackoff: maxBackoff}
		began := time.Now()
		_, err := c.redial(t.Context(), cc, func(context.Context) (net.Conn, error) {
			c.PeerConnected("dc2")
			return nil, errDown
		})
		if !errors.Is(err, errDown) {
			t.Fatalf("redial() = %v, want %v", err, errDown)
		}
		_, err = c.redial(t.Context(), cc, func(context.Context) (net.Conn, error) { return nil, nil })
		if took := time.Since(began); err != nil || took != 0 {
			t.Errorf("redial() = %v after %v, want nil at once", err, took)
		}
	})
}

func TestRedial_Deadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newTestClient()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.redial(ctx, &conn{key: connKey{dc: "dc2"}, maxBackoff: maxBackoff}, func(ctx context.Context) (net.Conn, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("redial() = %v, want %v", err, context.DeadlineExceeded)
		}
	})
}

func TestReachability_Changes(t *testing.T) {
	r := newReachability()
	_, changed := r.load()
	r.set("dc2", true)
	select {
	case <-changed:
		t.Error("a first success is reported as a change")
	default:
	}
	r.set("dc2", false)
	<-changed
	if now, _ := r.load(); now["dc2"] != (Reachability{Unreachable: true}) {
		t.Errorf("after a failure: %+v, want lost", now["dc2"])
	}
	r.set("dc2", true)
	r.set("dc2", true)
	if now, _ := r.load(); now["dc2"] != (Reachability{Recoveries: 1}) {
		t.Errorf("after two successes: %+v, want regained once", now["dc2"])
	}
}

// TestUnreachable_Lost: a datacenter without a path that works is lost after a
// moment, and there is news of it when a path works again.
func TestUnreachable_Lost(t *testing.T) {
	c, _ := newTestClient()
	since, now := map[string]time.Time{}, time.Now()
	step := func(after time.Duration, unreachable ...string) []string {
		now = now.Add(after)
		lost, wait := c.updateUnreachable(since, unreachable, now)
		if wait <= 0 {
			t.Errorf("wait = %v, want more than 0", wait)
		}
		slices.Sort(lost)
		return lost
	}
	if got := step(0, "dc2"); len(got) != 0 || c.keepsOpen("dc2") {
		t.Errorf("lost at once: %v, want none", got)
	}
	if got := step(lostAfter/2, "dc2", "dc3"); len(got) != 0 {
		t.Errorf("lost after %v: %v, want none", lostAfter/2, got)
	}
	if got := step(lostAfter/2, "dc2", "dc3"); !slices.Equal(got, []string{"dc2"}) || !c.keepsOpen("dc2") || c.keepsOpen("dc3") {
		t.Errorf("lost after %v: %v, want dc2", lostAfter, got)
	}
	news := c.news.Wait("dc2")
	if got := step(time.Second, "dc3"); !slices.Equal(got, []string{"dc3"}) {
		t.Errorf("lost when dc2 is back: %v, want dc3", got)
	}
	<-news
	if now, _ := c.Reachability(); now["dc2"].Unreachable || now["dc2"].Recoveries != 1 || !now["dc3"].Unreachable {
		t.Errorf("Reachability() = %+v, want dc2 regained once and dc3 lost", now)
	}
}

// TestRead_ReplacedWhileDialing: a read over a connection that is being dialed
// takes the next connection when that one is replaced, however long it has waited.
func TestRead_ReplacedWhileDialing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newTestClient()
		key := connKey{dc: "dc2"}
		hang := func(ctx context.Context) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		cc := c.addConn(t, key, hang)
		cc.Connect()
		done := make(chan error, 1)
		go func() {
			done <- c.Reader("dc2").Invoke(t.Context(), "/wanfed.v1.ServerService/Query", nil, nil)
		}()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(done) > 0 || cc.GetState() != connectivity.Connecting {
			t.Fatalf("Invoke() = %v while the connection is dialed, state %v", <-done, cc.GetState())
		}
		c.mu.Lock()
		delete(c.conns, key)
		c.mu.Unlock()
		c.addConn(t, key, func(context.Context) (net.Conn, error) { return nil, errDown })
		cc.retire()
		if err := <-done; err == nil || !strings.Contains(err.Error(), errDown.Error()) {
			t.Errorf("Invoke() = %v, want the error of the next connection", err)
		}
		cc.Close()
		if err := c.close(); err != nil {
			t.Error(err)
		}
	})
}
