// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/wanfed"
)

// Many changes are written to the file together. The file has all changes after
// saveInterval, and when Run ends.
func TestAddressBookUpdater_SavesCache(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		store, ready := resourcetest.NewStore(), make(chan struct{})
		defer store.Close()
		close(ready)
		var cfg AddressBookUpdaterConfig
		cfg = AddressBookUpdaterConfig{
			DC: "dc0", PrimaryDC: "dc0", Domain: "wanfed", Backend: store, LAN: &gossip.Pool{}, WAN: &gossip.Pool{},
			Ready: ready, File: filepath.Join(t.TempDir(), "addresses.json"), Book: &wanfed.SharedAddressBook{},
			Paths: func() (out []wanfed.PathStatus) { // all addresses work
				for dc, paths := range cfg.Book.Load().Paths {
					out = append(out, wanfed.PathStatus{DC: dc, Addr: paths[0].Addr, LastSuccess: time.Now()})
				}
				return out
			},
			Logger: slog.New(slog.DiscardHandler),
		}
		u, err := NewAddressBookUpdater(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- u.Run(ctx) }()
		const datacenters = 40
		added := 0
		addDatacenter := func() {
			added++
			dc := fmt.Sprintf("dc%d", added)
			gw := meshGateway(dc, "gw-a", "10.0.0.1", fmt.Sprintf("198.51.100.%d", added), catalog.StatusPassing)
			state := &pb.FederationState{Datacenter: dc, MeshGateways: []*pb.MeshGateway{gw}}
			if _, _, err := Upsert(ctx, store, state); err != nil {
				t.Fatal(err)
			}
		}
		onDisk := func() int {
			c, err := loadAddressCache(cfg.File)
			if err != nil {
				t.Fatal(err)
			}
			return len(c)
		}
		for range datacenters {
			addDatacenter()
			time.Sleep(updateInterval(datacenters))
		}
		if n := len(cfg.Book.Load().Paths); n < datacenters-1 {
			t.Errorf("address book has %d datacenters, want at least %d", n, datacenters-1)
		}
		if n := onDisk(); n == datacenters {
			t.Errorf("file has %d datacenters right after the changes, want fewer than %d", n, datacenters)
		}
		time.Sleep(saveInterval(datacenters) + updateInterval(datacenters))
		synctest.Wait()
		if n := onDisk(); n != datacenters {
			t.Errorf("file has %d datacenters after saveInterval, want %d", n, datacenters)
		}
		addDatacenter()
		time.Sleep(updateInterval(datacenters) + time.Millisecond)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if n := onDisk(); n != datacenters+1 {
			t.Errorf("file has %d datacenters at the end, want %d", n, datacenters+1)
		}
	})
}

// New paths are published before the cache is updated and saved, which takes long
// on a busy disk.
func TestAddressBookUpdater_PublishesFirst(t *testing.T) {
	book, paths := &wanfed.SharedAddressBook{}, -1
	u, err := NewAddressBookUpdater(AddressBookUpdaterConfig{
		DC: "dc1", PrimaryDC: "dc1", Domain: "wanfed", Backend: resourcetest.NewStore(), LAN: &gossip.Pool{},
		WAN: &gossip.Pool{}, Ready: make(chan struct{}), File: filepath.Join(t.TempDir(), "addresses.json"),
		Book: book, Logger: slog.New(slog.DiscardHandler),
		Paths: func() []wanfed.PathStatus { paths = len(book.Load().Paths["dc2"]); return nil }, // by updateCache
	})
	if err != nil {
		t.Fatal(err)
	}
	gw := meshGateway("dc2", "gw-a", "10.0.0.1", "198.51.100.1", catalog.StatusPassing)
	state := gatewaysOf(&pb.FederationState{Datacenter: "dc2", MeshGateways: []*pb.MeshGateway{gw}})
	u.publish(inputs{states: []*stateGateways{state}}, false)
	if paths != 1 {
		t.Errorf("paths to dc2 at the update of the cache = %d, want 1", paths)
	}
}

