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

// A port's address can change, and a third port can come while packets flow.
func TestSetAddrsAndAttachWhileRunning(t *testing.T) {
	network := func() *lab.Network { needed(t); return lab.NewNetwork(t) }()
	p := newPair(t, wan.Config{})
	c, _ := p.echo(t, p.addrs)
	third := network.Namespace("c")
	port, err := p.w.Attach(third, "wan0", netip.MustParseAddr("198.18.3.1"))
	if err != nil {
		t.Fatal(err)
	}
	network.Address(third, "wan0", "198.18.3.1/16")
	if _, err := ping(c, time.Second); err != nil {
		t.Fatalf("after another port came: %v", err)
	}
	if s := p.w.Path(p.ports[0], port).Stats(); s.Sent != 0 {
		t.Errorf("the new port was sent %+v", s)
	}
	unrouted := p.w.Unrouted()
	p.ports[1].SetAddrs(netip.MustParseAddr("198.18.2.9"))
	if _, err := ping(c, 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) || p.w.Unrouted() == unrouted {
		t.Errorf("after the address went: %v, %d unrouted", err, p.w.Unrouted()-unrouted)
	}
	p.ports[1].SetAddrs(p.addrs[1])
	if _, err := ping(c, time.Second); err != nil {
		t.Errorf("after it came back: %v", err)
	}
}

// Run leaves nothing behind: no thread, no descriptor, no device.
func TestEnd(t *testing.T) {
	needed(t)
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
			await(t, "a packet is under way", func() bool { return p.ab.Stats().Sent > 0 })
			p.stopOnce()
			if out, err := exec.Command("ip", "-n", p.ns[0], "link", "show", "wan0").CombinedOutput(); err == nil {
				t.Errorf("the device is still there: %s", out)
			}
			if _, err := p.w.Attach(p.ns[0], "wan0"); !errors.Is(err, wan.ErrEnded) {
				t.Errorf("Attach after the end = %v", err)
			}
		})
		if i == 1 { // the runtime and the poller have what they need
			threads, files = count("task"), count("fd")
		}
	}
	if got := count("fd"); got > files {
		t.Errorf("%d descriptors after %d more rounds, %d before", got, rounds-2, files)
	}
	if got := count("task"); got > threads+rounds/2 {
		t.Errorf("%d threads after %d more rounds, %d before", got, rounds-2, threads)
	}
}

func TestAttachErrors(t *testing.T) {
	needed(t)
	p := newPair(t, wan.Config{})
	for _, bad := range [][2]string{{"no-such-namespace", "wan1"}, {p.ns[0], "wan0"}, {p.ns[0], "a-name-that-is-too-long"}} {
		if _, err := p.w.Attach(bad[0], bad[1]); err == nil {
			t.Errorf("Attach(%q): no error", bad)
		} else {
			t.Log(err)
		}
	}
}
