// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/wanfed/wanfed/internal/testutil"
)

// member starts a memberlist on n with short intervals.
func member(t testing.TB, n *node, pool Pool) *memberlist.Memberlist {
	t.Helper()
	conf := memberlist.DefaultLANConfig()
	conf.Name, conf.RequireNodeNames = n.name+"."+n.dc, true
	if pool == PoolLAN {
		conf.Name, conf.RequireNodeNames = n.name, false // a LAN join has only addresses
	}
	conf.Transport = n.tun.Transport(pool)
	conf.LogOutput = io.Discard
	conf.ProbeInterval, conf.ProbeTimeout = 200*time.Millisecond, 100*time.Millisecond
	conf.GossipInterval, conf.PushPullInterval = 20*time.Millisecond, 500*time.Millisecond
	conf.SuspicionMult, conf.SuspicionMaxTimeoutMult, conf.AwarenessMaxMultiplier = 2, 1, 1
	conf.TCPTimeout = 2 * time.Second
	m, err := memberlist.Create(conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Shutdown() })
	return m
}

// join makes m join the pool through the member at addr. It retries, because a
// session may time out on a slow machine.
func join(t testing.TB, m *memberlist.Memberlist, addr string) {
	t.Helper()
	var err error
	for range 5 {
		if _, err = m.Join([]string{addr}); err == nil {
			return
		}
	}
	t.Fatal(err)
}

// alive returns the sorted names of the members that are alive according to m.
func alive(m *memberlist.Memberlist) string {
	var names []string
	for _, n := range m.Members() {
		if n.State == memberlist.StateAlive {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// A memberlist pool over the tunnel follows the failure and the recovery of a
// server and of the gateways.
func TestTransport_Memberlist(t *testing.T) {
	testutil.Cluster(t)
	w := newWorld(t, 2, []string{"dc1", "dc2"}, func(tm *limits) {
		tm.echoInterval, tm.echoTimeout, tm.backoffMax = 100*time.Millisecond, 400*time.Millisecond,
			100*time.Millisecond
		tm.keepaliveInterval, tm.keepaliveTimeout = 100*time.Millisecond, 400*time.Millisecond
	})
	members := map[string]*memberlist.Memberlist{}
	for name, n := range w.nodes {
		members[name] = member(t, n, PoolWAN)
	}
	awaitAlive := func(names []string, want string) {
		t.Helper()
		for _, name := range names {
			testutil.Eventually(t, 20*time.Second, func() bool { return alive(members[name]) == want },
				"alive members of %s = %s", name, want)
		}
	}
	const all = "srv1.dc1 srv1.dc2 srv2.dc1 srv2.dc2"
	allNames, dc1, dc2 := strings.Fields(all), []string{"srv1.dc1", "srv2.dc1"}, []string{"srv1.dc2", "srv2.dc2"}
	join(t, members["srv1.dc2"], "*.dc1/192.0.2.2:1") // no server listens at that address
	for _, name := range []string{"srv2.dc1", "srv2.dc2"} {
		first := "srv1" + strings.TrimPrefix(name, "srv2")
		join(t, members[name], first+"/"+w.nodes[first].addr)
	}
	awaitAlive(allNames, all)

	t.Log("a server stops and starts")
	members["srv2.dc2"].Shutdown()
	awaitAlive([]string{"srv1.dc1", "srv2.dc1", "srv1.dc2"}, "srv1.dc1 srv1.dc2 srv2.dc1")
	members["srv2.dc2"] = member(t, w.nodes["srv2.dc2"], PoolWAN)
	join(t, members["srv2.dc2"], "*.dc1/192.0.2.2:1")
	awaitAlive(allNames, all)

	t.Log("both gateways stall and recover")
	w.gws["dc1"].freeze(true)
	w.gws["dc2"].freeze(true)
	awaitAlive(dc1, "srv1.dc1 srv2.dc1")
	awaitAlive(dc2, "srv1.dc2 srv2.dc2")
	w.gws["dc1"].freeze(false)
	w.gws["dc2"].freeze(false)
	awaitAlive(allNames, all)

	t.Log("all gateways stop, and leave the address books of dc1")
	full := w.nodes["srv1.dc1"].book.Load()
	w.gws["dc1"].stop() // otherwise a state exchange from dc2 would refute the suspicion
	w.gws["dc2"].stop()
	for _, name := range dc1 {
		book := *w.nodes[name].book.Load()
		book.Paths = nil
		w.nodes[name].book.Store(&book)
	}
	awaitAlive(dc1, "srv1.dc1 srv2.dc1")
	w.gws["dc1"].restart()
	w.gws["dc2"].restart()
	for _, name := range dc1 {
		book := *full
		w.nodes[name].book.Store(&book)
	}
	awaitAlive(allNames, all)
}

// A server is a member of the LAN pool and of the WAN pool over one tunnel.
func TestTransport_BothPools(t *testing.T) {
	testutil.Cluster(t)
	w := newWorld(t, 2, []string{"dc1", "dc2"})
	lan := map[string]*memberlist.Memberlist{}
	wan := map[string]*memberlist.Memberlist{}
	for name, n := range w.nodes {
		lan[name], wan[name] = member(t, n, PoolLAN), member(t, n, PoolWAN)
	}
	for _, dc := range []string{"dc1", "dc2"} {
		join(t, lan["srv2."+dc], w.nodes["srv1."+dc].addr)
		join(t, wan["srv2."+dc], "srv1."+dc+"/"+w.nodes["srv1."+dc].addr)
	}
	join(t, wan["srv2.dc2"], "*.dc1/192.0.2.2:1")
	for name := range w.nodes {
		testutil.Eventually(t, 20*time.Second, func() bool {
			return alive(lan[name]) == "srv1 srv2" && alive(wan[name]) == "srv1.dc1 srv1.dc2 srv2.dc1 srv2.dc2"
		}, "complete pools at %s", name)
	}
	for _, m := range lan["srv1.dc1"].Members() {
		if m.Name == "srv2" {
			if err := lan["srv1.dc1"].SendReliable(m, []byte("user message")); err != nil {
				t.Errorf("SendReliable() to srv2 = %v, want nil", err)
			}
		}
	}
}
