// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
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

// One port, HTTP with and without TLS: what is plain says so, and is read from its first byte on.
func TestMuxPlainHTTP(t *testing.T) {
	a := newAuthority(t)
	m, err := NewMux(MuxConfig{Identity: a.identity(tlsutil.RoleServer, "srv1", "dc1"), HandshakeTimeout: 2 * time.Second})
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

	// Who says nothing is let go, and so is who begins with a byte of TLS and goes on otherwise.
	silent, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	silent.SetDeadline(time.Now().Add(20 * time.Second))
	if n, err := silent.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) && !strings.Contains(fmt.Sprint(err), "reset") {
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
		t.Errorf("begins as TLS does: %q, %v", b, err)
	}
}
