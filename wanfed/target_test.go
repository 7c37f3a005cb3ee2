// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"strings"
	"testing"

	"github.com/wanfed/wanfed/tlsutil"
)

func TestParseTarget(t *testing.T) {
	const own = "dc1"
	for _, tt := range []struct {
		pool       Pool
		name, addr string
		want       target
		fails      bool
	}{
		{pool: PoolWAN, name: "srv1.dc2", addr: "10.0.0.1:8300", want: target{dc: "dc2", node: "srv1"}},
		{pool: PoolWAN, name: "srv1.dc1", addr: "10.0.0.1:8300", want: target{dc: "dc1", node: "srv1"}},
		{pool: PoolWAN, name: "SRV1.DC2", want: target{dc: "dc2", node: "srv1"}},
		{pool: PoolWAN, name: "*.dc2", addr: "192.0.2.2:1", want: target{dc: "dc2"}},
		{pool: PoolWAN, name: "*.dc1", addr: "192.0.2.2:1", want: target{dc: "dc1"}},
		{pool: PoolWAN, name: "srv1", fails: true},
		{pool: PoolWAN, name: "", addr: "10.0.0.1:8300", fails: true},
		{pool: PoolWAN, name: "a.b.c", fails: true},
		{pool: PoolWAN, name: ".dc2", fails: true},
		{pool: PoolWAN, name: "srv1.", fails: true},
		{pool: PoolWAN, name: "my_node.dc2", fails: true},
		{pool: PoolLAN, name: "srv2", addr: "10.0.0.2:8300", want: target{dc: "dc1", node: "srv2"}},
		{pool: PoolLAN, name: "", addr: "10.0.0.2:8300", want: target{dc: "dc1", addr: "10.0.0.2:8300"}},
		{pool: PoolLAN, name: "*", addr: "10.0.0.2:8300", want: target{dc: "dc1"}},
		{pool: PoolLAN, name: "srv2.dc1", fails: true},
	} {
		got, err := parseTarget(tt.pool, tt.name, tt.addr, own)
		if (err != nil) != tt.fails || got != tt.want {
			t.Errorf("parseTarget(%v, %q, %q) = %+v, %v; want %+v", tt.pool, tt.name, tt.addr, got, err, tt.want)
		}
	}
}

func FuzzParseTarget(f *testing.F) {
	f.Add(uint8(PoolWAN), "srv1.dc2", "10.0.0.1:8300")
	f.Add(uint8(PoolLAN), "", "[::1]:8300")
	f.Add(uint8(PoolWAN), "*.dc1", "")
	f.Fuzz(func(t *testing.T, pool uint8, name, addr string) {
		got, err := parseTarget(Pool(pool), name, addr, "dc1")
		if err != nil {
			return
		}
		if tlsutil.CheckLabel(got.dc) != nil || got.node != "" && tlsutil.CheckLabel(got.node) != nil {
			t.Fatalf("parseTarget(%v, %q, %q) = %+v, want DNS labels", Pool(pool), name, addr, got)
		}
	})
}

func TestActionFor(t *testing.T) {
	self := tlsutil.Peer{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc1"}
	local := tlsutil.Peer{Role: tlsutil.RoleServer, Node: "srv2", DC: "dc1"}
	remote := tlsutil.Peer{Role: tlsutil.RoleServer, Node: "srv2", DC: "dc2"}
	for _, tt := range []struct {
		peer tlsutil.Peer
		pool Pool
		name string
		want action
	}{
		{remote, PoolWAN, "srv1", deliver},
		{remote, PoolWAN, "", deliver},
		{remote, PoolWAN, "srv2", relay},
		{remote, PoolWAN, "srv9", relay},
		{local, PoolWAN, "srv1", deliver},
		{local, PoolWAN, "srv3", misrouted}, // a local server has already relayed it
		{local, PoolLAN, "srv1", deliver},
		{local, PoolLAN, "", deliver},
		{local, PoolLAN, "srv3", misrouted},
		{remote, poolGRPC, "", deliver},
		{remote, poolGRPC, "srv2", misrouted}, // gRPC is not relayed
		{remote, PoolLAN, "srv1", forbidden},
		{remote, PoolLAN, "srv2", forbidden},
		{remote, PoolLAN, "", forbidden},
	} {
		if got := actionFor(self, tt.peer, tt.pool, tt.name); got != tt.want {
			t.Errorf("actionFor(%v, %v, %q) = %v, want %v", tt.peer, tt.pool, tt.name, got, tt.want)
		}
	}
}

func TestTargetString(t *testing.T) {
	for _, tt := range []struct {
		t    target
		want string
	}{
		{target{dc: "dc2"}, "*.dc2"},
		{target{dc: "dc2", node: "a"}, "a.dc2"},
		{target{dc: "dc1", addr: "1.2.3.4:5"}, "1.2.3.4:5"},
	} {
		if got := tt.t.String(); got != tt.want {
			t.Errorf("target.String() = %q, want %q", got, tt.want)
		}
	}
	if s := strings.Join([]string{PoolWAN.String(), PoolLAN.String(), Pool(9).String()}, " "); s != "wan lan unknown" {
		t.Errorf("Pool.String() of WAN, LAN and 9 = %q, want \"wan lan unknown\"", s)
	}
}
