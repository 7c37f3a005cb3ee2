// SPDX-License-Identifier: MPL-2.0

package upstream

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

func TestOrder_EjectsAndProbes(t *testing.T) {
	now := time.Now()
	const ejectFor = 8 * time.Second // the first pause is one second
	tr := &tracker{}
	check := func(start int, at time.Duration, want, wantProbe string) {
		t.Helper()
		got, probe := tr.order([]string{"a", "b", "c", "d"}, start, now.Add(at), ejectFor)
		if strings.Join(got, "") != want || probe != wantProbe {
			t.Errorf("order(%d) after %v = %s, %q; want %s, %q", start, at, strings.Join(got, ""), probe, want, wantProbe)
		}
	}
	failed := func(addr string, at time.Duration) { tr.failed(addr, 0, now.Add(at), ejectFor) }
	check(0, 0, "abcd", "")
	check(2, 0, "cdab", "")
	failed("a", 0)
	failed("c", ms)
	check(0, 900*ms, "bdac", "")
	check(2, 900*ms, "dbac", "")
	check(0, 1001*ms, "bdac", "a") // each is probed by one caller
	check(0, 1001*ms, "bdac", "c")
	check(0, 1001*ms, "bdac", "")
	failed("a", 1100*ms) // the outcome of the probe
	check(0, 3000*ms, "bdac", "")
	check(0, 3001*ms, "bdac", "a") // two seconds after the first
	tr.worked("a", ms)
	tr.worked("c", ms)
	check(0, 3001*ms, "abcd", "")
	failed("a", 3100*ms) // it failed again soon: the pause is the longest one
	check(0, 11000*ms, "bcda", "")
	check(0, 11100*ms, "bcda", "a")
	tr.worked("a", ms)
	check(0, time.Minute, "abcd", "")
	for _, a := range []string{"a", "b", "c", "d"} {
		failed(a, time.Minute)
	}
	check(1, time.Minute, "bcda", "")
	check(1, time.Minute+2*time.Second, "bcda", "") // no probe: all are tried anyway
	check(1, time.Minute+time.Second+ejectFor, "bcda", "")
}

func TestOrder_EndsEjectionWithoutProbe(t *testing.T) {
	now := time.Now()
	tr := &tracker{}
	tr.failed("a", 0, now, 8*time.Second)
	if got, probe := tr.order([]string{"a", "b"}, 0, now.Add(9*time.Second), 8*time.Second); got[0] != "a" || probe != "" {
		t.Errorf("order() = %v, %q; want a first and no probe: the ejection is over", got, probe)
	}
}

func TestTracker_BoundsUnusedAddresses(t *testing.T) {
	tr := &tracker{}
	for i := range maxUnused + 10 {
		tr.failed(fmt.Sprint(i), 0, time.Now(), time.Second)
	}
	if n := len(tr.addrs); n > maxUnused {
		t.Errorf("%d addresses are tracked, want at most %d", n, maxUnused)
	}
}

