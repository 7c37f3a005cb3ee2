// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func mustTable(t testing.TB, routes ...Route) *Table {
	t.Helper()
	tab, err := NewTable(routes)
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

func TestTableLookup(t *testing.T) {
	to := func(n int) []string { return []string{fmt.Sprintf("10.0.0.%d:1", n)} }
	tab := mustTable(t,
		Route{Match: "server.dc1.wanfed", To: to(1)},
		Route{Match: "srv1.server.dc1.wanfed", To: to(2)},
		Route{Match: "*.server.dc2.wanfed", To: to(3)},
		Route{Match: "*.dc2.wanfed", To: to(4)},
		Route{Match: "special.server.dc2.wanfed", To: to(5)},
		Route{Match: "Upper.Example.", To: to(6)},
	)
	tests := []struct {
		sni  string
		want int // 0: no route
	}{
		{"server.dc1.wanfed", 1}, {"srv1.server.dc1.wanfed", 2}, {"srv2.server.dc1.wanfed", 0},
		{"a.server.dc2.wanfed", 3}, {"a.b.server.dc2.wanfed", 3}, {"special.server.dc2.wanfed", 5},
		{"a.special.server.dc2.wanfed", 3}, {"server.dc2.wanfed", 4}, {"dc2.wanfed", 0}, {"wanfed", 0},
		{"SRV1.SERVER.DC1.WANFED.", 2}, {"upper.example", 6}, {"", 0}, {".", 0}, {"..", 0},
		{".server.dc2.wanfed", 4}, {".dc2.wanfed", 0}, {"xserver.dc1.wanfed", 0},
		{strings.Repeat("a.", 30000) + "server.dc2.wanfed", 0},
		{strings.Repeat("a.", 118) + "server.dc2.wanfed", 3},
	}
	for _, tt := range tests {
		r, ok := tab.Lookup(tt.sni)
		if ok != (tt.want > 0) || ok && r.To[0] != to(tt.want)[0] {
			t.Errorf("Lookup(%.60q) = %v, %v; want %d", tt.sni, r.To, ok, tt.want)
		}
	}
	var names []string
	for _, r := range tab.Routes() {
		names = append(names, r.Match)
	}
	want := []string{"*.dc2.wanfed", "*.server.dc2.wanfed", "server.dc1.wanfed", "special.server.dc2.wanfed",
		"srv1.server.dc1.wanfed", "upper.example"}
	if d := cmp.Diff(want, names); d != "" {
		t.Errorf("Routes() (-want +got):\n%s", d)
	}
	if _, ok := (&Table{}).Lookup("a.b"); ok {
		t.Error("Lookup() in the zero Table = true, want false")
	}
}

func TestNewTable_ReportsAllFaults(t *testing.T) {
	ok := []string{"127.0.0.1:1"}
	_, err := NewTable([]Route{
		{Match: "a.example", To: ok},
		{Match: "A.example.", To: ok},
		{Match: "*", To: ok},
		{Match: "a.*.example", To: ok},
		{Match: "10.0.0.1", To: ok},
		{Match: "b.example"},
		{Match: "d.example", To: ok, Protocols: []string{"h2", ""}},
		{Match: "e.example", To: slices.Repeat(ok, maxTo+1)},
		{Match: "c.example", To: []string{"nowhere", "x:0", "1.2.3.4:1", "1.2.3.4:1"}},
	})
	if err == nil {
		t.Fatal("NewTable() = nil, want an error")
	}
	want := []string{
		`duplicate route "a.example"`, `route "*": "*" is not a DNS label`, `route "a.*.example"`,
		`route "10.0.0.1": a ClientHello does not name an IP`,
		`route "b.example" has no address`, `route "e.example" has 1025 addresses: at most 1024`,
		`route "c.example": address "nowhere" has no port`, `address "x:0": port "0"`,
		`route "c.example" has address "1.2.3.4:1" twice`, `route "d.example": protocol "" has 0 bytes`,
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("NewTable() = %v, want %s in it", err, w)
		}
	}
	if n := len(strings.Split(err.Error(), "\n")); n != len(want) {
		t.Errorf("NewTable() = %d faults, want %d:\n%v", n, len(want), err)
	}
}

// datacenters returns the routes of a gateway to n other datacenters.
func datacenters(n int) []Route {
	var routes []Route
	for i := range n {
		name, to := fmt.Sprintf("server.dc%d.wanfed", i), []string{fmt.Sprintf("10.%d.%d.1:8443", i/250, i%250+1)}
		routes = append(routes, Route{Match: name, To: to, Ordered: true},
			Route{Match: "*." + name, To: to, Ordered: true})
	}
	return routes
}

func BenchmarkLookup(b *testing.B) {
	for _, n := range []int{10, 10000} {
		t := mustTable(b, datacenters(n)...)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if t.find([]byte("srv1.server.dc7.wanfed")) == nil {
					b.Fatal("find() = nil, want a target")
				}
			}
		})
	}
}

func BenchmarkTable(b *testing.B) {
	for _, n := range []int{100, 10000} {
		routes := datacenters(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				mustTable(b, routes...)
			}
		})
	}
}
