// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// Members of a WAN pool over Nodes find each other, in the local and in another
// datacenter.
func TestNode_Gossip(t *testing.T) {
	a := newAuthority(t)
	start := func(name, dc string, gateways map[string][]string) (*Node, string) {
		ln := listen(t)
		n, err := NewNode(NodeConfig{Identity: a.server(name, dc), Advertise: ln.Addr().String(), Gateways: gateways})
		if err != nil {
			t.Fatal(err)
		}
		background(t, func(ctx context.Context) error { return n.Run(ctx, ln) })
		return n, ln.Addr().String()
	}
	ln2 := listen(t)
	a1, addr1 := start("a", "dc1", map[string][]string{"dc2": {ln2.Addr().String()}})
	gw1 := newFakeGateway(t, listen(t), "dc1", map[string]string{"a": addr1})
	a2, addr2 := start("a", "dc2", map[string][]string{"dc1": {gw1.addr}})
	b2, addrB2 := start("b", "dc2", map[string][]string{"dc1": {gw1.addr}})
	newFakeGateway(t, ln2, "dc2", map[string]string{"a": addr2}) // traffic for b is relayed by a
	a2.SetServer("b.dc2", addrB2)
	b2.SetServer("a.dc2", addr2)
	a2.SetServer("a.dc1", "192.0.2.9:1") // a member of another datacenter is ignored
	if got := slices.Sorted(maps.Keys(a2.AddressBook.Load().Servers)); !slices.Equal(got, []string{"b"}) {
		t.Errorf("Servers = %v, want [b]", got)
	}

	m1, m2, mb := nodeMember(t, a1), nodeMember(t, a2), nodeMember(t, b2)
	if _, err := m2.Join([]string{AnyServer("dc1")}); err != nil {
		t.Fatal(err)
	}
	if _, err := mb.Join([]string{"a.dc2/" + addr2}); err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]*memberlist.Memberlist{"a.dc1": m1, "a.dc2": m2, "b.dc2": mb} {
		testutil.Eventually(t, 20*time.Second, func() bool { return m.NumMembers() == 3 }, "3 members at %s", name)
	}
}

// nodeMember starts a memberlist on n with short intervals.
func nodeMember(t testing.TB, n *Node) *memberlist.Memberlist {
	t.Helper()
	conf := memberlist.DefaultWANConfig()
	conf.Name, conf.RequireNodeNames, conf.LogOutput = n.Name(), true, io.Discard
	conf.Transport = n.Tunnel.Transport(PoolWAN)
	conf.GossipInterval, conf.PushPullInterval = 20*time.Millisecond, 500*time.Millisecond
	m, err := memberlist.Create(conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Shutdown() })
	return m
}

func TestNode_SetGateways(t *testing.T) {
	a := newAuthority(t)
	n, err := NewNode(NodeConfig{
		Identity: a.server("a", "dc1"), Advertise: "127.0.0.1:8300",
		Gateways: map[string][]string{"dc2": {"gw.example:8443"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	changed := n.AddressBook.Changed()
	if err := n.SetGateways("dc3", "192.0.2.1:8443", "[2001:db8::1]:8443"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	default:
		t.Error("Changed() channel is open after SetGateways, want closed")
	}
	if got := n.AddressBook.Load().Paths; len(got) != 2 || len(got["dc3"]) != 2 ||
		got["dc3"][1].Addr != "[2001:db8::1]:8443" {
		t.Errorf("Paths = %v, want one path to dc2 and two paths to dc3", got)
	}
	if err := n.SetGateways("dc2"); err != nil || len(n.AddressBook.Load().Paths) != 1 {
		t.Errorf("SetGateways() without addresses: Paths = %v, %v; want dc2 removed", n.AddressBook.Load().Paths, err)
	}
	for want, f := range map[string]func() error{
		"local datacenter": func() error { return n.SetGateways("dc1", "192.0.2.1:1") },
		"not host:port":    func() error { return n.SetGateways("dc2", "192.0.2.1") },
		`"Dc2"`:            func() error { return n.SetGateways("Dc2", "192.0.2.1:1") },
	} {
		if err := f(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("SetGateways() = %v, want an error that contains %q", err, want)
		}
	}
}

func TestNewNode_InvalidConfig(t *testing.T) {
	a := newAuthority(t)
	if _, err := NewNode(NodeConfig{}); err == nil || !strings.Contains(err.Error(), "Identity is missing") {
		t.Errorf("NewNode() = %v, want \"Identity is missing\"", err)
	}
	_, err := NewNode(NodeConfig{
		Identity: a.identity(tlsutil.RoleClient, "a", "dc1"), Advertise: "0.0.0.0:0",
		Gateways: map[string][]string{"dc2": {"gw"}},
	})
	if err == nil {
		t.Fatal("NewNode() with three faults = nil, want an error")
	}
	for _, want := range []string{"tls cert create --server --datacenter dc1 --node a", "not host:port",
		"not an ip:port that others can dial"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("NewNode() = %v, want an error that contains %q", err, want)
		}
	}
}
