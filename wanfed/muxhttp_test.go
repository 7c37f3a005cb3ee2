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

	"github.com/wanfed/wanfed/tlsutil"
)

// TestMuxHTTP serves HTTPS through a Mux: who may connect gets answers by each protocol, and the rest is counted.
func TestMuxHTTP(t *testing.T) {
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
	for want, protos := range map[string]func(*http.Protocols){
		"200 HTTP/1.1 joe.cli.dc1.wanfed": http1,
		"200 HTTP/2.0 joe.cli.dc1.wanfed": func(p *http.Protocols) { p.SetHTTP2(true) },
	} {
		if got, err := get(url, client(), protos); got != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	c, err := tls.Dial("tcp", ln.Addr().String(), func() *tls.Config { c := client(); c.ServerName = "localhost"; return c }())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
	if b, err := io.ReadAll(c); !strings.HasSuffix(string(b), "HTTP/1.0 joe.cli.dc1.wanfed") {
		t.Errorf("without ALPN: %q, %v", b, err)
	}
	if got, _ := get("http://"+ln.Addr().String(), nil, http1); !strings.HasPrefix(got, "400 This port speaks HTTPS") {
		t.Errorf("without TLS: %q", got)
	}
	bare := client()
	bare.GetClientCertificate = nil
	if got, err := get(url, bare, http1); err == nil {
		t.Errorf("without a certificate: %q", got)
	}
	eventually(t, "refusals counted", 5*time.Second, func() bool {
		got := m.Stats().Refused
		return got[string(plainText)] == 1 && got[string(certMissing)] == 1 && len(got) == 2
	})
	conns.Close()
	if _, err := conns.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
}
