// SPDX-License-Identifier: MPL-2.0

package dcrpc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/connectivity"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/wanfed"
)

var errDown = errors.New("down")

// newTestClient returns a Client of dc1 without a tunnel, and a function that
// changes its address book.
func newTestClient() (c *Client, setBook func(*wanfed.AddressBook)) {
	book := &wanfed.SharedAddressBook{}
	c = New(Config{DC: "dc1", PrimaryDC: "dc1", Book: book})
	return c, func(now *wanfed.AddressBook) {
		old := book.Load()
		book.Store(now)
		c.bookChanged(old, now)
	}
}

// addConn adds the connection of key. The connection calls dial to connect.
func (c *Client) addConn(t *testing.T, key connKey, dial func(ctx context.Context) (net.Conn, error)) *conn {
	t.Helper()
	cc := &conn{key: key, maxBackoff: maxBackoff}
	cc.retired, cc.retire = context.WithCancel(t.Context())
	var err error
	cc.ClientConn, err = api.NewGRPCClient(func(ctx context.Context) (net.Conn, error) {
		return c.redial(ctx, cc, func(ctx context.Context, _ *conn) (net.Conn, error) { return dial(ctx) })
	}, dialAtOnce)
	if err != nil {
		t.Fatal(err)
	}
	c.conns[key] = cc
	if key.dc != c.cfg.DC {
		c.running.Go(func() { c.watchState(cc) })
	}
	return cc
}

// pathsTo returns an address book with paths to dc.
func pathsTo(dc string, addrs ...string) *wanfed.AddressBook {
	book := &wanfed.AddressBook{Paths: map[string][]wanfed.Path{}}
	for _, a := range addrs {
		book.Paths[dc] = append(book.Paths[dc], wanfed.Path{Addr: a})
	}
	return book
}

// dialLog records the times of dials, relative to its creation.
type dialLog struct {
	start time.Time
	mu    sync.Mutex
	times []time.Duration
}

// fail records a dial and returns errDown.
func (l *dialLog) fail(context.Context) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.times = append(l.times, time.Since(l.start))
	return nil, errDown
}

func (l *dialLog) all() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.times)
}

// TestBackoff_EndsWithEvent proves that the pauses between failed dials double
// up to a limit, and that an event of the datacenter ends a pause and makes the
// next pause short.
func TestBackoff_EndsWithEvent(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		c, setBook := newTestClient()
		log := &dialLog{start: time.Now()}
		cc := c.addConn(t, connKey{dc: "dc2"}, log.fail)
		cc.Connect()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		wantDoublingPauses(t, log.all())

		setBook(pathsTo("dc3", "a:1")) // an event of another datacenter
		synctest.Wait()
		before, eventTime := len(log.all()), time.Since(log.start)
		setBook(pathsTo("dc2", "a:1"))
		synctest.Wait()
		if dials := log.all(); len(dials) != before+1 || dials[before] != eventTime {
			t.Fatalf("dials after the event at %v = %v, want one dial at %v", eventTime, dials[before:], eventTime)
		}
		time.Sleep(minBackoff*5/4 + 10*time.Millisecond)
		synctest.Wait()
		if got := len(log.all()) - before; got != 2 {
			t.Errorf("dials since the event, after %v = %d, want 2", minBackoff, got)
		}
		if got, _ := c.Reachability(); !got["dc2"].Unreachable {
			t.Errorf("Reachability() = %+v after failed dials, want dc2 unreachable", got)
		}
		if err := c.close(); err != nil {
			t.Errorf("close() = %v, want nil", err)
		}
	})
}

func wantDoublingPauses(t *testing.T, dials []time.Duration) {
	t.Helper()
	want := minBackoff
	for i := 1; i < len(dials); i++ {
		if got := dials[i] - dials[i-1]; got < want || got > want*5/4+10*time.Millisecond {
			t.Errorf("pause %d = %v, want %v to %v", i, got, want, want*5/4)
		}
		want = min(2*want, maxBackoff)
	}
	if len(dials) < 10 {
		t.Errorf("dials in 20 s = %d, want at least 10", len(dials))
	}
}

// TestRedial_PathsChange proves that a change of the paths restarts a dial, and
// that an event without such a change does not.
func TestRedial_PathsChange(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		c, setBook := newTestClient()
		setBook(pathsTo("dc2", "dead:1"))
		start, dials := time.Now(), 0
		time.AfterFunc(time.Second, func() { c.events.Notify("dc2") })
		time.AfterFunc(2*time.Second, func() { setBook(pathsTo("dc2", "new:1")) })
		_, err := c.redial(t.Context(), &conn{key: connKey{dc: "dc2"}, maxBackoff: maxBackoff},
			func(ctx context.Context, _ *conn) (net.Conn, error) {
				if dials++; dials == 3 { // restarted after settleTime, and succeeds
					return nil, nil
				}
				<-ctx.Done() // the second dial hangs, as through a gateway without the new paths
				return nil, context.Cause(ctx)
			})
		took, want := time.Since(start), 2*time.Second+settleTime
		if err != nil || dials != 3 || took != want {
			t.Errorf("redial() = %v after %d dials and %v, want nil after 3 dials and %v", err, dials, took, want)
		}
	})
}

