// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/monitor"
	"github.com/wanfed/wanfed/internal/profile"
	"github.com/wanfed/wanfed/resource/resourcehttp"
	"github.com/wanfed/wanfed/server/httpapi"
	"github.com/wanfed/wanfed/server/remote"
	"github.com/wanfed/wanfed/server/rpc"
	"github.com/wanfed/wanfed/server/status"
	"github.com/wanfed/wanfed/server/ui"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// httpServer serves the HTTP API.
type httpServer struct {
	server *http.Server
	mux    *wanfed.Mux
	conns  net.Listener // accepts the connections of mux
}

// buildHTTP builds the status, the metrics and the HTTP API, with a Mux for the
// HTTP port.
func (c *components) buildHTTP(id *tlsutil.Identity) error {
	logger := c.logger.With("component", "http")
	mux, err := wanfed.NewMux(wanfed.MuxConfig{Identity: id, MaxPerPeer: httpPerPeer(), Logger: logger})
	if err != nil {
		return err
	}
	c.reporter = status.NewReporter(status.Config{
		DC: c.cfg.DC, Node: c.cfg.Node, MeshGatewayMode: c.cfg.MeshGatewayMode, BootstrapExpect: c.cfg.BootstrapExpect,
		Book: c.network.book, Dialer: c.network.dialer, Tunnel: c.network.tunnel,
		Mux: c.network.mux, HTTPMux: mux, Edge: c.edge,
		Store: c.store, LAN: c.lan, WAN: c.wan, Keyring: c.keyring, Gateways: c.gateways,
		AddressBook: c.addressBook, Joiner: c.joiner,
		Claims: c.claims, Clones: c.clones, Claimant: c.claimant, Snapshots: c.snapshots,
		Primary: c.primary, AntiEntropy: c.antiEntropy, Source: c.source, Operator: c.operator,
		Envoys: c.envoys, Certificate: id.Leaf, Identity: id, Audit: c.audit,
		Server: func(dc string) pb.ServerServiceClient {
			return pb.NewServerServiceClient(c.network.calls.Reader(dc))
		},
	})
	metrics := prometheus.NewRegistry()
	if err := errors.Join(metrics.Register(c.reporter), metrics.Register(c.controllers),
		metrics.Register(monitor.Build(id)), c.requests.register(metrics)); err != nil {
		return err
	}
	c.metrics = prometheus.Gatherers{prometheus.DefaultGatherer, metrics}
	resources, err := resourcehttp.New(resourcehttp.Config{
		DC: c.cfg.DC, Registry: c.registry, Client: c.remote.ResourceClient,
	})
	if err != nil {
		return err
	}
	handler, err := httpapi.New(httpapi.Config{
		DC: c.cfg.DC, Node: c.cfg.Node, Address: c.network.advertise.Addr().String(), Logger: c.logger,
		GatewaySnapshots: c.gatewaySnapshots, Policy: c.policy,
		Cluster: &cluster{c.reporter, c.remote}, Resources: c.resources, Backend: c.policy.Noting(c.strong), Report: c.reportCheck,
		RenewSession: c.renewSession, Servers: c.servers, Group: group{c},
		API: resources, Names: id.Leaf().DNSNames, Controllers: c.controllerStatus,
		UI:      ui.Handler(),
		Metrics: promhttp.HandlerFor(c.metrics, promhttp.HandlerOpts{}), Profiles: profile.Handler(c.logger),
		Requests: c.requests.http, Tracer: c.cfg.Tracer,
		Peer: func(r *http.Request) (tlsutil.Peer, error) {
			if r.TLS == nil {
				return tlsutil.Peer{Role: tlsutil.RoleAnonymous, Node: c.cfg.Node, DC: c.cfg.DC}, nil
			}
			return tlsutil.PeerFromCert(r.TLS.PeerCertificates[0], c.cfg.Domain) // the mux requires a certificate
		},
	})
	if err != nil {
		return err
	}
	c.http = &httpServer{
		mux: mux, conns: mux.HTTPListener(tlsutil.Roles, !c.httpUsesTLS),
		server: &http.Server{
			Handler: handler, MaxHeaderBytes: rpc.MaxHeaders,
			ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute,
			ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
		},
	}
	return nil
}

// servers returns the servers of this datacenter for the catalog.
func (c *components) servers() (all []catalog.Server, changed <-chan struct{}) {
	changed = c.lan.Changed()
	for _, m := range c.lan.Members() {
		if m.Status != gossip.StatusAlive && m.Status != gossip.StatusFailed {
			continue
		}
		build, _, _ := strings.Cut(m.Tags[federation.TagBuild], ":")
		all = append(all, catalog.Server{
			Node: m.Name, ID: m.Tags[federation.TagNodeID], Address: m.Host, Port: m.Port, Version: build, Alive: m.Alive(),
		})
	}
	return all, changed
}

// cluster implements httpapi.Cluster.
type cluster struct {
	*status.Reporter
	*remote.Forwarder
}

// httpPerPeer returns the maximum number of HTTP connections of one peer: three
// quarters of the files that this process may open, and at most 16384. A
// program may have a connection for each watch. The store needs the other
// files.
func httpPerPeer() int { return max(64, min(gateway.MaxFiles()/4*3, 16384)) }

// run serves ln, and the Unix socket if it is not nil, until ctx ends. Blocking
// queries end with ctx. Other requests have stopTimeout to finish.
func (s *httpServer) run(ctx context.Context, ln, socket net.Listener) error {
	s.server.BaseContext = func(net.Listener) context.Context { return ctx }
	g, gctx := errgroup.WithContext(context.WithoutCancel(ctx))
	mctx, stopMux := context.WithCancel(gctx)
	defer stopMux()
	for _, l := range []net.Listener{s.conns, socket} {
		if l == nil {
			continue
		}
		g.Go(func() error {
			err := s.server.Serve(l)
			if errors.Is(err, http.ErrServerClosed) || mctx.Err() != nil {
				return nil
			}
			return err
		})
	}
	g.Go(func() error { return s.mux.Run(mctx, ln) })
	select {
	case <-gctx.Done(): // the server or the mux failed
	case <-ctx.Done():
	}
	stopMux() // ends Accept; open connections stay
	sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := s.server.Shutdown(sctx); err != nil {
		_ = s.server.Close() // ends the open requests
	}
	return g.Wait()
}
