// SPDX-License-Identifier: MPL-2.0

package rpc

import (
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// One datacenter writes as much as it can. It is refused after the burst, with
// the time to wait, and then gets the rate. Other datacenters and roles are not
// affected.
func TestByteLimit(t *testing.T) {
	const size = 256 << 10
	var l byteLimit
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	dc3 := tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc3", Node: "srv1"}
	total := 0
	for range 100 {
		if l.take(dc3, size, now) == nil {
			total += size
		}
	}
	if total != meteredBurst {
		t.Errorf("accepted %d bytes at once, want %d", total, meteredBurst)
	}
	dc3.Node = "srv2"
	err := l.check(dc3, now)
	if err == nil || !strings.Contains(err.Error(), "servers of dc3 write too many federation states") ||
		!strings.Contains(err.Error(), "retry in 1s") {
		t.Errorf("check() after the burst = %v, want an error with the time to wait, 1s", err)
	}
	for _, p := range []tlsutil.Peer{{Role: tlsutil.RoleServer, DC: "dc2"}, {Role: tlsutil.RoleClient, DC: "dc3"}} {
		if err := l.take(p, size, now); err != nil {
			t.Errorf("take() of %v = %v, want nil", p, err)
		}
	}
	if err := l.take(dc3, size, now.Add(time.Second)); err != nil {
		t.Errorf("take() after the time to wait = %v, want nil", err)
	}
	if err := l.check(dc3, now.Add(time.Second)); err == nil || !strings.Contains(err.Error(), "retry in 8s") {
		t.Errorf("check() after a request above the bytes that were left = %v, want an error with the time to wait, 8s", err)
	}
	total = 0
	for i := range 1000 {
		if l.take(dc3, size, now.Add(time.Duration(10+i)*time.Second)) == nil {
			total += size
		}
	}
	if want := 1000 * meteredRate; total > want+2*size || total < want-2*size {
		t.Errorf("accepted %d bytes in 1000 s, want about %d", total, want)
	}
}

// The rate of small requests is limited too.
func TestByteLimit_SmallRequests(t *testing.T) {
	var l byteLimit
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	dc3 := tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc3", Node: "srv1"}
	accepted := 0
	for range 2 * meteredBurst / meteredCost {
		if l.take(dc3, 10, now) == nil {
			accepted++
		}
	}
	if want := meteredBurst / meteredCost; accepted != want {
		t.Errorf("accepted %d small requests at once, want %d", accepted, want)
	}
	accepted = 0
	for i := range 10_000 {
		if l.take(dc3, 10, now.Add(time.Duration(i)*time.Millisecond)) == nil {
			accepted++
		}
	}
	if want := 10 * meteredRate / meteredCost; accepted < want-1 || accepted > want+1 {
		t.Errorf("accepted %d small requests in 10 s, want about %d", accepted, want)
	}
}
