// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/wanfed/wanfed/internal/testutil"
)

// A dial that fails returns quickly, with an error that memberlist attributes
// to the peer.
func TestTransport_DialErrors(t *testing.T) {
	w := newWorld(t, 2, []string{"dc1", "dc2"})
	n := w.nodes["srv1.dc1"]
	tr := n.tun.Transport(PoolWAN)
	w.nodes["srv1.dc2"].tun.Transport(PoolWAN) // srv2.dc2 is not in the pool
	for _, tt := range []struct {
		name, want string
	}{
		{"srv9.dc2", "has no such server"},
		{"srv2.dc2", "is not in the pool"},
		{"srv1.dc9", "no path to datacenter dc9"},
		{"srv9.dc1", "refused"}, // the address that memberlist passed is dialed
		{"nodots", "not a name of the form"},
	} {
		start := time.Now()
		c, err := tr.DialAddressTimeout(memberlist.Address{Name: tt.name, Addr: closedPort(t)}, 10*time.Second)
		if err == nil {
			c.Close()
			t.Errorf("DialAddressTimeout(%s) = nil, want an error with %q", tt.name, tt.want)
			continue
		}
		took := time.Since(start)
		if !strings.Contains(err.Error(), tt.want) || !isRemoteFailure(err) || took >= n.d.cfg.AttemptTimeout {
			t.Errorf("DialAddressTimeout(%s) = %v after %v; want a remote failure with %q within %v",
				tt.name, err, took, tt.want, n.d.cfg.AttemptTimeout)
		}
	}
}

func TestTransport_WriteErrors(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1"})
	n := w.nodes["srv1.dc1"]
	tr := n.tun.Transport(PoolWAN)
	if _, err := tr.WriteToAddress(make([]byte, MaxPacket+1), to("a.dc2")); err == nil || isRemoteFailure(err) {
		t.Errorf("WriteToAddress() of a packet above MaxPacket = %v, want a local failure", err)
	}
	if _, err := tr.WriteTo([]byte("x"), "10.0.0.1:1"); !isRemoteFailure(err) {
		t.Errorf("WriteTo() without a name = %v, want a remote failure", err)
	}
	// dc9 is unknown. The packet waits in the queue. memberlist suspects the
	// member because no ack arrives.
	if at, err := tr.WriteToAddress([]byte("x"), to("a.dc9")); err != nil || at.IsZero() {
		t.Errorf("WriteToAddress() to an unknown datacenter = %v, want nil", err)
	}
	testutil.Eventually(t, 5*time.Second, func() bool {
		l := n.tun.Stats().Links
		return len(l) == 1 && strings.Contains(l[0].LastError, "no path") && l[0].Queued == 1
	}, "a link with the error \"no path\" and one queued packet")
	tr.Shutdown()
	if _, err := tr.WriteToAddress([]byte("x"), to("a.dc2")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("WriteToAddress() after Shutdown = %v, want net.ErrClosed", err)
	}
}

// Shutdown ends a pending dial. Another transport of the pool then works.
func TestTransport_Shutdown(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"})
	n1, n2 := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"]
	t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
	send(t, t1, "srv1.dc2", "one")
	receive(t, t2)
	w.gws["dc2"].freeze(true) // a dial hangs until the gateway works again
	done := make(chan error, 1)
	go func() {
		_, err := t1.DialAddressTimeout(to("srv1.dc2"), time.Hour)
		done <- err
	}()
	testutil.Eventually(t, 5*time.Second, func() bool { return len(n1.tun.Stats().Sessions) == 1 },
		"a dial in progress")
	t1.Shutdown()
	if err := <-done; !errors.Is(err, net.ErrClosed) || !isRemoteFailure(err) {
		t.Errorf("DialAddressTimeout() during Shutdown = %v, want net.ErrClosed", err)
	}
	w.gws["dc2"].freeze(false)
	again := n1.tun.Transport(PoolWAN) // serf was restarted
	send(t, again, "srv1.dc2", "two")
	if got := receive(t, t2); got != "two" {
		t.Errorf("received %q, want %q", got, "two")
	}
	t2.Shutdown() // the server of dc2 leaves the pool
	if _, err := again.DialAddressTimeout(to("srv1.dc2"), 10*time.Second); err == nil ||
		!strings.Contains(err.Error(), "not in the pool") {
		t.Errorf("DialAddressTimeout() to a server outside of the pool = %v, want \"not in the pool\"", err)
	}
	send(t, again, "srv1.dc2", "three")
	testutil.Eventually(t, 5*time.Second, func() bool { return n2.traffic(PoolWAN, "dc1").Dropped["no_pool"] == 1 },
		"one packet dropped for no_pool")
}

// A caller that waits for the dial of another caller returns at its own
// timeout. The dial continues.
func TestTransport_TimeoutWhileAnotherDials(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"})
	n1 := w.nodes["srv1.dc1"]
	t1 := n1.tun.Transport(PoolWAN)
	w.nodes["srv1.dc2"].tun.Transport(PoolWAN)
	w.gws["dc2"].freeze(true)
	long := make(chan error, 1)
	go func() {
		c, err := t1.DialAddressTimeout(to("srv1.dc2"), 20*time.Second)
		if err == nil {
			c.Close()
		}
		long <- err
	}()
	testutil.Eventually(t, 5*time.Second, func() bool { return len(n1.tun.Stats().Sessions) == 1 },
		"a dial in progress")
	start := time.Now()
	_, err := t1.DialAddressTimeout(to("srv1.dc2"), 50*time.Millisecond)
	var ne net.Error
	if took := time.Since(start); took > 10*time.Second || !errors.As(err, &ne) || !ne.Timeout() ||
		!isRemoteFailure(err) {
		t.Errorf("DialAddressTimeout() = %v after %v, want a timeout after 50 ms, as a remote failure", err, took)
	}
	w.gws["dc2"].freeze(false)
	if err := <-long; err != nil {
		t.Errorf("the other caller's dial = %v, want nil", err)
	}
}
