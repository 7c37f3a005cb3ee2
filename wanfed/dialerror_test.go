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

// TestDial_Errors checks that the error of each failed dial contains the cause
// and, where possible, a remedy.
func TestDial_Errors(t *testing.T) {
	testutil.Cluster(t)
	a, otherCA := newAuthority(t), newAuthority(t)
	srv, gw := echoNode(t, a, "srv1")
	silent := newFakeGateway(t, listen(t), "dc2", nil)
	silent.freeze(true)
	routeless := newFakeGateway(t, listen(t), "dc9", nil)
	misrouting := newFakeGateway(t, listen(t), "dc2", map[string]string{"srv2": srv.addr})
	otherCAGateway := newFakeGateway(t, listen(t), "dc2",
		map[string]string{"srv1": newNode(t, otherCA, "srv1", "dc2").start(listen(t)).addr})
	closed := closedPort(t)
	for _, tt := range []dialErrorTest{
		{name: "unknown datacenter", book: bookOf(gw.addr), target: Target{DC: "dc7"},
			want: []string{"no path to datacenter dc7", "federated"}, wraps: ErrNoPath},
		{name: "unknown server", book: &AddressBook{}, target: Target{DC: "dc1", Node: "srv9"},
			want: []string{"no path to server srv9", "joined"}, wraps: ErrNoPath},
		{name: "no server", book: &AddressBook{}, target: Target{DC: "dc1"},
			want: []string{"no path to a server"}, wraps: ErrNoPath},
		{name: "no datacenter", book: bookOf(gw.addr), want: []string{"datacenter", "empty"}},
		{name: "invalid node", book: bookOf(gw.addr), target: Target{DC: "dc2", Node: "a.b"},
			want: []string{"node", "a.b"}},
		{name: "no protocol", book: bookOf(gw.addr), target: Target{DC: "dc2"}, alpn: []string{},
			want: []string{"protocol id"}},
		{name: "gateway refuses", book: bookOf(closed), target: Target{DC: "dc2"},
			want: []string{"server.dc2.wanfed", "dc2", "remote gateway " + closed + ": connect: connection refused",
				"firewall"}},
		{name: "local server refuses", book: &AddressBook{Servers: map[string]string{"srv2": closed}},
			target: Target{DC: "dc1", Node: "srv2"},
			want:   []string{"srv2.server.dc1.wanfed", closed, "refused", "the server runs"}},
		{name: "two paths", book: bookOf(closed, silent.addr), target: Target{DC: "dc2"},
			want:  []string{closed, "refused", silent.addr, "no answer within", "stuck"},
			wraps: context.DeadlineExceeded},
		{name: "no route", book: bookOf(routeless.addr), target: Target{DC: "dc2"},
			want: []string{routeless.addr, "no route for server.dc2.wanfed"}},
		{name: "other server", book: bookOf(misrouting.addr), target: Target{DC: "dc2", Node: "srv2"},
			want: []string{misrouting.addr, "name"}},
		{name: "other CA", book: bookOf(otherCAGateway.addr), target: Target{DC: "dc2"}, alpn: []string{ProtoGossip},
			want: []string{otherCAGateway.addr, "another CA", "one CA"}},
		{name: "other protocol", book: bookOf(gw.addr), target: Target{DC: "dc2"}, alpn: []string{"never/1"},
			want: []string{gw.addr, "ALPN"}},
		{name: "no port", book: bookOf("10.0.0.1"), target: Target{DC: "dc2"},
			want: []string{`"10.0.0.1"`, "host:port"}},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, a) })
	}
}

// dialErrorTest is one dial of srv1 in dc1 that must fail.
type dialErrorTest struct {
	name   string
	book   *AddressBook
	target Target
	alpn   []string // nil: testProto
	want   []string // parts of the error's text
	wraps  error    // nil: not checked
}

func (tt *dialErrorTest) run(t *testing.T, a *authority) {
	n := newNode(t, a, "srv1", "dc1", func(c *DialerConfig) {
		if tt.wraps == context.DeadlineExceeded {
			c.AttemptTimeout, c.AttemptDelay = 1500*time.Millisecond, 20*time.Millisecond
		}
	})
	n.book.Store(tt.book)
	alpn := tt.alpn
	if alpn == nil {
		alpn = []string{testProto}
	}
	c, err := n.d.Dial(t.Context(), tt.target, alpn...)
	if err == nil {
		c.Close()
		t.Fatalf("Dial(%+v) = nil, want an error", tt.target)
	}
	for _, want := range tt.want {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Dial(%+v) = %v, want an error that contains %q", tt.target, err, want)
		}
	}
	if tt.wraps != nil && !errors.Is(err, tt.wraps) {
		t.Errorf("Dial(%+v) = %v, want an error that wraps %v", tt.target, err, tt.wraps)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("Dial(%+v) = %q, want an error on one line", tt.target, err)
	}
}
