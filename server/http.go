// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcehttp"
	"github.com/wanfed/wanfed/server/httpapi"
	"github.com/wanfed/wanfed/server/rpc"
	"github.com/wanfed/wanfed/server/status"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// loopback is the node name of a caller without TLS. Such a caller is a process
// of this machine and may read.
const loopback = "loopback"

// httpServer serves the HTTP API.
type httpServer struct {
	server *http.Server
	mux    *wanfed.Mux
	conns  net.Listener // of mux
}

type httpConfig struct {
	dc, domain string
	useTLS     bool
	identity   *tlsutil.Identity
	logger     *slog.Logger
	registry   *resource.Registry
	remote     *remote
	api        httpapi.Config // without what the others provide
	view       status.Config  // without HTTPMux
}

func newHTTPServer(cfg httpConfig) (*httpServer, error) {
	logger := cfg.logger.With("component", "http")
	mux, err := wanfed.NewMux(wanfed.MuxConfig{Identity: cfg.identity, MaxPerPeer: httpPerPeer(), Logger: logger})
	if err != nil {
		return nil, err
	}
	cfg.view.HTTPMux = mux
	metrics := prometheus.NewRegistry()
	if err := metrics.Register(status.NewCollector(cfg.view)); err != nil {
		return nil, err
	}
	resources, err := resourcehttp.New(resourcehttp.Config{DC: cfg.dc, Registry: cfg.registry, Client: cfg.remote.resources})
	if err != nil {
		return nil, err
	}
	api := cfg.api
	api.API, api.Names = resources, cfg.identity.Leaf().DNSNames
	api.Metrics = promhttp.HandlerFor(prometheus.Gatherers{prometheus.DefaultGatherer, metrics}, promhttp.HandlerOpts{})
	api.Peer = func(r *http.Request) (tlsutil.Peer, error) {
		if r.TLS == nil {
			return tlsutil.Peer{Role: tlsutil.RoleClient, Node: loopback, DC: cfg.dc}, nil
		}
		return tlsutil.PeerFromCert(r.TLS.PeerCertificates[0], cfg.domain) // the mux requires one
	}
	handler, err := httpapi.New(api)
	if err != nil {
		return nil, err
	}
	return &httpServer{
		mux: mux, conns: mux.HTTPListener(tlsutil.Roles, !cfg.useTLS),
		server: &http.Server{
			Handler: handler, MaxHeaderBytes: rpc.MaxHeaders, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute,
			ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
		},
	}, nil
}

// httpPerPeer returns the maximum number of HTTP connections of one peer. It is
// a part of the files that this process may open. The number is large because a
// program may have a connection for each watch. The rest leaves files for the
// store.
func httpPerPeer() int { return max(64, min(gateway.MaxFiles()/4*3, 16384)) }

// run serves ln until ctx ends. Blocking queries end with ctx, other requests
// within stopTimeout.
func (s *httpServer) run(ctx context.Context, ln net.Listener) error {
	s.server.BaseContext = func(net.Listener) context.Context { return ctx }
	g, gctx := errgroup.WithContext(context.WithoutCancel(ctx))
	mctx, stopMux := context.WithCancel(gctx)
	defer stopMux()
	g.Go(func() error {
		err := s.server.Serve(s.conns)
		if errors.Is(err, http.ErrServerClosed) || mctx.Err() != nil {
			return nil
		}
		return err
	})
	g.Go(func() error { return s.mux.Run(mctx, ln) })
	select {
	case <-gctx.Done(): // one of them failed
	case <-ctx.Done():
	}
	stopMux() // accepts no connection any more; open ones stay
	sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := s.server.Shutdown(sctx); err != nil {
		_ = s.server.Close() // cuts off the requests that are still open
	}
	return g.Wait()
}
