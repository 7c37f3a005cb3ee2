// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/wanfed"
)

const (
	knownAddr  = "198.51.100.2:8443"
	reportAddr = "198.51.100.71:8443"
)

// reportedDC is an AddressBookUpdater of dc1, which knows one address of dc2.
// Another datacenter has reported tags of dc2 and of dc3, which has no federation
// state. A test runs in the time of synctest.
type reportedDC struct {
	t     *testing.T
	u     *AddressBookUpdater
	cfg   AddressBookUpdaterConfig
	paths []wanfed.PathStatus // changed only between two calls of run
	tags  map[string][]gossip.Report
}

// report returns a report of a datacenter.
func report(reporter, member, gateways string) gossip.Report {
	return gossip.Report{Reporter: reporter, Member: member, Tags: map[string]string{TagGateways: gateways}}
}

func newReportedDC(t *testing.T) *reportedDC {
	r := &reportedDC{t: t, tags: map[string][]gossip.Report{
		"dc2": {report("dc4", "srv1.dc2", reportAddr)},
		"dc3": {report("dc4", "srv1.dc3", "198.51.100.73:8443")},
	}}
	store, ready := resourcetest.NewStore(), make(chan struct{})
	t.Cleanup(store.Close)
	close(ready)
	state := &pb.FederationState{Datacenter: "dc2", MeshGateways: []*pb.MeshGateway{
		meshGateway("dc2", "gw-a", "10.0.0.1", "198.51.100.2", catalog.StatusPassing)}}
	if _, _, err := Upsert(t.Context(), store, state); err != nil {
		t.Fatal(err)
	}
	r.cfg = AddressBookUpdaterConfig{
		DC: "dc1", PrimaryDC: "dc1", Domain: "wanfed", Backend: store, LAN: &gossip.Pool{}, WAN: &gossip.Pool{},
		Ready: ready, File: filepath.Join(t.TempDir(), "addresses.json"), Book: &wanfed.SharedAddressBook{},
		Paths: func() []wanfed.PathStatus { return r.paths }, Logger: slog.New(slog.DiscardHandler),
	}
	var err error
	if r.u, err = NewAddressBookUpdater(r.cfg); err != nil {
		t.Fatal(err)
	}
	r.u.lastResort.reports = func(dc string) []gossip.Report { return slices.Clone(r.tags[dc]) }
	return r
}

// run runs the updater for a time with these paths.
func (r *reportedDC) run(d time.Duration, paths ...wanfed.PathStatus) {
	r.t.Helper()
	r.paths = paths
	ctx, cancel := context.WithTimeout(r.t.Context(), d)
	defer cancel()
	if err := r.u.Run(ctx); err != nil {
		r.t.Errorf("Run() = %v, want nil", err)
	}
}

