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

// patience is when waiting for a federation is given up, in fake time.
const convergeTimeout = 30 * time.Minute

// converge waits until every server sees every server alive, and has a way to every datacenter, and the record of it.
func (w *world) converge(t testing.TB) time.Duration {
	t.Helper()
	began, all := time.Now(), w.servers()
	whole := func(v *server) bool {
		alive := 0
		for _, m := range v.wan.Members() {
			if m.Alive() {
				alive++
			}
		}
		if alive < len(all) || len(v.book.Load().Paths) < len(w.sites)-1 {
			return false
		}
		records, _, err := v.site.store.List(context.Background(), resource.Eventual, resource.Query{Type: federation.StateType})
		return err == nil && len(records) == len(w.sites)
	}
	for left := slices.Clone(all); ; time.Sleep(250 * time.Millisecond) {
		if left = slices.DeleteFunc(left, whole); len(left) == 0 {
			return time.Since(began)
		}
		if time.Since(began) > convergeTimeout {
			t.Fatalf("%d of %d servers do not see all", len(left), len(all))
		}
	}
}

// move gives a datacenter's gateway another address, and waits until every other server knows it and no link hangs on the
// lost path. doubted counts the servers that held any other for failed at some time until then.
func (w *world) moveGateway(t testing.TB, s *site) (known, off spread, doubted int) {
	t.Helper()
	all := w.servers()
	others := slices.DeleteFunc(slices.Clone(all), func(v *server) bool { return v.site == s })
	began, addr := time.Now(), s.wanAddr(2)
	hangs := func(v *server) bool {
		return slices.ContainsFunc(v.tunnel.Stats().Links, func(l wanfed.LinkStatus) bool {
			return l.DC == s.dc && !l.ConnectedSince.IsZero() && !l.ConnectedSince.After(began)
		})
	}
	unknowing, doubting := slices.Clone(others), map[*server]bool{}
	hanging := slices.DeleteFunc(slices.Clone(others), func(v *server) bool { return !hangs(v) })
	s.gateway.move(addr)
	for len(unknowing) > 0 || len(hanging) > 0 {
		time.Sleep(max(50*time.Millisecond, time.Duration(len(all))*time.Millisecond/2)) // asking a thousand takes a while
		took := time.Since(began)
		if took > convergeTimeout {
			t.Fatalf("%d servers do not know the address, %d links hang", len(unknowing), len(hanging))
		}
		unknowing = slices.DeleteFunc(unknowing, func(v *server) bool {
			if !slices.ContainsFunc(v.book.Load().Paths[s.dc], func(h wanfed.Path) bool { return h.Addr == addr }) {
				return false
			}
			known = append(known, took)
			return true
		})
		hanging = slices.DeleteFunc(hanging, func(v *server) bool {
			if hangs(v) {
				return false
			}
			off = append(off, took)
			return true
		})
		for _, v := range others {
			if slices.ContainsFunc(v.wan.Members(), func(m gossip.Member) bool { return !m.Alive() }) {
				doubting[v] = true
			}
		}
	}
	return known, off, len(doubting)
}
