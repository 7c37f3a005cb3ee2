// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// serveHTTP runs m on loopback and serves handler on the connections of conns.
// It returns the address of m.
func serveHTTP(t *testing.T, m *Mux, conns net.Listener, handler http.HandlerFunc) (addr string) {
	t.Helper()
	ln, srv := listen(t), &http.Server{Handler: handler}
	background(t, func(ctx context.Context) error { return m.Run(ctx, ln) })
	background(t, func(ctx context.Context) error {
		defer context.AfterFunc(ctx, func() { srv.Close() })()
		if err := srv.Serve(conns); ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	return ln.Addr().String()
}

// httpGet returns the status code and the body of url.
func httpGet(url string, tr *http.Transport) (string, error) {
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr, Timeout: 20 * time.Second}).Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return fmt.Sprint(resp.StatusCode, " ", string(b)), err
}

// connect connects to addr, with a deadline of 20 seconds.
func connect(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// An HTTPListener serves permitted clients over each protocol. It refuses and
// counts other clients.
func TestHTTPListener(t *testing.T) {
	a := newAuthority(t)
	m, err := NewMux(MuxConfig{Identity: a.server("srv1", "dc1")})
	if err != nil {
		t.Fatal(err)
	}
	conns := m.HTTPListener(tlsutil.Roles, false)
	addr := serveHTTP(t, m, conns, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Proto, " ", r.TLS.PeerCertificates[0].DNSNames[0])
	})
	client := func() *tls.Config { return a.identity(tlsutil.RoleOperator, "joe", "dc1").ClientConfig("") }
	get := func(url string, cfg *tls.Config, protos func(*http.Protocols)) (string, error) {
		tr := &http.Transport{TLSClientConfig: cfg, Protocols: new(http.Protocols)}
		protos(tr.Protocols)
		return httpGet(url, tr)
	}
	http1 := func(p *http.Protocols) { p.SetHTTP1(true) }
	t.Run("by protocol", func(t *testing.T) {
		for want, protos := range map[string]func(*http.Protocols){
			"200 HTTP/1.1 joe.cli.dc1.wanfed": http1,
			"200 HTTP/2.0 joe.cli.dc1.wanfed": func(p *http.Protocols) { p.SetHTTP2(true) },
		} {
			if got, err := get("https://"+addr, client(), protos); got != want {
				t.Errorf("get() = %q, %v, want %q", got, err, want)
			}
		}
	})
	t.Run("without ALPN", func(t *testing.T) {
		cfg := client()
		cfg.ServerName = "localhost"
		c := tls.Client(connect(t, addr), cfg)
		io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
		want := "HTTP/1.0 joe.cli.dc1.wanfed"
		if got, err := io.ReadAll(c); !strings.HasSuffix(string(got), want) {
			t.Errorf("ReadAll() = %q, %v, want the end %q", got, err, want)
		}
	})
	t.Run("refused", func(t *testing.T) {
		if got, err := get("http://"+addr, nil, http1); !strings.HasPrefix(got, "400 This port speaks HTTPS") {
			t.Errorf("get() without TLS = %q, %v, want status 400", got, err)
		}
		bare := client()
		bare.GetClientCertificate = nil
		if got, err := get("https://"+addr, bare, http1); err == nil {
			t.Errorf("get() without a certificate = %q, want an error", got)
		}
		testutil.Eventually(t, 5*time.Second, func() bool {
			got := m.Stats().Refused
			return got[refusedPlainText.id] == 1 && got[refusedCertMissing.id] == 1 && len(got) == 2
		}, "two refusals counted")
	})
	conns.Close()
	if _, err := conns.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept() after Close = %v, want net.ErrClosed", err)
	}
}

// One port serves HTTP with and without TLS.
func TestHTTPListener_PlainText(t *testing.T) {
	testutil.Cluster(t)
	a := newAuthority(t)
	m, err := NewMux(MuxConfig{Identity: a.server("srv1", "dc1"), handshakeTimeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	addr := serveHTTP(t, m, m.HTTPListener(tlsutil.Roles, true), func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.TLS != nil, " ", r.Method, " ", r.URL.Path)
	})
	if got, err := httpGet("http://"+addr+"/plain", &http.Transport{}); got != "200 false GET /plain" {
		t.Errorf("get() without TLS = %q, %v, want %q", got, err, "200 false GET /plain")
	}
	cfg := a.identity(tlsutil.RoleOperator, "joe", "dc1").ClientConfig("")
	if got, err := httpGet("https://"+addr+"/tls", &http.Transport{TLSClientConfig: cfg}); got != "200 true GET /tls" {
		t.Errorf("get() with TLS = %q, %v, want %q", got, err, "200 true GET /tls")
	}
	t.Run("a silent client is disconnected", func(t *testing.T) {
		n, err := connect(t, addr).Read(make([]byte, 1))
		if n != 0 || !errors.Is(err, io.EOF) && !strings.Contains(fmt.Sprint(err), "reset") {
			t.Errorf("Read() = %d, %v, want 0 and EOF or a reset", n, err)
		}
	})
	t.Run("HTTP after the first byte of TLS is not served", func(t *testing.T) {
		c := connect(t, addr)
		io.WriteString(c, "\x16GET / HTTP/1.0\r\n\r\n")
		if b, err := io.ReadAll(c); strings.Contains(string(b), "HTTP/") {
			t.Errorf("ReadAll() = %q, %v; want no response", b, err)
		}
	})
}

// A client that sends nothing for a while, as an HTTP client that keeps a spare
// connection, is disconnected. It never receives the response to a client of
// another port.
func TestHTTPListener_LateFirstByte(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		m, err := NewMux(MuxConfig{Identity: newAuthority(t).server("srv1", "dc1")})
		if err != nil {
			t.Fatal(err)
		}
		conns := m.HTTPListener(tlsutil.Roles, true)
		defer conns.Close()
		var wg sync.WaitGroup
		defer wg.Wait()
		client, server := net.Pipe()
		defer client.Close()
		began := time.Now()
		wg.Go(func() {
			tracked := m.newTrackedConn(server)
			hs := m.handshakes.acquire(t.Context(), m.wrapConn(tracked))
			m.serve(t.Context(), hs, tracked, m.begin(nameAddr("pipe")))
		})
		wg.Go(func() {
			time.Sleep(6 * time.Second)
			io.WriteString(client, "GET / HTTP/1.0\r\n\r\n")
		})
		b, err := io.ReadAll(client)
		if took := time.Since(began); len(b) > 0 || err != nil || took != 5*time.Second {
			t.Errorf("ReadAll() = %q, %v after %v, want the end of the connection after 5 s", b, err, took)
		}
		synctest.Wait() // the connection is counted after it is closed
		if got := m.Stats().Refused[refusedTimeout.id]; got != 1 {
			t.Errorf("refused by timeout = %d, want 1", got)
		}
	})
}
