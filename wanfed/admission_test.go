// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/wanfed/wanfed/internal/testutil"
)

// Sources take slots in turns, and the handshakes of one source in their order.
func TestAdmission_RoundRobin(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		a := newAdmission()
		a.free = 1
		a.acquire(netip.Prefix{})
		var got []string
		wait := func(name, source string) {
			go func() {
				a.acquire(netip.MustParsePrefix(source))
				got = append(got, name) // one slot: one goroutine at a time
				a.release()
			}()
			synctest.Wait()
		}
		for _, name := range []string{"flood1", "flood2", "flood3", "flood4"} {
			wait(name, "192.0.2.1/32")
		}
		wait("b1", "192.0.2.2/32")
		wait("c1", "192.0.2.3/32")
		wait("b2", "192.0.2.2/32")
		a.release()
		synctest.Wait()
		want := []string{"flood1", "b1", "c1", "flood2", "b2", "flood3", "flood4"}
		if !slices.Equal(got, want) {
			t.Errorf("order of handshakes = %v, want %v", got, want)
		}
		if a.free != 1 || len(a.waiting) != 0 || a.order.Len() != 0 {
			t.Errorf("at rest: %d slots free, %d sources wait; want 1 and none", a.free, len(a.waiting))
		}
	})
}

// Handshakes leave a processor for requests, if there are several.
func TestAdmission_Slots(t *testing.T) {
	for procs, want := range map[int]int{1: 1, 2: 1, 4: 2, 8: 4} {
		before := runtime.GOMAXPROCS(procs)
		a := newAdmission()
		runtime.GOMAXPROCS(before)
		if a.free != want {
			t.Errorf("slots with %d processors = %d, want %d", procs, a.free, want)
		}
	}
}
