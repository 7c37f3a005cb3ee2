// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fakeNet stands for upstreams that real loopback sockets cannot play: silent ones. It notes when each was dialled.
type fakeNet struct {
	began  time.Time
	answer map[string]time.Duration // negative: refuses after that long; absent: never answers

	mu  sync.Mutex
	log []string
}

func (f *fakeNet) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	f.mu.Lock()
	f.log = append(f.log, fmt.Sprintf("%s@%v", addr, time.Since(f.began)))
	f.mu.Unlock()
	d, ok := f.answer[addr]
	if !ok {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	select {
	case <-time.After(max(d, -d)):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if d < 0 {
		return nil, errors.New("refused")
	}
	c, other := net.Pipe()
	other.Close()
	return c, nil
}

func TestDialStagger(t *testing.T) {
	const ms = time.Millisecond
	tests := []struct {
		name   string
		answer map[string]time.Duration
		dials  []string
		took   time.Duration
		err    string
		after  string // order of the next connection
	}{
		{"first works", map[string]time.Duration{"a": 30 * ms}, []string{"a@0s"}, 30 * ms, "", "abc"},
		{"first refuses: the next at once", map[string]time.Duration{"a": -1 * ms, "b": 1 * ms}, []string{"a@0s", "b@1ms"}, 2 * ms, "", "bca"},
		{"first silent: the next after the stagger", map[string]time.Duration{"b": 10 * ms}, []string{"a@0s", "b@250ms"}, 260 * ms, "", "bca"},
		{"first slow, but faster than the second", map[string]time.Duration{"a": 300 * ms, "b": 100 * ms}, []string{"a@0s", "b@250ms"}, 300 * ms, "", "abc"},
		{"two silent", map[string]time.Duration{"c": 0}, []string{"a@0s", "b@250ms", "c@500ms"}, 500 * ms, "", "cab"},
		{"all refuse", map[string]time.Duration{"a": -2 * ms, "b": -1 * ms, "c": -1 * ms}, []string{"a@0s", "b@2ms", "c@3ms"}, 4 * ms,
			"dial a: refused\ndial b: refused\ndial c: refused", "abc"},
		{"all silent", nil, []string{"a@0s", "b@250ms", "c@500ms"}, 5500 * ms, "dial c: context deadline exceeded", "abc"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeNet{began: time.Now(), answer: tt.answer}
				d := &Dialer{Dial: f.dial, Timeout: 5 * time.Second, Stagger: 250 * ms, Memory: time.Minute}
				route := &target{Route: Route{To: []string{"a", "b", "c"}, Ordered: true}}
				won, _, err := d.target(t.Context(), route, request{})
				took := time.Since(f.began)
				if err == nil {
					won.conn.Close()
				}
				d.attempts.Wait()
				if took != tt.took {
					t.Errorf("took %v, want %v", took, tt.took)
				}
				if diff := cmp.Diff(tt.dials, f.log); diff != "" {
					t.Error(diff)
				}
				if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				if got, due := d.evidence.order(route.To, route.start(), time.Now(), d.Memory); strings.Join(got, "") != tt.after || due != "" {
					t.Errorf("next order %s, want %s; tried again: %q", got, tt.after, due)
				}
			})
		})
	}
}

func TestDialEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeNet{began: time.Now()}
		d := &Dialer{Dial: f.dial, Timeout: 5 * time.Second, Stagger: time.Hour, Memory: time.Minute}
		ctx, cancel := context.WithTimeout(t.Context(), 7*time.Millisecond)
		defer cancel()
		_, _, err := d.target(ctx, &target{Route: Route{To: []string{"a"}}}, request{})
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(f.began) != 7*time.Millisecond {
			t.Errorf("after %v: %v", time.Since(f.began), err)
		}
		d.attempts.Wait()
	})
}

func TestDialFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeNet{began: time.Now(), answer: map[string]time.Duration{"a": -1, "b": 0}}
		d := &Dialer{Dial: f.dial, Timeout: time.Second, Stagger: time.Second, Memory: time.Minute}
		for range 2 {
			c, addr, err := d.First(t.Context(), []string{"a", "b"})
			if err != nil || addr != "b" {
				t.Fatal(addr, err)
			}
			c.Close()
		}
		d.Wait()
		if got := len(f.log); got != 3 { // the second time b is first
			t.Errorf("dials: %v", f.log)
		}
		if _, _, err := d.First(t.Context(), []string{"a"}); err == nil || err.Error() != "dial a: refused" {
			t.Error(err)
		}
	})
}

func TestDialBalances(t *testing.T) {
	f := &fakeNet{began: time.Now(), answer: map[string]time.Duration{"a": 0, "b": 0, "c": 0}}
	d := &Dialer{Dial: f.dial, Timeout: time.Second, Stagger: time.Second}
	for _, ordered := range []bool{false, true} {
		tab := mustTable(t, Route{Match: "x.example", To: []string{"a:1", "b:1", "c:1"}, Ordered: ordered})
		route := tab.find([]byte("x.example"))
		route.To = []string{"a", "b", "c"}
		f.log = nil
		for range 9 {
			won, _, err := d.target(t.Context(), route, request{})
			if err != nil {
				t.Fatal(err)
			}
			won.conn.Close()
		}
		d.attempts.Wait()
		count := map[byte]int{}
		for _, l := range f.log {
			count[l[0]]++
		}
		want := map[byte]int{'a': 3, 'b': 3, 'c': 3}
		if ordered {
			want = map[byte]int{'a': 9}
		}
		if diff := cmp.Diff(want, count); diff != "" {
			t.Errorf("ordered %v: %s", ordered, diff)
		}
	}
}
