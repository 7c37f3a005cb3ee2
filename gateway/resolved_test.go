// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/internal/netaddr"
)

// TestProxy_RefusesResolvedAddresses checks that a name that resolves to loopback
// is dialed only for routes that permit it.
func TestProxy_RefusesResolvedAddresses(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	name := strings.Replace(ln.Addr().String(), "127.0.0.1", "localhost", 1)
	p, err := New(Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	l := NewListener("lan")
	p.listeners.Store(&[]*Listener{l})
	for _, refuse := range []netaddr.Class{0, netaddr.LinkLocal, netaddr.Loopback, netaddr.Loopback | netaddr.Other} {
		table, err := NewTable([]Route{{Match: "a.example", To: []string{name}, Refuse: map[string]netaddr.Class{name: refuse}}})
		if err != nil {
			t.Fatal(err)
		}
		l.SetTable(table)
		conn, err := p.dialer.Connect(t.Context(), name)
		refused := refuse&netaddr.Loopback != 0
		if refused != (err != nil) || refused && !strings.Contains(err.Error(), "correct the name") {
			t.Errorf("Connect() to %s, which must not resolve to %d, = %v", name, refuse, err)
		}
		if conn != nil {
			conn.Close()
		}
	}
}
