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
	d := &Dialer{EjectFor: ejectFor}
	check := func(start int, at time.Duration, want, wantProbe string) {
		t.Helper()
		got, probe := d.order([]string{"a", "b", "c", "d"}, start, now.Add(at))
		if strings.Join(got, "") != want || probe != wantProbe {
			t.Errorf("order(%d) after %v = %s, %q; want %s, %q", start, at, strings.Join(got, ""), probe,
				want, wantProbe)
		}
	}
	failed := func(addr string, at time.Duration) { d.failed(addr, 0, now.Add(at)) }
	check(0, 0, "abcd", "")
	check(2, 0, "cdab", "")
	failed("a", 0)
	failed("c", ms)
	check(0, 900*ms, "bdac", "")
	check(2, 900*ms, "dbac", "")
	check(0, 1001*ms, "bdac", "a") // one caller probes each address
	check(0, 1001*ms, "bdac", "c")
	check(0, 1001*ms, "bdac", "")
	failed("a", 1100*ms) // the outcome of the probe
	check(0, 3000*ms, "bdac", "")
	check(0, 3001*ms, "bdac", "a") // two seconds after the first
	d.worked("a", ms)
	d.worked("c", ms)
	check(0, 3001*ms, "abcd", "")
	failed("a", 3100*ms) // soon after its success: the pause is the longest
	check(0, 11000*ms, "bcda", "")
	check(0, 11100*ms, "bcda", "a")
	d.worked("a", ms)
	check(0, time.Minute, "abcd", "")
	for _, a := range []string{"a", "b", "c", "d"} {
		failed(a, time.Minute)
	}
	check(1, time.Minute, "bcda", "")
	check(1, time.Minute+2*time.Second, "bcda", "") // no probe: clients try all addresses
	check(1, time.Minute+time.Second+ejectFor, "bcda", "")
}

func TestOrder_EndsEjectionWithoutProbe(t *testing.T) {
	now := time.Now()
	d := &Dialer{EjectFor: 8 * time.Second}
	d.failed("a", 0, now)
	if got, probe := d.order([]string{"a", "b"}, 0, now.Add(9*time.Second)); got[0] != "a" || probe != "" {
		t.Errorf("order() after the ejection = %v, probe %q; want a first, no probe", got, probe)
	}
}

// TestFailed_CallsEjected checks that Ejected is called once per ejection, not
// for each failure of many clients.
func TestFailed_CallsEjected(t *testing.T) {
	now := time.Now()
	var ejected []string
	d := &Dialer{EjectFor: 8 * time.Second, Ejected: func(addr string) { ejected = append(ejected, addr) }}
	check := func(want string) {
		t.Helper()
		if got := strings.Join(ejected, ""); got != want {
			t.Errorf("Ejected was called for %q, want %q", got, want)
		}
	}
	for range 100 {
		d.failed("a", 0, now)
	}
	check("a")
	d.failed("b", 0, now)
	check("ab")
	d.failed("a", 0, now.Add(1001*ms)) // the probe of the address
	d.failed("a", 0, now.Add(1500*ms))
	check("aba")
	d.worked("a", ms)
	d.failed("a", 0, now.Add(1501*ms))
	check("abaa")
}

func TestTracker_BoundsUnusedAddresses(t *testing.T) {
	d := &Dialer{EjectFor: time.Second}
	for i := range maxUnused + 10 {
		d.failed(fmt.Sprint(i), 0, time.Now())
	}
	if n := len(d.addrs); n > maxUnused {
		t.Errorf("tracked unused addresses = %d, want at most %d", n, maxUnused)
	}
}

