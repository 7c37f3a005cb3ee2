// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
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
		want int // 0: none
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
	want := []string{"*.dc2.wanfed", "*.server.dc2.wanfed", "server.dc1.wanfed", "special.server.dc2.wanfed", "srv1.server.dc1.wanfed", "upper.example"}
	if d := cmp.Diff(want, names); d != "" {
		t.Error(d)
	}
	if _, ok := (&Table{}).Lookup("a.b"); ok {
		t.Error("the empty table has a route")
	}
}

func TestNewTableTellsAllFaults(t *testing.T) {
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
		t.Fatal("no error")
	}
	want := []string{
		`route "a.example" is there twice`, `route "*": "*" is not a DNS label`, `route "a.*.example"`, `route "10.0.0.1": clients name no IP`,
		`route "b.example" leads nowhere`, `route "e.example" has 1025 addresses: at most 1024`, `route "c.example": address "nowhere" has no port`, `address "x:0": port "0"`,
		`route "c.example" has address "1.2.3.4:1" twice`, `route "d.example": protocol "" has 0 bytes`,
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error does not say %s:\n%v", w, err)
		}
	}
	if n := len(strings.Split(err.Error(), "\n")); n != len(want) {
		t.Errorf("%d faults, want %d:\n%v", n, len(want), err)
	}
}

func TestCheckAddr(t *testing.T) {
	for _, a := range []string{"1.2.3.4:1", "[::1]:65535", "gw.example:8443", "localhost:1", "GW.Example.:1", "a_b:1", "[fe80::1%eth0]:1"} {
		if err := CheckAddr(a); err != nil {
			t.Errorf("%s: %v", a, err)
		}
	}
	for _, a := range []string{"", ":1", "a", "a:", "a:b", "a:65536", "a:-1", "a:+1", "::1:1", "[::1]", "[a]:1", "[1.2.3.4]:1", "[::1:1", "0.0.0.0:1",
		"[::]:1", "a b:1", "a..b:1", "-a:1", "http://a:1"} {
		if err := CheckAddr(a); err == nil {
			t.Errorf("%s is accepted", a)
		} else if !strings.Contains(err.Error(), fmt.Sprintf("%q", a)) {
			t.Errorf("%s: error does not name it: %v", a, err)
		}
	}
}

func TestTableChange(t *testing.T) {
	to := []string{"127.0.0.1:1"}
	was := mustTable(t, Route{Match: "a.example", To: to}, Route{Match: "*.b.example", To: to}, Route{Match: "c.example", To: to})
	is, err := was.Change([]string{"A.example.", "*.b.example", "none.example"}, []Route{{Match: "*.d.example", To: to}, {Match: "a.example", To: []string{"127.0.0.1:2"}}})
	if err != nil {
		t.Fatal(err)
	}
	list := func(tab *Table) (all string) {
		for _, r := range tab.Routes() {
			all += r.Match + ">" + r.To[0] + " "
		}
		return fmt.Sprint(tab.Len(), " ", all)
	}
	for _, test := range []struct {
		of   *Table
		want string
	}{
		{was, "3 *.b.example>127.0.0.1:1 a.example>127.0.0.1:1 c.example>127.0.0.1:1 "},
		{is, "3 *.d.example>127.0.0.1:1 a.example>127.0.0.1:2 c.example>127.0.0.1:1 "},
	} {
		if got := list(test.of); got != test.want {
			t.Errorf("%s, want %s", got, test.want)
		}
	}
	if was.find([]byte("c.example")) != is.find([]byte("c.example")) {
		t.Error("a route that stays was made anew")
	}
	if _, ok := is.Lookup("x.b.example"); ok {
		t.Error("a route is still there that was taken out")
	}
	if _, err := is.Change(nil, []Route{{Match: "c.example", To: to}}); err == nil || !strings.Contains(err.Error(), "is there twice") {
		t.Errorf("a route that is there already: %v", err)
	}
}

// TestManyChanges compares tables that were changed with ones that were built.
func TestManyChanges(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	has := map[string]Route{}
	tab := &Table{}
	for range 300 {
		var without []string
		var with []Route
		for range r.IntN(4) {
			name := fmt.Sprintf("n%d.example", r.IntN(100))
			if r.IntN(2) == 0 {
				name = "*." + name
			}
			if _, ok := has[name]; ok && !slices.Contains(without, name) {
				without = append(without, name)
			}
			if delete(has, name); r.IntN(2) == 0 && !slices.ContainsFunc(with, func(r Route) bool { return r.Match == name }) {
				with = append(with, Route{Match: name, To: []string{fmt.Sprintf("127.0.0.1:%d", 1+r.IntN(1000))}})
			}
		}
		for _, one := range with {
			has[one.Match] = one
		}
		var err error
		if tab, err = tab.Change(without, with); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(mustTable(t, slices.Collect(maps.Values(has))...).Routes(), tab.Routes(), cmpopts.EquateEmpty()); d != "" || tab.Len() != len(has) {
			t.Fatalf("%d of %d routes: %s", tab.Len(), len(has), d)
		}
	}
}

// datacenters are routes as a gateway has them for n other datacenters.
func datacenters(n int) []Route {
	var routes []Route
	for i := range n {
		name, to := fmt.Sprintf("server.dc%d.wanfed", i), []string{fmt.Sprintf("10.%d.%d.1:8443", i/250, i%250+1)}
		routes = append(routes, Route{Match: name, To: to, Ordered: true}, Route{Match: "*." + name, To: to, Ordered: true})
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
					b.Fatal("not found")
				}
			}
		})
	}
}

// BenchmarkTable builds tables, and changes the gateways of one datacenter.
func BenchmarkTable(b *testing.B) {
	for _, n := range []int{100, 10000} {
		routes := datacenters(n)
		b.Run(fmt.Sprintf("build/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				mustTable(b, routes...)
			}
		})
		b.Run(fmt.Sprintf("change/%d", n), func(b *testing.B) {
			t := mustTable(b, routes...)
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if t, err = t.Change([]string{routes[14].Match, routes[15].Match}, routes[14:16]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
