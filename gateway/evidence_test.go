// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestEvidenceOrder(t *testing.T) {
	now := time.Now()
	const memory = 8 * time.Second // so that the first pause is one second
	e := &evidence{}
	check := func(start int, at time.Duration, want, wantDue string) {
		t.Helper()
		got, due := e.order([]string{"a", "b", "c", "d"}, start, now.Add(at), memory)
		if strings.Join(got, "") != want || due != wantDue {
			t.Errorf("after %v: order %s, tried again: %q; want %s, %q", at, strings.Join(got, ""), due, want, wantDue)
		}
	}
	failed := func(addr string, at time.Duration) { e.noAnswer(addr, 0, now.Add(at), memory) }
	check(0, 0, "abcd", "")
	check(2, 0, "cdab", "")
	failed("a", 0)
	failed("c", time.Millisecond)
	check(0, 900*time.Millisecond, "bdac", "")
	check(2, 900*time.Millisecond, "dbac", "")
	check(0, 1001*time.Millisecond, "bdac", "a") // it is given to one
	check(0, 1001*time.Millisecond, "bdac", "c")
	check(0, 1001*time.Millisecond, "bdac", "")
	failed("a", 1100*time.Millisecond) // what came of it
	check(0, 3000*time.Millisecond, "bdac", "")
	check(0, 3001*time.Millisecond, "bdac", "a") // two seconds after the first
	e.worked("a", time.Millisecond)
	e.worked("c", time.Millisecond)
	check(0, 3001*time.Millisecond, "abcd", "")
	failed("a", 3100*time.Millisecond) // it only seemed to work, and is given the full time now
	check(0, 11000*time.Millisecond, "bcda", "")
	check(0, 11100*time.Millisecond, "bcda", "a")
	e.worked("a", time.Millisecond)
	check(0, time.Minute, "abcd", "")
	for _, a := range []string{"a", "b", "c", "d"} {
		failed(a, time.Minute)
	}
	check(1, time.Minute, "bcda", "")
	check(1, time.Minute+2*time.Second, "bcda", "") // they are all asked anyway
	check(1, time.Minute+time.Second+memory, "bcda", "")
	for i := range maxKnown + 10 {
		failed(fmt.Sprint(i), 0)
	}
	if len(e.of) > maxKnown {
		t.Errorf("%d addresses are known", len(e.of))
	}
}

func TestEvidenceForgives(t *testing.T) {
	now := time.Now()
	e := &evidence{}
	e.noAnswer("a", 0, now, 8*time.Second)
	if got, due := e.order([]string{"a", "b"}, 0, now.Add(9*time.Second), 8*time.Second); got[0] != "a" || due != "" {
		t.Errorf("order %v, tried again: %q; a should be forgiven: nobody looked for so long", got, due)
	}
}

func TestPatience(t *testing.T) {
	const ms = time.Millisecond
	e := &evidence{}
	check := func(want time.Duration) {
		t.Helper()
		if got := e.patience("a", 250*ms).Round(ms); got != want {
			t.Errorf("patience %v, want %v", got, want)
		}
	}
	check(250 * ms)
	for range 20 {
		e.worked("a", 2*ms)
	}
	check(52 * ms)
	e.noAnswer("a", 60*ms, time.Now(), time.Second) // it took longer than it was given
	check(110 * ms)
	for range 50 {
		e.worked("a", 165*ms) // 80 ms away
	}
	check(215 * ms)
	for range 10 {
		e.worked("a", time.Second)
	}
	check(250 * ms)
}
