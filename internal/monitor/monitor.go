// SPDX-License-Identifier: MPL-2.0

package monitor

import (
	"bytes"
	"context"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/tlsutil"
)

const (
	// maxConns bounds the open connections. More clients wait.
	maxConns = 64
	// maxScrapes bounds the responses with metrics that are built at once. More
	// requests receive status 503.
	maxScrapes = 4
	// timeout bounds a response.
	timeout = 30 * time.Second
	// maxToken bounds the size of a token file in bytes.
	maxToken = 4 << 10
)

// Config configures a Server. Addr, Ready and Metrics are required.
type Config struct {
	// Addr is host:port, http://host:port or https://host:port.
	Addr string
	// TokenFile is a file that only its owner can read, with the bearer token
	// (RFC 6750) of requests for metrics. It is read for each request. Empty: no
	// token.
	TokenFile string
	// Identity has the certificate of the listener. Required for https.
	Identity *tlsutil.Identity
	// Ready returns the reason why the process cannot do its work, or nil. Its
	// error is sent to clients.
	Ready func() error
	// Metrics has the metrics of the process.
	Metrics prometheus.Gatherer
	// Logger receives the log. Default: slog.Default().
	Logger *slog.Logger
}

// Check returns an error if addr or tokenFile is not valid as the setting
// monitor_addr or monitor_token_file. Both may be empty. It opens no file.
func Check(addr, tokenFile string) error {
	if addr == "" {
		if tokenFile != "" {
			return errors.New("monitor_token_file has no effect without monitor_addr")
		}
		return nil
	}
	_, _, err := netaddr.ParseHTTP("monitor_addr", addr)
	return err
}

// Server serves the paths of the package. It has one listener.
type Server struct {
	cfg      Config
	listener net.Listener
	tls      bool
}

// Listen opens the listener of cfg.Addr with the function listen, for example
// net.Listen of "tcp".
func Listen(cfg Config, listen func(addr string) (net.Listener, error)) (*Server, error) {
	addr, useTLS, err := netaddr.ParseHTTP("monitor_addr", cfg.Addr)
	if err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.TokenFile != "" {
		if _, err := readToken(cfg.TokenFile); err != nil {
			return nil, err
		}
	}
	ln, err := listen(addr)
	if err != nil {
		return nil, err
	}
	return &Server{cfg: cfg, listener: ln, tls: useTLS}, nil
}

// URL returns the address of the listener with its scheme.
func (s *Server) URL() string {
	scheme := "http://"
	if s.tls {
		scheme = "https://"
	}
	return scheme + s.listener.Addr().String()
}

// Close closes the listener. Run also closes it.
func (s *Server) Close() error { return s.listener.Close() }

// Run serves until ctx ends. It then closes the listener and all connections.
func (s *Server) Run(ctx context.Context) error {
	srv := &http.Server{
		Handler: Handler(s.cfg), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second,
		WriteTimeout: timeout, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug), // handshakes of port scanners
	}
	ln := netutil.LimitListener(s.listener, maxConns)
	if s.tls {
		ln = tls.NewListener(ln, s.cfg.Identity.AnyClientConfig("h2", "http/1.1"))
	}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve monitor_addr: %w", err)
	}
	return nil
}

// Handler returns the handler of the paths of the package.
func Handler(cfg Config) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { respond(w, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { respond(w, cfg.Ready()) })
	metrics := promhttp.HandlerFor(cfg.Metrics, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, Timeout: timeout})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		if err := cfg.authorize(r); err != nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		metrics.ServeHTTP(w, r)
	})
	return mux
}

func respond(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ok\n")) // an error means that the client has disconnected
}

// authorize returns an error unless r has the token of the token file.
func (c Config) authorize(r *http.Request) error {
	if c.TokenFile == "" {
		return nil
	}
	want, err := readToken(c.TokenFile)
	if err != nil {
		c.Logger.Error("cannot read the token of monitor_token_file", "err", err)
		return errors.New("metrics are not available: the log of the process has the reason")
	}
	got, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || subtle.ConstantTimeCompare([]byte(got), want) != 1 {
		return errors.New("metrics require the header Authorization: Bearer TOKEN with the token of monitor_token_file")
	}
	return nil
}

func readToken(path string) ([]byte, error) {
	b, err := settings.ReadPrivateFile(path, maxToken)
	if err != nil {
		return nil, fmt.Errorf("monitor_token_file: %w", err)
	}
	if b = bytes.TrimSpace(b); len(b) == 0 {
		return nil, fmt.Errorf("monitor_token_file %s is empty: write a token into it", path)
	}
	return b, nil
}