func TestTracker_KeepsAddressesInUse(t *testing.T) {
	d := &Dialer{EjectFor: time.Second, AttemptDelay: time.Second}
	d.SetMaxConns(1)
	var open []*Address
	for i := range 2 * maxUnused {
		a, _, err := d.begin(fmt.Sprint("open", i), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		d.opened(a, ms)
		open = append(open, a)
		d.failed(fmt.Sprint("failed", i), 0, time.Now())
	}
	if n := len(d.addrs); n > 5*maxUnused {
		t.Errorf("tracked addresses while %d are in use = %d, want at most %d", len(open), n, 5*maxUnused)
	}
	for i, a := range open {
		if _, _, err := d.begin(fmt.Sprint("open", i), time.Now()); !errors.Is(err, ErrFull) {
			t.Fatalf("begin() of address %d, which is in use, = %v, want %v", i, err, ErrFull)
		}
		d.Closed(a)
	}
	for i := range 2 * maxUnused {
		d.failed(fmt.Sprint("failed again", i), 0, time.Now())
	}
	if n := len(d.addrs); n > 3*maxUnused {
		t.Errorf("tracked addresses while none is in use = %d, want at most %d", n, 3*maxUnused)
	}
}

func TestDelay_FollowsResponseTimes(t *testing.T) {
	d := &Dialer{EjectFor: time.Second, AttemptDelay: 250 * ms}
	check := func(want time.Duration) {
		t.Helper()
		if got := d.delay("a").Round(ms); got != want {
			t.Errorf("delay() = %v, want %v", got, want)
		}
	}
	check(250 * ms)
	for range 20 {
		d.worked("a", 2*ms)
	}
	check(52 * ms)
	d.failed("a", 60*ms, time.Now()) // longer than the last delay
	check(110 * ms)
	for range 50 {
		d.worked("a", 165*ms) // a round trip of 160 ms
	}
	check(215 * ms)
	for range 10 {
		d.worked("a", time.Second)
	}
	check(250 * ms)
}

func TestOrder_LeastConnections(t *testing.T) {
	d, now, addrs := &Dialer{EjectFor: 8 * time.Second, AttemptDelay: time.Second}, time.Now(), []string{"a", "b", "c"}
	check := func(start int, want string) {
		t.Helper()
		if got, _ := d.order(addrs, start, now); got[0] != want {
			t.Errorf("order(%d) = %v, want %s first", start, got, want)
		}
	}
	open := map[string][]*Address{}
	begin := func(addr string) *Address {
		a, _, err := d.begin(addr, now)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	add := func(addr string) {
		a := begin(addr)
		d.opened(a, ms)
		open[addr] = append(open[addr], a)
	}
	for n, addr := range addrs { // start decides among equal addresses
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
	d.canceled(pending, false)
	check(0, "c")
	d.failed("c", 0, now) // ejected, although it has the fewest connections
	check(2, "b")
	add("b")
	add("b")
	check(0, "a")
	check(1, "b")
	d.failed("a", 0, now)
	d.failed("b", 0, now)
	check(2, "c") // all failed at the same time
	d.worked("a", ms)
	d.Closed(open["b"][0])
	check(1, "a")
}

// Among addresses with equally many connections, a distant address comes after
// addresses on the same continent.
func TestOrder_PrefersMuchFasterAddress(t *testing.T) {
	d, now, addrs := &Dialer{EjectFor: 8 * time.Second, AttemptDelay: time.Second}, time.Now(), []string{"a", "b", "c"}
	for range 50 {
		d.worked("a", 2*ms)
		d.worked("b", 40*ms) // within the usual time of a
		d.worked("c", 80*ms)
	}
	for start, want := range addrs {
		if want == "c" {
			want = "a"
		}
		if got, _ := d.order(addrs, start, now); got[0] != want {
			t.Errorf("order(%d) = %v, want %s first", start, got, want)
		}
	}
	var busy []*Address
	for _, addr := range []string{"a", "b"} {
		a, _, _ := d.begin(addr, now)
		busy = append(busy, a)
	}
	if got, _ := d.order(addrs, 0, now); got[0] != "c" {
		t.Errorf("order() = %v, want c first, which alone has no connection", got)
	}
	d.canceled(busy[0], false)
	if got, _ := d.order(addrs, 2, now); got[0] != "a" {
		t.Errorf("order() = %v, want a first, which is faster than c and also has no connection", got)
	}
}

// Many attempts to a dead address are pending and never end. One further client
// per AttemptDelay may still try the address.
func TestBegin_CircuitBreaker(t *testing.T) {
	d, now := &Dialer{AttemptDelay: 250 * ms}, time.Now()
	begin := func() error {
		_, _, err := d.begin("a", now)
		return err
	}
	for range 2 * maxTrial { // the address has not failed yet
		if err := begin(); err != nil {
			t.Fatal(err)
		}
	}
	d.canceled(d.addrs["a"], true)
	for range 3 {
		if err := begin(); !errors.Is(err, errOpenCircuit) {
			t.Errorf("begin() above the limit = %v, want %v", err, errOpenCircuit)
		}
		now = now.Add(250 * ms)
		if err := begin(); err != nil {
			t.Errorf("begin() after 250ms = %v, want nil", err)
		}
	}
	d.worked("a", ms)
	for range 2 * maxTrial {
		if err := begin(); err != nil {
			t.Fatalf("begin() of an address that works = %v, want nil", err)
		}
	}
}
