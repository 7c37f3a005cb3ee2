// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/wanfed"
)

// convergeTimeout is how long to wait for a federation, in fake time.
const convergeTimeout = 30 * time.Minute

// converge waits until every server sees every server alive, and has a path to
// every datacenter and its federation state. It returns how long that took.
func (w *world) converge(t testing.TB) time.Duration {
	t.Helper()
	began, all := time.Now(), w.servers()
	hasConverged := func(v *server) bool {
		alive := 0
		for _, m := range v.wan.Members() {
			if m.Alive() {
				alive++
			}
		}
		if alive < len(all) || len(v.book.Load().Paths) < len(w.sites)-1 {
			return false
		}
		query := resource.Query{Type: federation.StateType}
		states, _, err := v.site.store.List(context.Background(), resource.Eventual, query)
		return err == nil && len(states) == len(w.sites)
	}
	// The servers have no common event to wait for. A shorter pause between two
	// readings of all servers would slow the measured servers.
	for left := slices.Clone(all); ; time.Sleep(250 * time.Millisecond) {
		if left = slices.DeleteFunc(left, hasConverged); len(left) == 0 {
			return time.Since(began)
		}
		if time.Since(began) > convergeTimeout {
			t.Fatalf("%d of %d servers have not converged within %v", len(left), len(all), convergeTimeout)
		}
	}
}

// moveGateway gives the gateway of a datacenter another address. It waits until
// every other server has the address and no link uses the lost path.
// falseFailures is the number of servers that reported another server as failed
// in that time.
func (w *world) moveGateway(t testing.TB, s *site) (addressKnown, pathLeft spread, falseFailures int) {
	t.Helper()
	all := w.servers()
	others := slices.DeleteFunc(slices.Clone(all), func(v *server) bool { return v.site == s })
	began, addr := time.Now(), s.wanAddr(2)
	usesLostPath := func(v *server) bool {
		return slices.ContainsFunc(v.tunnel.Stats().Links, func(l wanfed.LinkStatus) bool {
			return l.DC == s.dc && !l.ConnectedSince.IsZero() && !l.ConnectedSince.After(began)
		})
	}
	withoutAddr, falseReports := slices.Clone(others), map[*server]bool{}
	onLostPath := slices.DeleteFunc(slices.Clone(others), func(v *server) bool { return !usesLostPath(v) })
	s.gateway.move(addr)
	for len(withoutAddr) > 0 || len(onLostPath) > 0 {
		// A reading of a thousand servers needs much processor time. The pause
		// leaves most of the time to the measured servers.
		time.Sleep(max(50*time.Millisecond, time.Duration(len(all))*time.Millisecond/2))
		elapsed := time.Since(began)
		if elapsed > convergeTimeout {
			t.Fatalf("after %v, %d servers do not have the address and %d use the lost path, want 0 and 0",
				elapsed, len(withoutAddr), len(onLostPath))
		}
		withoutAddr = slices.DeleteFunc(withoutAddr, func(v *server) bool {
			if !slices.ContainsFunc(v.book.Load().Paths[s.dc], func(h wanfed.Path) bool { return h.Addr == addr }) {
				return false
			}
			addressKnown = append(addressKnown, elapsed)
			return true
		})
		onLostPath = slices.DeleteFunc(onLostPath, func(v *server) bool {
			if usesLostPath(v) {
				return false
			}
			pathLeft = append(pathLeft, elapsed)
			return true
		})
		for _, v := range others {
			if slices.ContainsFunc(v.wan.Members(), func(m gossip.Member) bool { return !m.Alive() }) {
				falseReports[v] = true
			}
		}
	}
	return addressKnown, pathLeft, len(falseReports)
}
