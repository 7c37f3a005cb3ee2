// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/gossip/gossiptest"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// deletionTest has two servers of dc1, which run the controller and an
// AddressBookUpdater, and one of dc2 and dc3, in one WAN pool of serf. All
// datacenters share one store in place of replication.
type deletionTest struct {
	*testing.T
	network gossiptest.Network
	store   *resourcetest.Store
	servers []deletionServer
}

type deletionServer struct {
	wan  *gossip.Pool
	book *wanfed.SharedAddressBook
	file string // the address cache
}

func runDeletionTest(t *testing.T, f func(t *deletionTest)) {
	t.Helper()
	testutil.Bubble(t, func(t *testing.T) {
		dt := &deletionTest{T: t, store: resourcetest.NewStore()}
		t.Cleanup(dt.store.Close)
		for _, name := range []string{"srv1.dc1", "srv2.dc1", "srv1.dc2", "srv1.dc3"} {
			dt.start(name)
		}
		for _, dc := range []string{"dc2", "dc3"} {
			dt.register(dc)
		}
		time.Sleep(2 * time.Minute)
		dt.want("dc3", true, true)
		f(dt)
	})
}

// start runs a server until the end of the test.
func (t *deletionTest) start(name string) {
	t.Helper()
	node, dc, err := SplitWANName(name)
	if err != nil {
		t.Fatal(err)
	}
	logger, transport := slog.New(slog.DiscardHandler), t.network.Add(name)
	s := deletionServer{book: &wanfed.SharedAddressBook{}, file: filepath.Join(t.TempDir(), "addresses.json")}
	d := NewDeletions(func(dc string) bool {
		return slices.ContainsFunc(s.wan.Members(), func(m gossip.Member) bool { return m.Alive() && DatacenterOf(m.Name) == dc })
	})
	s.wan, err = gossip.New(gossip.Config{
		Kind: wanfed.PoolWAN, Name: name, Tags: map[string]string{TagDC: dc}, Transport: transport,
		Advertise: netip.MustParseAddrPort(transport.Addr.Addr), Logger: logger,
		Reap: func(name string) bool { return d.Final(DatacenterOf(name)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.background(s.wan.Run)
	synctest.Wait()
	if len(t.servers) > 0 {
		if err := s.wan.Join(t.Context(), "srv1.dc1/"+t.network.Transport("srv1.dc1").Addr.Addr); err != nil {
			t.Fatal(err)
		}
	}
	t.servers = append(t.servers, s)
	if dc != "dc1" {
		return
	}
	registry, ready := resource.NewRegistry(), make(chan struct{})
	close(ready)
	if err := Register(registry); err != nil {
		t.Fatal(err)
	}
	service, err := resource.NewService(resource.ServiceConfig{
		Backend: t.store, Registry: registry, DC: "dc1", Primary: func() bool { return true },
		Peer: func(context.Context) (tlsutil.Peer, error) {
			return tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc1", Node: node}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	rt, err := controller.New(controller.Config{Client: service.Client(), Logger: logger}, d.Controller())
	if err != nil {
		t.Fatal(err)
	}
	u, err := NewAddressBookUpdater(AddressBookUpdaterConfig{
		DC: "dc1", PrimaryDC: "dc1", Backend: t.store, LAN: &gossip.Pool{}, WAN: s.wan, Ready: ready,
		File: s.file, Book: s.book, Deleted: d.Final, Logger: logger,
		Paths: func() (all []wanfed.PathStatus) { // each path works
			for dc, paths := range s.book.Load().Paths {
				all = append(all, wanfed.PathStatus{DC: dc, Addr: paths[0].Addr, LastSuccess: time.Now()})
			}
			return all
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.background(rt.Run)
	t.background(u.Run)
}

// background runs run until the end of the test.
func (t *deletionTest) background(run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}

// register writes the federation state of dc.
func (t *deletionTest) register(dc string) {
	t.Helper()
	gw := meshGateway(dc, "gw", "10.0.0.1", "198.51.100."+strings.TrimPrefix(dc, "dc"), catalog.StatusPassing)
	if _, _, err := Upsert(t.Context(), t.store, &pb.FederationState{Datacenter: dc, MeshGateways: []*pb.MeshGateway{gw}}); err != nil {
		t.Fatal(err)
	}
}

// remove deletes the federation state of dc.
func (t *deletionTest) remove(dc string) {
	t.Helper()
	if _, err := t.store.Commit(t.Context(), resource.RemoveOp(resource.ID(StateType, dc), resource.AnyVersion)); err != nil {
		t.Fatal(err)
	}
}

// want checks whether both servers of dc1 list the member of dc and have its
// addresses, in the address book or in the cache.
func (t *deletionTest) want(dc string, member, addresses bool) {
	t.Helper()
	synctest.Wait()
	for i, s := range t.servers[:2] {
		listed := slices.ContainsFunc(s.wan.Members(), func(m gossip.Member) bool { return DatacenterOf(m.Name) == dc })
		cache, err := loadAddressCache(s.file)
		if err != nil {
			t.Fatal(err)
		}
		known := len(s.book.Load().Paths[dc])+len(cache[dc]) > 0
		if listed != member || known != addresses {
			t.Errorf("server %d: member of %s listed = %t, addresses known = %t; want %t, %t", i+1, dc, listed, known,
				member, addresses)
		}
	}
}

// failure is longer than serf needs to list an unreachable member as failed.
const failure = 2 * time.Minute

// TestDeletions_RemoveWhatIsLeft deletes the state of a datacenter before or
// after its server fails. The datacenter then returns.
func TestDeletions_RemoveWhatIsLeft(t *testing.T) {
	for _, deletedFirst := range []bool{true, false} {
		t.Run(fmt.Sprint("deleted first ", deletedFirst), func(t *testing.T) {
			runDeletionTest(t, func(t *deletionTest) {
				t.network.Cut("srv1.dc3", true)
				if !deletedFirst {
					time.Sleep(5 * time.Minute)
					t.want("dc3", true, true) // failed
				}
				t.remove("dc3")
				time.Sleep(deletionHold - time.Second)
				t.want("dc3", true, true)
				time.Sleep(failure + 20*time.Second + cacheUpdateInterval)
				t.want("dc3", false, false)
				t.want("dc2", true, true)

				t.network.Cut("srv1.dc3", false)
				t.register("dc3")
				if err := t.servers[0].wan.Join(t.Context(), "srv1.dc3/"+t.network.Transport("srv1.dc3").Addr.Addr); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				t.want("dc3", true, true)
				t.network.Cut("srv1.dc3", true)
				time.Sleep(5 * time.Minute)
				t.want("dc3", true, true) // its new state is not deleted
			})
		})
	}
}

// TestDeletions_KeepLiveDatacenter deletes the state of a datacenter that is
// alive, one that writes its state again while it cannot be reached, and one
// that fails only for a moment.
func TestDeletions_KeepLiveDatacenter(t *testing.T) {
	runDeletionTest(t, func(t *deletionTest) {
		t.remove("dc3")
		time.Sleep(5 * time.Minute)
		t.want("dc3", true, true) // alive: its cached addresses stay too
		t.network.Cut("srv1.dc3", true)
		time.Sleep(10 * time.Second)
		t.network.Cut("srv1.dc3", false)
		time.Sleep(5 * time.Minute)
		t.want("dc3", true, true)

		t.network.Cut("srv1.dc2", true)
		time.Sleep(5 * time.Minute)
		t.remove("dc2")
		time.Sleep(deletionHold - time.Second)
		t.register("dc2")
		time.Sleep(5 * time.Minute)
		t.want("dc2", true, true)
	})
}