// want compares the unconfirmed addresses of all datacenters in the address book
// and in the snapshot for gateways.
func (r *reportedDC) want(when string, want ...string) {
	r.t.Helper()
	var got []string
	for _, paths := range r.cfg.Book.Load().Paths {
		for _, p := range paths {
			if p.Via == ViaUnconfirmed {
				got = append(got, p.Addr)
				if p.Rank != wanfed.RankUnconfirmed {
					r.t.Errorf("%s: rank of %s = %d, want RankUnconfirmed", when, p.Addr, p.Rank)
				}
			}
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		r.t.Errorf("%s: unconfirmed paths (-want +got):\n%s", when, d)
	}
	snapshot, _ := r.u.Snapshot()
	for _, dc := range snapshot.Datacenters {
		if after := dc.Gateways[1:]; dc.Name != "dc2" || dc.Current != 1 || dc.Gateways[0] != knownAddr ||
			len(want) > 0 && !slices.Equal(after, want) {
			r.t.Errorf("%s: snapshot %v, want %s, then %v", when, dc, knownAddr, want)
		}
	}
}

// cached returns the addresses of dc2 in the file.
func (r *reportedDC) cached() (addrs []string) {
	c, err := loadAddressCache(r.cfg.File)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, a := range c["dc2"] {
		addrs = append(addrs, a.addr)
	}
	return addrs
}

func pathOf(addr string, health wanfed.PathHealth) wanfed.PathStatus {
	s := wanfed.PathStatus{DC: "dc2", Addr: addr, Health: health, Local: addr == "10.0.0.9:8443"}
	if health == wanfed.PathOK {
		s.LastSuccess = time.Now()
	}
	return s
}

func TestLastResort(t *testing.T) {
	const works, fails = wanfed.PathOK, wanfed.PathFailing
	const local = "10.0.0.9:8443"
	t.Run("only without a working path", func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T) {
			r := newReportedDC(t)
			r.run(time.Hour)
			r.want("no path was used")
			r.run(time.Hour, pathOf(knownAddr, works))
			r.want("the path works")
			r.run(time.Hour, pathOf(knownAddr, fails), pathOf(local, works))
			r.want("the local gateway reaches dc2")
			r.run(lastResortDelay-time.Second, pathOf(knownAddr, fails), pathOf(local, fails))
			r.want("all paths have just failed")
			r.run(3*lastResortCheck, pathOf(knownAddr, fails), pathOf(local, fails))
			r.want("all paths fail", reportAddr)
			r.run(time.Hour, pathOf(knownAddr, fails), pathOf(reportAddr, fails))
			r.want("the unconfirmed path fails too", reportAddr)
			r.run(2*lastResortCheck, pathOf(knownAddr, works), pathOf(reportAddr, fails))
			r.want("a known path works")
			if got := r.cached(); !slices.Equal(got, []string{knownAddr}) {
				t.Errorf("cached addresses = %v, want %s only", got, knownAddr)
			}
		})
	})
	t.Run("cached after it worked", func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T) {
			r := newReportedDC(t)
			r.run(lastResortDelay+2*lastResortCheck, pathOf(knownAddr, fails))
			r.want("all paths fail", reportAddr)
			if got := r.cached(); len(got) > 0 {
				t.Errorf("cached addresses = %v, want none", got)
			}
			r.run(2*lastResortCheck, pathOf(knownAddr, fails), pathOf(reportAddr, works))
			if got := r.cached(); !slices.Equal(got, []string{reportAddr}) {
				t.Errorf("cached addresses after a TLS handshake = %v, want %s", got, reportAddr)
			}
			if !slices.Contains(r.cfg.Book.Load().Paths["dc2"], cached(reportAddr)) {
				t.Errorf("paths = %v, want %s as a cached address", r.cfg.Book.Load().Paths["dc2"], reportAddr)
			}
		})
	})
	t.Run("through the local gateway", func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T) {
			r := newReportedDC(t)
			r.run(lastResortDelay+2*lastResortCheck, pathOf(local, fails))
			r.want("all paths fail", reportAddr)
			r.tags = nil
			r.run(lastResortTime/2, pathOf(local, works))
			r.want("the local gateway uses an unconfirmed address", reportAddr)
			r.run(lastResortTime, pathOf(local, works))
			r.want("after lastResortTime")
		})
	})
	t.Run("few and filtered", func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T) {
			r := newReportedDC(t)
			r.tags["dc2"] = []gossip.Report{report("dc4", "f0.dc2",
				"127.0.0.1:22,169.254.169.254:80,224.0.0.1:80,0.0.0.0:22,localhost:22,[::1]:22,[fe80::1]:22,"+knownAddr)}
			r.run(time.Minute, pathOf(knownAddr, fails))
			r.want("no address can be that of a gateway")
			for i := range 8 {
				addr := fmt.Sprintf("198.51.100.%d:8443,192.0.2.%d:8443", 100+i, i)
				r.tags["dc2"] = append(r.tags["dc2"], report("dc4", fmt.Sprintf("f%02d.dc2", i), addr))
			}
			r.run(2*lastResortCheck, pathOf(knownAddr, fails))
			r.want("many addresses", "198.51.100.100:8443", "192.0.2.0:8443", "198.51.100.101:8443", "192.0.2.1:8443")
		})
	})
	t.Run("a thief and an honest reporter", func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T) {
			r := newReportedDC(t)
			for i := range 8 {
				addr := fmt.Sprintf("198.51.100.%d:8443,192.0.2.%d:8443", 100+i, i)
				r.tags["dc2"] = append(r.tags["dc2"], report("dc3", fmt.Sprintf("f%02d.dc2", i), addr))
			}
			for range 20 { // selections
				r.run(lastResortRenewal, pathOf(knownAddr, fails))
				if !slices.Contains(r.cfg.Book.Load().Paths["dc2"], candidate{addr: reportAddr, from: fromReport}.path()) {
					t.Errorf("paths = %v, want %s of the honest reporter", r.cfg.Book.Load().Paths["dc2"], reportAddr)
				}
			}
		})
	})
	t.Run("own addresses and other groups", func(t *testing.T) {
		l := newLastResort(AddressBookUpdaterConfig{WAN: &gossip.Pool{}})
		l.reports = func(string) []gossip.Report {
			a, b := report("dc4", "a.dc2", "10.0.0.5:8300,"+reportAddr), report("dc4", "b.dc2", "198.51.100.99:8443")
			a.Tags[TagGroup], b.Tags[TagGroup] = "g1", "g2"
			return []gossip.Report{a, b}
		}
		e := &entry{state: &stateGateways{dc: "dc2", group: "g1"}, own: []ownAddr{{"10.0.0.5:8300", "server srv1"}}}
		if got := choose(l.find("dc2", e), 0); !slices.Equal(got, []string{reportAddr}) {
			t.Errorf("find() = %v, want %s only", got, reportAddr)
		}
	})
}

// TestChoose checks that each reporter has its turn, and each of its addresses.
func TestChoose(t *testing.T) {
	reporters := func(n, addrs int) (all [][]string) {
		for i := range n {
			var own []string
			for j := range addrs {
				own = append(own, fmt.Sprintf("r%d-%d", i, j))
			}
			all = append(all, own)
		}
		return all
	}
	honest := []string{"honest"}
	for name, c := range map[string]struct {
		all  [][]string
		each int // turns until honest has been chosen
	}{
		"alone":                  {nil, 1},
		"one thief":              {reporters(1, 64), 1},
		"three thieves":          {reporters(3, 64), 1},
		"many other datacenters": {reporters(39, 64), 10},
	} {
		t.Run(name, func(t *testing.T) {
			all := append(slices.Clone(c.all), honest)
			since, seen := 0, map[string]bool{}
			for turn := range 64 * 10 {
				addrs := choose(all, turn)
				if len(addrs) > maxLastResort || len(addrs) == 0 {
					t.Fatalf("choose() = %v, want 1 to %d addresses", addrs, maxLastResort)
				}
				for _, a := range addrs {
					seen[a] = true
				}
				if since++; slices.Contains(addrs, "honest") {
					since = 0
				}
				if since >= c.each {
					t.Fatalf("no honest address in %d turns, want one in %d", since, c.each)
				}
			}
			for _, own := range all {
				for _, a := range own {
					if !seen[a] {
						t.Errorf("%s was never chosen", a)
					}
				}
			}
		})
	}
	if got := choose(nil, 3); got != nil {
		t.Errorf("choose() without reporters = %v, want none", got)
	}
}
