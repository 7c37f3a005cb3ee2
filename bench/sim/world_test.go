// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// primary is the primary datacenter, which is the first site.
const primary = "dc0"

// world is a federation in one synctest bubble.
type world struct {
	t        testing.TB
	net      *network
	ca       *tlstest.CA
	registry *resource.Registry
	dir      string
	sites    []*site
}

// site is one datacenter.
type site struct {
	dc       string
	n        int
	store    *resourcetest.Store
	monitor  *catalog.TTLMonitor
	gateways *catalog.Gateways
	gateway  *gatewayDouble
	servers  []*server

	background sync.WaitGroup
	stop       context.CancelFunc
}

func newWorld(t testing.TB, datacenters, servers int) *world {
	t.Helper()
	w := &world{t: t, net: newNetwork(), ca: tlstest.NewCA(t), registry: resource.NewRegistry(), dir: t.TempDir()}
	if err := errors.Join(catalog.Register(w.registry), federation.Register(w.registry)); err != nil {
		t.Fatal(err)
	}
	for i := range datacenters {
		s := &site{dc: fmt.Sprintf("dc%d", i), n: i, store: resourcetest.NewStore()}
		w.sites = append(w.sites, s)
		s.gateway = newGateway(w.net, s, s.addr(250), s.wanAddr(1))
		var err error
		if s.monitor, err = catalog.NewTTLMonitor(s.store, discardLogger); err != nil {
			t.Fatal(err)
		}
		s.gateways = catalog.NewGateways(s.dc, s.monitor)
		for j := range servers {
			v, err := newServer(w, s, fmt.Sprintf("srv%d", j+1), s.addr(j+1))
			if err != nil {
				t.Fatal(err)
			}
			s.servers = append(s.servers, v)
		}
	}
	return w
}

func (s *site) addr(last int) string { return fmt.Sprintf("10.%d.%d.%d:8300", s.n/250, s.n%250, last) }
func (s *site) wanAddr(last int) string {
	return fmt.Sprintf("198.%d.%d.%d:8443", s.n/250, s.n%250, last)
}

// start starts one datacenter: its servers, and the heartbeats of its gateway.
func (w *world) start(s *site) {
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	for i, v := range s.servers {
		v.start(i == 0)
	}
	for _, v := range s.servers[1:] {
		s.background.Go(func() { // as package server does with retry_join
			if err := v.lan.Join(ctx, s.servers[0].host.addr.String()); err != nil && ctx.Err() == nil {
				w.t.Error(err)
			}
		})
	}
	s.background.Go(func() {
		tick := time.NewTicker(catalog.HeartbeatInterval)
		defer tick.Stop()
		var last catalog.GatewayRegistration
		for {
			s.gateway.mu.Lock()
			reg := catalog.GatewayRegistration{Node: "gw1", LAN: s.gateway.lan, WAN: s.gateway.wan}
			s.gateway.mu.Unlock()
			if last.WAN != "" && reg.WAN != last.WAN { // a gateway process that stops deregisters
				if err := s.gateways.Deregister(ctx, last); err != nil && ctx.Err() == nil {
					w.t.Error(err)
				}
			}
			last = reg
			err := s.gateways.Register(ctx, reg)
			if err != nil && ctx.Err() == nil && !errors.Is(err, resource.ErrNotLeader) {
				w.t.Error(err)
			}
			wait := tick.C
			if errors.Is(err, resource.ErrNotLeader) { // Run has not started yet
				wait = time.After(time.Millisecond)
			}
			select {
			case <-wait:
			case <-ctx.Done():
				return
			}
		}
	})
}

// close stops all servers at once.
func (w *world) close() {
	for _, s := range w.sites {
		s.stop()
		for _, v := range s.servers {
			v.stop()
		}
	}
	for _, s := range w.sites {
		for _, v := range s.servers {
			if err := v.wait(); err != nil {
				w.t.Error(err)
			}
		}
		s.background.Wait()
		s.gateway.close()
		s.store.Close()
	}
}

func (w *world) servers() (all []*server) {
	for _, s := range w.sites {
		all = append(all, s.servers...)
	}
	return all
}

// peerOf returns the caller, from its certificate.
func peerOf(ctx context.Context) (tlsutil.Peer, error) {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return tlsutil.Peer{}, errors.New("no peer in the context")
	}
	return tlsutil.PeerFromCert(p.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0], tlsutil.DefaultDomain)
}