// TestRedial_EventDuringDial proves that there is no pause after a failed dial
// if an event arrived during the dial.
func TestRedial_EventDuringDial(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		c, _ := newTestClient()
		cc := &conn{key: connKey{dc: "dc2"}, maxBackoff: maxBackoff}
		start := time.Now()
		_, err := c.redial(t.Context(), cc, func(context.Context, *conn) (net.Conn, error) {
			c.PeerConnected("dc2")
			return nil, errDown
		})
		if !errors.Is(err, errDown) {
			t.Fatalf("redial() = %v, want %v", err, errDown)
		}
		_, err = c.redial(t.Context(), cc, func(context.Context, *conn) (net.Conn, error) { return nil, nil })
		if took := time.Since(start); err != nil || took != 0 {
			t.Errorf("redial() = %v after %v, want nil after 0s", err, took)
		}
	})
}

func TestRedial_Deadline(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		c, _ := newTestClient()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.redial(ctx, &conn{key: connKey{dc: "dc2"}, maxBackoff: maxBackoff},
			func(ctx context.Context, _ *conn) (net.Conn, error) {
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
		t.Error("set(dc2, true) closed the channel of load(), want no change for the first success")
	default:
	}
	r.set("dc2", false)
	<-changed
	if got, _ := r.load(); got["dc2"] != (Reachability{Unreachable: true}) {
		t.Errorf("load() = %+v after a failure, want dc2 unreachable", got)
	}
	r.set("dc2", true)
	r.set("dc2", true)
	if got, _ := r.load(); got["dc2"] != (Reachability{Recoveries: 1}) {
		t.Errorf("load() = %+v after two successes, want dc2 reachable with 1 recovery", got)
	}
}

// TestUpdateUnreachable proves that a datacenter without a working path becomes
// unreachable after unreachableAfter, and that its recovery is an event.
func TestUpdateUnreachable(t *testing.T) {
	c, _ := newTestClient()
	since, now := map[string]time.Time{}, time.Now()
	event := c.events.Wait("dc2")
	for _, step := range []struct {
		after   time.Duration // since the step above
		failing []string      // datacenters without a working path
		want    []string      // unreachable datacenters, which keep their connections open
	}{
		{0, []string{"dc2"}, nil},
		{unreachableAfter / 2, []string{"dc2", "dc3"}, nil},
		{unreachableAfter / 2, []string{"dc2", "dc3"}, []string{"dc2"}},
		{time.Second, []string{"dc3"}, []string{"dc3"}},
	} {
		now = now.Add(step.after)
		got, wait := c.updateUnreachable(since, step.failing, now)
		slices.Sort(got)
		if !slices.Equal(got, step.want) || wait <= 0 {
			t.Errorf("updateUnreachable(%v) = %v, %v, want %v and a positive wait", step.failing, got, wait, step.want)
		}
		for _, dc := range []string{"dc2", "dc3"} {
			if got, want := c.keepsOpen(dc), slices.Contains(step.want, dc); got != want {
				t.Errorf("keepsOpen(%s) = %v, want %v", dc, got, want)
			}
		}
	}
	<-event
	want := map[string]Reachability{"dc2": {Recoveries: 1}, "dc3": {Unreachable: true}}
	if got, _ := c.Reachability(); !maps.Equal(got, want) {
		t.Errorf("Reachability() = %+v, want %+v", got, want)
	}
}

// TestRead_ReplacedWhileDialing proves that a read whose connection is being
// dialed uses the next connection when the first connection is replaced.
func TestRead_ReplacedWhileDialing(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
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
			t.Fatalf("finished calls = %d in state %v, want 0 in %v", len(done), cc.GetState(), connectivity.Connecting)
		}
		c.mu.Lock()
		delete(c.conns, key)
		c.mu.Unlock()
		c.addConn(t, key, func(context.Context) (net.Conn, error) { return nil, errDown })
		cc.retire()
		if err := <-done; err == nil || !strings.Contains(err.Error(), errDown.Error()) {
			t.Errorf("Invoke() = %v, want the error of the next connection, %v", err, errDown)
		}
		cc.Close()
		if err := c.close(); err != nil {
			t.Errorf("close() = %v, want nil", err)
		}
	})
}

// TestKeepsOpen_Few checks that a Client keeps connections to unreachable datacenters
// open only while they are few. The primary is not one of them.
func TestKeepsOpen_Few(t *testing.T) {
	c, _ := newTestClient()
	for i := range maxKeptOpen {
		c.reach.set(fmt.Sprint("other", i), false)
	}
	if !c.keepsOpen("other0") {
		t.Errorf("keepsOpen() with %d unreachable datacenters = false, want true", maxKeptOpen)
	}
	c.reach.set("one-more", false)
	if c.keepsOpen("other0") {
		t.Errorf("keepsOpen() with %d unreachable datacenters = true, want false", maxKeptOpen+1)
	}
	c.cfg.PrimaryDC = "other0"
	if !c.keepsOpen("other0") {
		t.Error("keepsOpen() of the primary = false, want true")
	}
}
