// SPDX-License-Identifier: MPL-2.0

package gatewayd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/internal/monitor"
	"github.com/wanfed/wanfed/internal/profile"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

const (
	// writeTimeout bounds the time of a response, except for a profile.
	writeTimeout  = 30 * time.Second
	fetchTimeout  = 10 * time.Second
	maxRoutesJSON = 256 << 20 // bytes in a response
)

// runAdmin serves the admin address, if it is set, until ctx ends. A gateway
// with a certificate also accepts TLS there, with client certificates.
func (p *process) runAdmin(ctx context.Context) error {
	if p.adminSocket == nil {
		return nil
	}
	server := &http.Server{
		Handler: p.adminHandler(), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: writeTimeout,
		IdleTimeout: time.Minute, BaseContext: func(net.Listener) context.Context { return ctx },
	}
	group, gctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(gctx, func() { server.Close() })()
	conns := p.adminSocket
	if p.identity != nil {
		mux, err := wanfed.NewMux(wanfed.MuxConfig{Identity: p.identity, Logger: p.log})
		if err != nil {
			return err
		}
		conns = mux.HTTPListener(tlsutil.Roles, true)
		group.Go(func() error { return mux.Run(gctx, p.adminSocket) })
	}
	group.Go(func() error {
		if err := server.Serve(conns); !errors.Is(err, http.ErrServerClosed) && gctx.Err() == nil {
			return err
		}
		return nil
	})
	return group.Wait()
}

func (p *process) adminHandler() http.Handler {
	health := p.monitorConfig()
	health.TokenFile = "" // every user of this machine may read the metrics
	mux := http.NewServeMux()
	mux.Handle("/", monitor.Handler(health))
	mux.HandleFunc("GET /routes", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, p.routes()) })
	if p.client != nil {
		mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, p.client.Status()) })
		mux.HandleFunc("GET /snapshot", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, p.client.Report()) })
	}
	if p.identity != nil {
		mux.HandleFunc("GET "+logPath, p.watchLog)
	}
	if profiles := profile.Handler(p.log); p.settings.Pprof {
		mux.Handle("GET "+profile.Path, profiles)
	} else if p.identity != nil {
		mux.Handle("GET "+profile.Path, p.operatorsOnly(profiles))
	}
	return requireLoopbackHost(mux)
}

// operatorsOnly refuses callers that may not read profiles.
func (p *process) operatorsOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := errors.New("profiles need https and the certificate of an operator; " +
			"the setting pprof permits them to every user of this machine")
		if r.TLS != nil { // the mux has verified the certificate
			var caller tlsutil.Peer
			if caller, err = tlsutil.PeerFromCert(r.TLS.PeerCertificates[0], p.settings.domain()); err == nil {
				err = profile.Authorize(caller, p.identity.Peer())
			}
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// requireLoopbackHost refuses requests for other hosts. This prevents DNS
// rebinding, an attack in which the host name of a web page resolves to this
// machine.
func requireLoopbackHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = strings.Trim(r.Host, "[]")
		}
		if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
			http.Error(w, "use a loopback address", http.StatusForbidden)
			return
		}
		w.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
		next.ServeHTTP(w, r)
	})
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // an error means that the client has disconnected
}

// Route is a route of a running gateway, as GET /routes returns it.
type Route struct {
	gateway.Route
	// Open[i] is the number of open connections to To[i], by any route and
	// listener.
	Open []int `json:"open"`
}

// routes returns the routes of each listener, by the name of the listener.
func (p *process) routes() map[string][]Route {
	conns := p.proxy.UpstreamConns()
	out := make(map[string][]Route, len(p.listeners))
	for _, l := range p.listeners {
		list := []Route{}
		for _, r := range l.Table().Routes() {
			route := Route{Route: r, Open: make([]int, len(r.To))}
			for i, addr := range r.To {
				route.Open[i] = conns[addr]
			}
			list = append(list, route)
		}
		out[l.Name()] = list
	}
	return out
}

// FetchRoutes returns the routes of each listener of a running gateway, by the
// name of the listener. addr is the admin address of the gateway.
func FetchRoutes(ctx context.Context, addr string) (routes map[string][]Route, err error) {
	err = fetch(ctx, addr, "/routes", &routes)
	return routes, err
}

// FetchSnapshot returns the snapshot that a running gateway of a datacenter
// uses. addr is the admin address of the gateway.
func FetchSnapshot(ctx context.Context, addr string) (s api.GatewaySnapshot, err error) {
	err = fetch(ctx, addr, "/snapshot", &s)
	return s, err
}

// fetch decodes the response of a running gateway into out.
func fetch(ctx context.Context, addr, path string, out any) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return err
	}
	// Unlike the default transport, this one does not use a proxy.
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return fmt.Errorf("no gateway answers at %s: %w; check that it runs with this --admin-addr", addr, err)
	}
	defer resp.Body.Close()
	err = json.NewDecoder(io.LimitReader(resp.Body, maxRoutesJSON)).Decode(out)
	if resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	if err != nil {
		return fmt.Errorf("%s is not the admin address of a gateway with %s: %w", addr, path, err)
	}
	return nil
}
