// SPDX-License-Identifier: MPL-2.0

package wan_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/test/lab/wan"
)

// pair is a WAN with two namespaces, a and b.
type pair struct {
	w        *wan.WAN
	ns       [2]string
	ports    [2]*wan.Port
	ab, ba   *wan.Path
	addrs    [2]netip.Addr
	stopOnce func()
}

func requireTUN(t testing.TB) {
	t.Helper()
	testutil.Cluster(t)
	if err := wan.Check(); err != nil {
		t.Skip(err)
	}
}

func newPair(t testing.TB, cfg wan.Config) *pair {
	t.Helper()
	requireTUN(t)
	network := lab.NewNetwork(t)
	w, err := wan.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	p := &pair{w: w, addrs: [2]netip.Addr{netip.MustParseAddr("198.18.1.1"), netip.MustParseAddr("198.18.2.1")}}
	p.stopOnce = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(p.stopOnce)
	for i, name := range []string{"a", "b"} {
		p.ns[i] = network.Namespace(name)
		if p.ports[i], err = w.Attach(p.ns[i], "wan0", p.addrs[i]); err != nil {
			t.Fatal(err)
		}
		network.Address(p.ns[i], "wan0", p.addrs[i].String()+"/16")
	}
	p.ab, p.ba = w.Path(p.ports[0], p.ports[1]), w.Path(p.ports[1], p.ports[0])
	return p
}

func set(t testing.TB, l wan.Link, paths ...*wan.Path) {
	t.Helper()
	for _, p := range paths {
		if err := p.Set(l); err != nil {
			t.Fatal(err)
		}
	}
}

// echo starts a UDP echo server in b. It returns a connection from a to the
// server, and the number of packets that b has received.
func (p *pair) echo(t testing.TB, host [2]netip.Addr) (c net.Conn, came *atomic.Int64) {
	t.Helper()
	var server net.PacketConn
	err := wan.InNamespace(p.ns[1], func() (err error) {
		server, err = net.ListenPacket("udp", netip.AddrPortFrom(host[1], 0).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.(*net.UDPConn).SetReadBuffer(4 << 20); err != nil {
		t.Fatal(err)
	}
	came = &atomic.Int64{}
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			came.Add(1)
			_, _ = server.WriteTo(buf[:n], from)
		}
	})
	t.Cleanup(func() { server.Close(); wg.Wait() })
	if c, err = lab.DialIn(p.ns[0])(context.Background(), "udp", server.LocalAddr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, came
}

// ping sends one packet and waits for its echo. It returns the round-trip time,
// or os.ErrDeadlineExceeded after limit.
func ping(c net.Conn, limit time.Duration) (time.Duration, error) {
	start := time.Now()
	if _, err := fmt.Fprintf(c, "%d", start.UnixNano()); err != nil {
		return 0, err
	}
	want := fmt.Sprint(start.UnixNano())
	buf := make([]byte, 2048)
	c.SetReadDeadline(start.Add(limit))
	for {
		n, err := c.Read(buf)
		if err != nil {
			return 0, err
		}
		if string(buf[:n]) == want { // not the late echo of an earlier ping
			return time.Since(start), nil
		}
	}
}

// roundTrips sends n pings. It returns the sorted round-trip times and the
// number of lost pings.
func roundTrips(t testing.TB, c net.Conn, n int) (took []time.Duration, lost int) {
	t.Helper()
	for range n {
		d, err := ping(c, time.Second)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			lost++
		case err != nil:
			t.Fatal(err)
		default:
			took = append(took, d)
		}
	}
	slices.Sort(took)
	return took, lost
}
