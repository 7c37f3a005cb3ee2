// SPDX-License-Identifier: MPL-2.0

package wanfed_test

import (
	"context"
	"crypto/tls"
	"io"
	"testing"
	"time"

	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
	"github.com/wanfed/wanfed/wanfed"
)

// TestDialResumes dials a server through a gateway again and again, by protocols that are read until their end and by one
// that is not.
func TestDialResumes(t *testing.T) {
	ca := tlstest.NewCA(t)
	mux, _, ln := newMux(t, ca, "dc2")
	say := func(_ context.Context, c *tls.Conn, _ tlsutil.Peer) {
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		_, _ = io.Copy(io.Discard, c)
	}
	for _, id := range []string{wanfed.ProtoGossip, wanfed.ProtoGRPC, wanfed.ProtoConsulStream, "other/1"} {
		mux.Handle(id, []tlsutil.Role{tlsutil.RoleServer}, false, say)
	}
	background(t, func(ctx context.Context) error { return mux.Run(ctx, ln) })
	gw := startGateway(t, []gateway.Route{{Match: "server.dc2.wanfed", To: []string{ln.Addr().String()}}})
	book := &wanfed.SharedAddressBook{}
	book.Store(&wanfed.AddressBook{Paths: map[string][]wanfed.Path{"dc2": {{Addr: gw, Via: "remote"}}}})
	dialer, err := wanfed.NewDialer(wanfed.DialerConfig{Identity: ca.Identity(t, tlsutil.RoleServer, "srv1", "dc1"), AddressBook: book})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		alpn []string
		want bool
	}{
		{[]string{wanfed.ProtoGossip, wanfed.ProtoConsulPacket}, false}, // the first
		{[]string{wanfed.ProtoGossip, wanfed.ProtoConsulPacket}, true},
		{[]string{wanfed.ProtoGRPC}, true}, // a session is not of a protocol
		{[]string{wanfed.ProtoStream, wanfed.ProtoConsulStream}, false},
		{[]string{"other/1"}, false},
		{[]string{wanfed.ProtoGossip}, true},
	} {
		c, err := dialer.Dial(t.Context(), wanfed.Target{DC: "dc2"}, tt.alpn...)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Errorf("%v: %v", tt.alpn, err)
		}
		if got := c.ConnectionState().DidResume; got != tt.want {
			t.Errorf("%v: resumed %v, want %v", tt.alpn, got, tt.want)
		}
		c.Close()
	}
}