// A restarted server has the addresses that worked before the restart,
// including the resolved address of a DNS name.
func TestAddressBookUpdater_CachesWorkingAddresses(t *testing.T) {
	cfg := AddressBookUpdaterConfig{
		DC: "dc2", PrimaryDC: "dc1", Domain: "wanfed", PrimaryGateways: []string{"gw.dc1.example:8443"},
		Backend: resourcetest.NewStore(), LAN: &gossip.Pool{}, WAN: &gossip.Pool{}, Ready: make(chan struct{}),
		File: filepath.Join(t.TempDir(), "addresses.json"), Logger: slog.New(slog.DiscardHandler),
	}
	start := func(paths ...wanfed.PathStatus) (*AddressBookUpdater, []wanfed.Path) {
		t.Helper()
		cfg.Book, cfg.Paths = &wanfed.SharedAddressBook{}, func() []wanfed.PathStatus { return paths }
		u, err := NewAddressBookUpdater(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return u, cfg.Book.Load().Paths["dc1"]
	}
	name := wanfed.Path{Addr: "gw.dc1.example:8443", Via: ViaConfigured}
	u, got := start(wanfed.PathStatus{DC: "dc1", Addr: name.Addr, Remote: "198.51.100.1:8443", LastSuccess: time.Now()})
	if d := cmp.Diff([]wanfed.Path{name}, got); d != "" {
		t.Errorf("paths at first (-want +got):\n%s", d)
	}
	u.updateCache()
	_, got = start()
	cached := wanfed.Path{Addr: "198.51.100.1:8443", Via: ViaCached, Rank: wanfed.RankCached}
	if d := cmp.Diff([]wanfed.Path{name, cached}, got); d != "" {
		t.Errorf("paths after a restart (-want +got):\n%s", d)
	}
}

// The primary always has an entry, so its cached addresses stay although its
// federation state was deleted.
func TestAddressBookUpdater_KeepsAddressesOfDeletedPrimary(t *testing.T) {
	u, err := NewAddressBookUpdater(AddressBookUpdaterConfig{
		DC: "dc2", PrimaryDC: "dc1", Backend: resourcetest.NewStore(), LAN: &gossip.Pool{}, WAN: &gossip.Pool{},
		Ready: make(chan struct{}), File: filepath.Join(t.TempDir(), "addresses.json"), Book: &wanfed.SharedAddressBook{},
		Deleted: func(string) bool { return true }, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, dc := range []string{"dc1", "dc3"} {
		u.cache[dc] = []*cachedAddress{{addr: "198.51.100.1:8443", Known: time.Now(), Worked: time.Now()}}
	}
	u.updateCache()
	if len(u.cache["dc1"]) != 1 || len(u.cache["dc3"]) != 0 {
		t.Errorf("cache = %v, want the address of dc1 only", u.cache)
	}
}

func TestWorkedAddrs(t *testing.T) {
	at := time.Unix(9, 0)
	got := workedAddrs(AddressBookUpdaterConfig{DC: "dc2", Paths: func() []wanfed.PathStatus {
		return []wanfed.PathStatus{
			{DC: "dc1", Addr: "gw.dc1.example:8443", Remote: "198.51.100.1:8443", LastSuccess: at},
			{DC: "dc1", Addr: "198.51.100.1:8443", Remote: "198.51.100.1:8443", LastSuccess: at.Add(-1)},
			{DC: "dc1", Addr: "198.51.100.2:8443"},
			{DC: "dc1", Addr: "10.0.0.9:8443", Local: true, LastSuccess: at},
			{DC: "dc2", Addr: "10.0.0.5:8300", LastSuccess: at},
		}
	}})
	want := map[string]map[string]time.Time{"dc1": {"gw.dc1.example:8443": at, "198.51.100.1:8443": at}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("workedAddrs() (-want +got):\n%s", d)
	}
	if got := workedAddrs(AddressBookUpdaterConfig{}); got != nil {
		t.Errorf("workedAddrs() without paths = %v, want nil", got)
	}
}
