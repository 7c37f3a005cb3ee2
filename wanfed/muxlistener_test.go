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
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// TestHTTPListener serves HTTPS through a Mux. Permitted clients are served by
// each protocol; the others are refused and counted.
func TestHTTPListener(t *testing.T) {
	a := newAuthority(t)
	m, err := NewMux(MuxConfig{Identity: a.server("srv1", "dc1")})
	if err != nil {
		t.Fatal(err)
	}
	conns, ln := m.HTTPListener(tlsutil.Roles, false), listen(t)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Proto, " ", r.TLS.PeerCertificates[0].DNSNames[0])
	})}
	background(t, func(ctx context.Context) error { return m.Run(ctx, ln) })
	background(t, func(ctx context.Context) error {
		defer context.AfterFunc(ctx, func() { srv.Close() })()
		if err := srv.Serve(conns); ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	get := func(url string, cfg *tls.Config, protos func(*http.Protocols)) (string, error) {
		tr := &http.Transport{TLSClientConfig: cfg, Protocols: new(http.Protocols)}
		protos(tr.Protocols)
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr, Timeout: 5 * time.Second}).Get(url)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return fmt.Sprint(resp.StatusCode, " ", string(b)), err
	}
	client := func() *tls.Config { return a.identity(tlsutil.RoleOperator, "joe", "dc1").ClientConfig("") }
	http1 := func(p *http.Protocols) { p.SetHTTP1(true) }
	url := "https://" + ln.Addr().String()
	t.Run("by protocol", func(t *testing.T) {
		for want, protos := range map[string]func(*http.Protocols){
			"200 HTTP/1.1 joe.cli.dc1.wanfed": http1,
			"200 HTTP/2.0 joe.cli.dc1.wanfed": func(p *http.Protocols) { p.SetHTTP2(true) },
		} {
			if got, err := get(url, client(), protos); got != want {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
		}
	})
	t.Run("without ALPN", func(t *testing.T) {
		c, err := tls.Dial("tcp", ln.Addr().String(),
			func() *tls.Config { c := client(); c.ServerName = "localhost"; return c }())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(5 * time.Second))
		io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
		if b, err := io.ReadAll(c); !strings.HasSuffix(string(b), "HTTP/1.0 joe.cli.dc1.wanfed") {
			t.Errorf("without ALPN: %q, %v", b, err)
		}
	})
	t.Run("refused", func(t *testing.T) {
		if got, _ := get("http://"+ln.Addr().String(), nil, http1); !strings.HasPrefix(got, "400 This port speaks HTTPS") {
			t.Errorf("without TLS: %q", got)
		}
		bare := client()
		bare.GetClientCertificate = nil
		if got, err := get(url, bare, http1); err == nil {
			t.Errorf("without a certificate: %q", got)
		}
		testutil.Eventually(t, 5*time.Second, func() bool {
			got := m.Stats().Refused
			return got[string(plainText)] == 1 && got[string(certMissing)] == 1 && len(got) == 2
		}, "refusals counted")
	})
	conns.Close()
	if _, err := conns.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept() after Close = %v, want net.ErrClosed", err)
	}
}

// One port serves HTTP with and without TLS. A plain text connection is passed
// on from its first byte.
func TestHTTPListener_PlainText(t *testing.T) {
	testutil.Cluster(t)
	a := newAuthority(t)
	m, err := NewMux(MuxConfig{Identity: a.identity(tlsutil.RoleServer, "srv1", "dc1"), handshakeTimeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	conns, ln := m.HTTPListener(tlsutil.Roles, true), listen(t)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.TLS != nil, " ", r.Method, " ", r.URL.Path)
	})}
	background(t, func(ctx context.Context) error { return m.Run(ctx, ln) })
	background(t, func(ctx context.Context) error {
		defer context.AfterFunc(ctx, func() { srv.Close() })()
		if err := srv.Serve(conns); ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	get := func(url string, tr *http.Transport) string {
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr, Timeout: 20 * time.Second}).Get(url)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return string(b)
	}
	if got := get("http://"+ln.Addr().String()+"/plain", &http.Transport{}); got != "false GET /plain" {
		t.Errorf("plain: %q", got)
	}
	cfg := a.identity(tlsutil.RoleOperator, "joe", "dc1").ClientConfig("")
	if got := get("https://"+ln.Addr().String()+"/tls", &http.Transport{TLSClientConfig: cfg}); got != "true GET /tls" {
		t.Errorf("TLS: %q", got)
	}

	// A silent client is disconnected, and so is one that sends a first byte of
	// TLS and then something else.
	silent, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	silent.SetDeadline(time.Now().Add(20 * time.Second))
	if n, err := silent.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) &&
		!strings.Contains(fmt.Sprint(err), "reset") {
		t.Errorf("silent: %d bytes, %v", n, err)
	}
	odd, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer odd.Close()
	odd.SetDeadline(time.Now().Add(20 * time.Second))
	io.WriteString(odd, "\x16GET / HTTP/1.0\r\n\r\n")
	if b, err := io.ReadAll(odd); strings.Contains(string(b), "HTTP/") {
		t.Errorf("first byte of TLS, then HTTP: ReadAll() = %q, %v; want no response", b, err)
	}
}