func TestTracker_KeepsAddressesInUse(t *testing.T) {
	d := &Dialer{}
	tr := &d.tracker
	var open []*Address
	for i := range 2 * maxUnused {
		a, _, err := tr.begin(fmt.Sprint("open", i), 1, time.Second, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		tr.opened(a, ms)
		open = append(open, a)
		tr.failed(fmt.Sprint("failed", i), 0, time.Now(), time.Second)
	}
	if n := len(tr.addrs); n > 5*maxUnused {
		t.Errorf("%d addresses are tracked while %d are in use, want at most %d", n, len(open), 5*maxUnused)
	}
	for i, a := range open {
		if _, _, err := tr.begin(fmt.Sprint("open", i), 1, time.Second, time.Now()); err == nil {
			t.Fatalf("connection %d does not count any more", i)
		}
		d.Closed(a)
	}
	for i := range 2 * maxUnused {
		tr.failed(fmt.Sprint("failed again", i), 0, time.Now(), time.Second)
	}
	if n := len(tr.addrs); n > 3*maxUnused {
		t.Errorf("%d addresses are tracked while none is in use, want at most %d", n, 3*maxUnused)
	}
}

func TestDelay_FollowsResponseTimes(t *testing.T) {
	tr := &tracker{}
	check := func(want time.Duration) {
		t.Helper()
		if got := tr.delay("a", 250*ms).Round(ms); got != want {
			t.Errorf("delay() = %v, want %v", got, want)
		}
	}
	check(250 * ms)
	for range 20 {
		tr.worked("a", 2*ms)
	}
	check(52 * ms)
	tr.failed("a", 60*ms, time.Now(), time.Second) // it took longer than it was given
	check(110 * ms)
	for range 50 {
		tr.worked("a", 165*ms) // a round trip of 160 ms
	}
	check(215 * ms)
	for range 10 {
		tr.worked("a", time.Second)
	}
	check(250 * ms)
}

func TestOrder_LeastConnections(t *testing.T) {
	d, now, addrs := &Dialer{}, time.Now(), []string{"a", "b", "c"}
	tr := &d.tracker
	check := func(start int, want string) {
		t.Helper()
		if got, _ := tr.order(addrs, start, now, 8*time.Second); got[0] != want {
			t.Errorf("order(%d) = %v, want %s first", start, got, want)
		}
	}
	open := map[string][]*Address{}
	begin := func(addr string) *Address {
		a, _, err := tr.begin(addr, 0, time.Second, now)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	add := func(addr string) {
		a := begin(addr)
		tr.opened(a, ms)
		open[addr] = append(open[addr], a)
	}
	for n, addr := range addrs { // equal addresses take turns
		check(n, addr)
	}
	for range 3 {
		add("a")
	}
	add("b")
	for n := range addrs {
		check(n, "c")
	}
	check(InOrder, "a")
	pending := begin("c") // a pending attempt counts
	check(0, "b")
	check(2, "c")
	tr.canceled(pending, false)
	check(0, "c")
	tr.failed("c", 0, now, 8*time.Second) // it is ejected, though it has the fewest
	check(2, "b")
	add("b")
	add("b")
	check(0, "a")
	check(1, "b")
	tr.failed("a", 0, now, 8*time.Second)
	tr.failed("b", 0, now, 8*time.Second)
	check(2, "c") // it failed at the same time as the others
	tr.worked("a", ms)
	d.Closed(open["b"][0])
	check(1, "a")
}

// Among equal addresses, those on the same continent come before a distant one.
func TestOrder_PrefersMuchFasterAddress(t *testing.T) {
	tr, now, addrs := &tracker{}, time.Now(), []string{"a", "b", "c"}
	for range 50 {
		tr.worked("a", 2*ms)
		tr.worked("b", 40*ms) // within the usual time of a
		tr.worked("c", 80*ms)
	}
	for start, want := range addrs {
		if want == "c" {
			want = "a"
		}
		if got, _ := tr.order(addrs, start, now, 8*time.Second); got[0] != want {
			t.Errorf("order(%d) = %v, want %s first", start, got, want)
		}
	}
	var busy []*Address
	for _, addr := range []string{"a", "b"} {
		a, _, _ := tr.begin(addr, 0, time.Second, now)
		busy = append(busy, a)
	}
	if got, _ := tr.order(addrs, 0, now, 8*time.Second); got[0] != "c" {
		t.Errorf("order() = %v, want c first: it is idle", got)
	}
	tr.canceled(busy[0], false)
	if got, _ := tr.order(addrs, 2, now, 8*time.Second); got[0] != "a" {
		t.Errorf("order() = %v, want a first: it is as idle as c", got)
	}
}

// All attempts to a dead address are lost. One client per AttemptDelay must be
// able to try it all the same.
func TestBegin_CircuitBreaker(t *testing.T) {
	tr, now := &tracker{}, time.Now()
	begin := func() error {
		_, _, err := tr.begin("a", 0, 250*ms, now)
		return err
	}
	for range 2 * maxTrial { // it is not known to be dead
		if err := begin(); err != nil {
			t.Fatal(err)
		}
	}
	tr.canceled(tr.addrs["a"], true)
	for range 3 {
		if err := begin(); !errors.Is(err, errOpenCircuit) {
			t.Errorf("begin() above the limit = %v, want %v", err, errOpenCircuit)
		}
		now = now.Add(250 * ms)
		if err := begin(); err != nil {
			t.Errorf("begin() after 250ms = %v, want nil", err)
		}
	}
	tr.worked("a", ms)
	for range 2 * maxTrial {
		if err := begin(); err != nil {
			t.Fatalf("begin() of an address that works = %v, want nil", err)
		}
	}
}
