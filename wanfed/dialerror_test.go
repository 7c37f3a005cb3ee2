// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

func TestDial_Errors(t *testing.T) {
	testutil.Cluster(t)
	a, other := newAuthority(t), newAuthority(t)
	srv, gw := echoNode(t, a, "srv1")
	silent := newFakeGateway(t, listen(t), "dc2", nil)
	silent.freeze(true)
	routeless := newFakeGateway(t, listen(t), "dc9", nil)
	wrong := newFakeGateway(t, listen(t), "dc2", map[string]string{"srv2": srv.addr})
	foreignGW := newFakeGateway(t, listen(t), "dc2",
		map[string]string{"srv1": newNode(t, other, "srv1", "dc2").start(listen(t)).addr})
	dead := closedPort(t)
	for _, tt := range []struct {
		name   string
		routes *AddressBook
		target Target
		alpn   []string
		want   []string // in the error's text
		is     error
	}{
		{"unknown datacenter", bookOf(gw.addr), Target{DC: "dc7"}, nil, []string{"no path to datacenter dc7", "federated"},
			ErrNoPath},
		{"unknown server", &AddressBook{}, Target{DC: "dc1", Node: "srv9"}, nil,
			[]string{"no path to server srv9", "joined"}, ErrNoPath},
		{"no server", &AddressBook{}, Target{DC: "dc1"}, nil, []string{"no path to a server"}, ErrNoPath},
		{"no datacenter", bookOf(gw.addr), Target{}, nil, []string{"datacenter", "empty"}, nil},
		{"bad node", bookOf(gw.addr), Target{DC: "dc2", Node: "a.b"}, nil, []string{"node", "a.b"}, nil},
		{"no protocol", bookOf(gw.addr), Target{DC: "dc2"}, []string{}, []string{"protocol id"}, nil},
		{"refused", bookOf(dead), Target{DC: "dc2"}, nil,
			[]string{"server.dc2.wanfed", "dc2", "remote gateway " + dead + ": connect: connection refused", "firewall"}, nil},
		{"refused here", &AddressBook{Servers: map[string]string{"srv2": dead}}, Target{DC: "dc1", Node: "srv2"}, nil,
			[]string{"srv2.server.dc1.wanfed", dead, "refused", "the server runs"}, nil},
		{"two paths", bookOf(dead, silent.addr), Target{DC: "dc2"}, nil,
			[]string{dead, "refused", silent.addr, "no answer within", "stuck"}, context.DeadlineExceeded},
		{"no route", bookOf(routeless.addr), Target{DC: "dc2"}, nil,
			[]string{routeless.addr, "no route for server.dc2.wanfed"}, nil},
		{"other server answers", bookOf(wrong.addr), Target{DC: "dc2", Node: "srv2"}, nil, []string{wrong.addr, "name"}, nil},
		{"other CA", bookOf(foreignGW.addr), Target{DC: "dc2"}, []string{ProtoGossip},
			[]string{foreignGW.addr, "another CA", "one CA"}, nil},
		{"other protocol", bookOf(gw.addr), Target{DC: "dc2"}, []string{"never/1"}, []string{gw.addr, "ALPN"}, nil},
		{"no port", bookOf("10.0.0.1"), Target{DC: "dc2"}, nil, []string{`"10.0.0.1"`, "host:port"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, a, "srv1", "dc1", func(c *DialerConfig) {
				if tt.is == context.DeadlineExceeded {
					c.AttemptTimeout, c.AttemptDelay = 1500*time.Millisecond, 20*time.Millisecond
				}
			})
			n.book.Store(tt.routes)
			if tt.alpn == nil {
				tt.alpn = []string{testProto}
			}
			c, err := n.d.Dial(t.Context(), tt.target, tt.alpn...)
			if err == nil {
				c.Close()
				t.Fatal("no error")
			}
			t.Log(err)
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error does not contain %q: %v", want, err)
				}
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("error is not %v: %v", tt.is, err)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error of several lines: %q", err)
			}
		})
	}
}
