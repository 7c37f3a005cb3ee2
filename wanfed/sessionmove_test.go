// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"testing"
	"time"
)

// A session moves to the server that its caller names, by the same way; to one that cannot be reached it does not, and nothing is held
// against the way.
func TestSessionMovesToAServer(t *testing.T) {
	w := newWorld(t, 2, []string{"dc1", "dc2"})
	n1 := w.nodes["srv1.dc1"]
	for _, node := range []string{"srv1", "srv2"} {
		echoCalls(t, w.nodes[node+".dc2"])
	}
	call := func() *GRPCConn {
		t.Helper()
		c, err := n1.tun.DialGRPC(t.Context(), "dc2")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		askBack(t, c)
		return c
	}
	at := func(c *GRPCConn, node string) bool {
		return c.ConnectionState().PeerCertificates[0].VerifyHostname(node+".server.dc2.wanfed") == nil
	}
	first, other := call(), "srv1"
	if at(first, other) {
		other = "srv2"
	}
	for _, node := range []string{"", "Srv1.dc2", "srv3"} { // no server of dc2
		first.PinTo(node)
	}
	eventually(t, "the dial of a server that is not there", 10*time.Second, func() bool { return w.gws["dc2"].count() == 2 })
	deadline, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for moved := false; !moved; { // while the one before is still being looked for, nothing happens
		first.PinTo(other)
		select {
		case <-first.Migrated():
			moved = true
		case <-time.After(10 * time.Millisecond):
		case <-deadline.Done():
			t.Fatal("the session has not moved")
		}
	}
	if c := call(); !at(c, other) {
		t.Errorf("new calls do not go to %s", other)
	}
	askBack(t, first) // what is on the old one goes on
	for _, p := range n1.d.Paths() {
		if p.Failures > 0 {
			t.Errorf("the gateway is blamed: %+v", p)
		}
	}
	if s := n1.tun.Stats().Sessions; len(s) != 1 || s[0].Path.Addr != w.gws["dc2"].addr {
		t.Errorf("sessions: %+v", s)
	}
}
