// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// connectTimeout bounds the connect and, apart from it, the TLS handshake with one
// server.
const connectTimeout = 5 * time.Second

// parseAddrs returns the base URL of the first of several addresses, which commas
// separate, and host:port of all. Addresses without a scheme have that of the first.
func parseAddrs(addrs string) (base string, hosts []string, err error) {
	scheme := ""
	for addr := range strings.SplitSeq(addrs, ",") {
		addr = strings.TrimSpace(addr)
		if scheme != "" && !strings.Contains(addr, "://") {
			addr = scheme + "://" + addr
		}
		url, err := parseAddr(addr)
		if err != nil {
			return "", nil, err
		}
		s, host, _ := strings.Cut(url, "://")
		if scheme == "" {
			scheme, base = s, url
		}
		if s != scheme {
			return "", nil, fmt.Errorf("HTTP addresses %q: some are http and some https; use one of them", addrs)
		}
		hosts = append(hosts, host)
	}
	return base, hosts, nil
}

// failover opens connections to the first of several servers that accepts one,
// beginning with the last one that did.
type failover struct {
	hosts []string // host:port
	last  atomic.Int64
}

// use makes t connect to the servers in place of the host of the URL. The TLS
// configuration of cfg applies to each server, with the name of its own host.
func (f *failover) use(t *http.Transport, cfg ClientConfig) {
	dialer := &net.Dialer{Timeout: connectTimeout}
	t.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return f.open(func(host string) (net.Conn, error) { return dialer.DialContext(ctx, network, host) })
	}
	secure := cfg.dialTLS(dialer)
	t.DialTLSContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return f.open(func(host string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, 2*connectTimeout)
			defer cancel()
			return secure(ctx, network, host)
		})
	}
}

// httpProtocols are the ALPN protocol ids of HTTP.
var httpProtocols = []string{alpnGRPC, "http/1.1"}

// dialTLS returns the function that opens a TLS connection to host:port.
func (c ClientConfig) dialTLS(dialer *net.Dialer) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if c.Identity == nil {
		cfg := &tls.Config{}
		if c.TLS != nil {
			cfg = c.TLS.Clone()
		}
		cfg.NextProtos = httpProtocols
		return (&tls.Dialer{NetDialer: dialer, Config: cfg}).DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		raw, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		name := c.ServerName
		if name == "" {
			name, _, _ = net.SplitHostPort(addr) // dialed, so it is valid
		}
		conn, err := c.Identity.Client(ctx, raw, name, httpProtocols...)
		if err != nil {
			return nil, err // not a nil *tls.Conn
		}
		return conn, nil
	}
}

func (f *failover) open(dial func(host string) (net.Conn, error)) (net.Conn, error) {
	var failed error
	first := int(f.last.Load())
	for i := range f.hosts {
		n := (first + i) % len(f.hosts)
		conn, err := dial(f.hosts[n])
		if err == nil {
			f.last.Store(int64(n))
			return conn, nil
		}
		if failed != nil {
			err = fmt.Errorf("%w; %w", failed, err)
		}
		failed = err
	}
	return nil, failed
}
