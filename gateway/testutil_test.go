// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/gateway/internal/upstream"
)

// newCert returns a self-signed certificate, the same at each call.
var newCert = sync.OnceValues(func() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
})

func testCert(t testing.TB) tls.Certificate {
	t.Helper()
	cert, err := newCert()
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// waitLimit is the time after which an expected event has failed.
const waitLimit = 10 * time.Second

func listen(t testing.TB) *net.TCPListener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln.(*net.TCPListener)
}

// deadAddr returns an address where nothing listens.
func deadAddr(t testing.TB) string {
	t.Helper()
	ln := listen(t)
	defer ln.Close()
	return ln.Addr().String()
}

// tlsUpstream starts a TLS server that handles each connection with f. It joins
// its goroutines when the test ends.
func tlsUpstream(t testing.TB, f func(*tls.Conn)) string {
	t.Helper()
	ln := listen(t)
	cert := testCert(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				f(tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}}))
			})
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return ln.Addr().String()
}

// named returns a handler that sends name, echoes until the client ends its
// direction, sends "bye" and closes.
func named(name string) func(*tls.Conn) {
	return func(c *tls.Conn) {
		c.Write([]byte(name))
		io.Copy(c, c)
		c.Write([]byte("bye"))
		c.Close()
	}
}

// running is a Proxy that serves one listener on a real socket.
type running struct {
	*Proxy
	listener *Listener
	addr     string
	stop     func() // ends Run and waits for it
}

func start(t testing.TB, cfg Config, routes ...Route) *running {
	t.Helper()
	return startOn(t, listen(t), cfg, routes...)
}

func startOn(t testing.TB, ln net.Listener, cfg Config, routes ...Route) *running {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Drain == 0 {
		cfg.Drain = -1
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l := NewListener("lan", ln)
	l.SetTable(mustTable(t, routes...))
	ctx, cancel := context.WithCancel(context.Background())
	errc := make(chan error, 1)
	go func() { errc <- p.Run(ctx, l) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-errc; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if n := l.Stats().Active; n != 0 {
			t.Errorf("active connections after Run = %d, want 0", n)
		}
		checkUnused(t, p)
	})
	t.Cleanup(stop)
	return &running{p, l, ln.Addr().String(), stop}
}

// connect opens a TLS connection through the proxy and reads the upstream's
// name of n bytes.
func (r *running) connect(t testing.TB, sni string, n int) (*tls.Conn, string) {
	t.Helper()
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: 10 * time.Second}, "tcp", r.addr,
		&tls.Config{ServerName: sni, InsecureSkipVerify: true})
	if err != nil {
		t.Fatalf("DialWithDialer() for %s = %v, want nil", sni, err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	name := make([]byte, n)
	if _, err := io.ReadFull(c, name); err != nil {
		t.Fatalf("ReadFull() from %s = %v, want nil", sni, err)
	}
	return c, string(name)
}

// setSlow records slow answers of addrs. The proxy then waits for the attempt
// delay before it tries another address, also on a busy machine.
func (r *running) setSlow(addrs ...string) {
	began := time.Now()
	for _, addr := range addrs {
		var s upstream.Selection
		s.Init(r.dialer, []string{addr}, upstream.InOrder, nil, began)
		s.Next(began)
		r.dialer.Closed(s.Won(0, began.Add(time.Minute)))
	}
}

// waitClosed returns when the listening socket is closed, which stop does
// first.
func (r *running) waitClosed() {
	for {
		c, err := net.Dial("tcp", r.addr)
		if err != nil {
			return
		}
		c.Close()
	}
}

// raw opens a TCP connection to the proxy.
func (r *running) raw(t testing.TB) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c.(*net.TCPConn)
}

// refused checks the counters of refusals. Reasons that are not in want must be
// zero.
func (r *running) refused(t testing.TB, want map[Reason]uint64) {
	t.Helper()
	got := r.listener.Stats().Refused
	for reason := range reasons {
		if got[reason] != want[reason] {
			t.Errorf("refused for %v = %d, want %d", reason, got[reason], want[reason])
		}
	}
}
