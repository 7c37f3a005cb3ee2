// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/wanfed"
)

const (
	// lastResortDelay is the time without a working path to a datacenter after
	// which unconfirmed addresses are used.
	lastResortDelay = 5 * time.Second
	// lastResortCheck is the time between two checks for datacenters without a
	// working path.
	lastResortCheck = 2 * time.Second
	// lastResortRenewal is the time after which the unconfirmed addresses of a
	// datacenter may be replaced by others.
	lastResortRenewal = 30 * time.Second
	// lastResortTime is the time after which they are removed. If they lead to the
	// datacenter, its servers have confirmed them by then.
	lastResortTime = 5 * time.Minute
	// maxLastResort limits the unconfirmed addresses of a datacenter that are used at
	// the same time.
	maxLastResort = 4
	// maxReported limits the addresses that one reporter proposes for a datacenter.
	maxReported = 64
)

// lastResort selects unconfirmed addresses of datacenters to which no path works.
// They are in the gateway tags that other datacenters report in gossip, and a
// server with a stolen certificate may have invented them. When the gateways of
// two datacenters move while they cannot reach each other, a third datacenter has
// the only report of the new addresses. Each reporting datacenter therefore has a
// place, or a turn if they are many, for one address after the other.
//
// The result contains no datacenter without an entry.
type lastResort struct {
	cfg AddressBookUpdaterConfig
	// reports returns the unconfirmed tags of a datacenter. It is
	// gossip.Pool.Reports.
	reports func(dc string) []gossip.Report
	down    map[string]time.Time // time of the first check without a working path, by datacenter
	used    map[string]lastResortAddrs
	turns   map[string]int // number of selections since the last working path, by datacenter
	checked time.Time      // time of the last update
}

// lastResortAddrs are the unconfirmed addresses of a datacenter.
type lastResortAddrs struct {
	addrs []string // immutable
	since time.Time
}

func newLastResort(cfg AddressBookUpdaterConfig) *lastResort {
	return &lastResort{
		cfg: cfg, reports: cfg.WAN.Reports, down: map[string]time.Time{}, used: map[string]lastResortAddrs{},
		turns: map[string]int{},
	}
}

// addrs returns the selected addresses by datacenter.
func (r *lastResort) addrs() map[string][]string {
	out := make(map[string][]string, len(r.used))
	for dc, u := range r.used {
		out[dc] = u.addrs
	}
	return out
}

// update selects the addresses again. It reports whether they have changed.
func (r *lastResort) update(entries map[string]*entry, now time.Time) (changed bool) {
	if r.cfg.Paths == nil || now.Sub(r.checked) < lastResortCheck {
		return false
	}
	r.checked = now
	before := maps.Clone(r.used)
	maps.DeleteFunc(r.down, func(dc string, _ time.Time) bool { return entries[dc] == nil })
	maps.DeleteFunc(r.used, func(dc string, _ lastResortAddrs) bool { return entries[dc] == nil })
	maps.DeleteFunc(r.turns, func(dc string, _ int) bool { return entries[dc] == nil })
	paths := map[string][]wanfed.PathStatus{}
	for _, p := range r.cfg.Paths() {
		if entries[p.DC] != nil {
			paths[p.DC] = append(paths[p.DC], p)
		}
	}
	for dc, e := range entries {
		r.updateDC(dc, e, paths[dc], now)
	}
	return !maps.EqualFunc(before, r.used, func(a, b lastResortAddrs) bool { return slices.Equal(a.addrs, b.addrs) })
}

func (r *lastResort) updateDC(dc string, e *entry, paths []wanfed.PathStatus, now time.Time) {
	used, isUsed := r.used[dc]
	works, confirmed, failed := false, false, len(e.remote) == 0
	for _, p := range paths {
		switch p.Health {
		case wanfed.PathOK, wanfed.PathSlow:
			works = true
			// A local gateway may use an unconfirmed address.
			confirmed = confirmed || !isUsed || e.remote.find(p.Addr) >= 0
		case wanfed.PathFailing:
			failed = true
		}
	}
	if confirmed || isUsed && now.Sub(used.since) >= lastResortTime {
		delete(r.used, dc)
		isUsed = false
	}
	if works || !failed {
		delete(r.down, dc)
		delete(r.turns, dc)
		return
	}
	if r.down[dc].IsZero() {
		r.down[dc] = now
	}
	if now.Sub(r.down[dc]) < lastResortDelay || isUsed && now.Sub(used.since) < lastResortRenewal {
		return
	}
	if addrs := choose(r.find(dc, e), r.turns[dc]); len(addrs) > 0 {
		r.turns[dc]++
		r.used[dc] = lastResortAddrs{addrs, now}
		if r.cfg.Logger != nil && !slices.Equal(addrs, used.addrs) {
			r.cfg.Logger.Info("unconfirmed addresses of an unreachable datacenter are used", "state_dc", dc,
				"count", len(addrs), "addr", addrs[0])
		}
	}
}

// find returns the unconfirmed addresses of a datacenter that can be those of
// gateways, by reporter. The addresses of listed servers come first.
func (r *lastResort) find(dc string, e *entry) (all [][]string) {
	reports := r.reports(dc)
	if len(reports) == 0 {
		return nil
	}
	listed := map[string]int{}
	for _, m := range r.cfg.WAN.Members() {
		listed[m.Name] = 1
	}
	slices.SortStableFunc(reports, func(a, b gossip.Report) int {
		return cmp.Or(cmp.Compare(a.Reporter, b.Reporter), cmp.Compare(listed[b.Member], listed[a.Member]))
	})
	reporter := ""
	for _, report := range reports {
		if group := report.Tags[TagGroup]; group != "" && e.state != nil && e.state.group != "" && group != e.state.group {
			continue
		}
		for _, addr := range parseGatewayTag(report.Tags[TagGateways]) {
			if !isRemote(addr, e.own) || holderOf(e.own, addr) != "" || e.remote.find(addr) >= 0 {
				continue
			}
			if len(all) == 0 || reporter != report.Reporter {
				all, reporter = append(all, nil), report.Reporter
			}
			if last := &all[len(all)-1]; len(*last) < maxReported {
				*last = union(*last, []string{addr})
			}
		}
	}
	return all
}

// choose returns up to maxLastResort of the addresses of reporters: one of each
// reporter, or, if they are more, one of each in turn. Further addresses take the
// places that are left. In each turn of a reporter, it is the next address, so a
// reporter with one address always has it.
func choose(all [][]string, turn int) (addrs []string) {
	places := min(len(all), maxLastResort)
	if places == 0 {
		return nil
	}
	turns := (len(all) + places - 1) / places // until each reporter had one
	first, round := (turn%turns)*places, turn/turns
	for more := range maxLastResort { // addresses of each reporter
		for i := range places {
			own := all[(first+i)%len(all)]
			if more >= len(own) || len(addrs) == maxLastResort {
				continue
			}
			addrs = union(addrs, []string{own[(round+more)%len(own)]})
		}
	}
	return addrs
}
