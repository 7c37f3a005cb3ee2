// SPDX-License-Identifier: MPL-2.0

package wan_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/test/lab/wan"
)

// TestAttach_WhileRunning attaches a third port and changes the address of a
// port while packets flow.
func TestAttach_WhileRunning(t *testing.T) {
	network := func() *lab.Network { requireTUN(t); return lab.NewNetwork(t) }()
	p := newPair(t, wan.Config{})
	c, _ := p.echo(t, p.addrs)
	third := network.Namespace("c")
	port, err := p.w.Attach(third, "wan0", netip.MustParseAddr("198.18.3.1"))
	if err != nil {
		t.Fatal(err)
	}
	network.Address(third, "wan0", "198.18.3.1/16")
	if _, err := ping(c, time.Second); err != nil {
		t.Fatalf("ping after another port was attached = %v, want an echo", err)
	}
	if s := p.w.Path(p.ports[0], port).Stats(); s.Sent != 0 {
		t.Errorf("stats of the path to the new port = %+v, want no packets", s)
	}
	unrouted := p.w.Unrouted()
	p.ports[1].SetAddrs(netip.MustParseAddr("198.18.2.9"))
	if _, err := ping(c, 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) || p.w.Unrouted() == unrouted {
		t.Errorf("ping to a removed address = %v, %d unrouted packets; want a timeout and unrouted packets", err,
			p.w.Unrouted()-unrouted)
	}
	p.ports[1].SetAddrs(p.addrs[1])
	if _, err := ping(c, time.Second); err != nil {
		t.Errorf("ping after the address was restored = %v, want an echo", err)
	}
}

// TestRun_End checks that Run leaves no thread, descriptor or device when its
// context ends.
func TestRun_End(t *testing.T) {
	requireTUN(t)
	count := func(dir string) int {
		e, err := os.ReadDir("/proc/self/" + dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(e)
	}
	var threads, files int
	const rounds = 12
	for i := range rounds {
		t.Run("", func(t *testing.T) {
			p := newPair(t, wan.Config{Link: wan.Link{Delay: 10 * time.Minute}})
			if c, err := lab.DialIn(p.ns[0])(context.Background(), "udp", "198.18.2.1:9"); err != nil {
				t.Fatal(err)
			} else if _, err = c.Write([]byte("x")); err != nil || c.Close() != nil {
				t.Fatal(err)
			}
			await(t, "a packet is in flight", func() bool { return p.ab.Stats().Sent > 0 })
			p.stopOnce()
			if out, err := exec.Command("ip", "-n", p.ns[0], "link", "show", "wan0").CombinedOutput(); err == nil {
				t.Errorf("device exists after Run has returned: %s", out)
			}
			if _, err := p.w.Attach(p.ns[0], "wan0"); !errors.Is(err, wan.ErrEnded) {
				t.Errorf("Attach() after the end = %v, want %v", err, wan.ErrEnded)
			}
		})
		if i == 1 { // the runtime has its threads, and the poller its descriptors
			threads, files = count("task"), count("fd")
		}
	}
	if got := count("fd"); got > files {
		t.Errorf("%d descriptors after %d more rounds, want at most %d", got, rounds-2, files)
	}
	if got := count("task"); got > threads+rounds/2 {
		t.Errorf("%d threads after %d more rounds, want at most %d", got, rounds-2, threads+rounds/2)
	}
}

func TestAttachErrors(t *testing.T) {
	requireTUN(t)
	p := newPair(t, wan.Config{})
	for _, bad := range [][2]string{{"no-such-namespace", "wan1"}, {p.ns[0], "wan0"},
		{p.ns[0], "a-name-that-is-too-long"}} {
		if _, err := p.w.Attach(bad[0], bad[1]); err == nil {
			t.Errorf("Attach(%q) = nil, want an error", bad)
		} else {
			t.Log(err)
		}
	}
}
