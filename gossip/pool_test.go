// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/hclogs"
)

// node is a pool on a network in memory.
type node struct {
	*Pool
	cancel context.CancelFunc
	done   chan error
}

// newNode runs a pool at an address of its own, whose Config the last argument may change.
func newNode(t *testing.T, n *network, name string, admit func(Member) error, more ...func(*Config)) *node {
	t.Helper()
	tr := n.transport(name)
	ip, port, err := tr.FinalAdvertiseAddr("", 0)
	if err != nil {
		t.Fatal(err)
	}
	addr, _ := netip.AddrFromSlice(ip.To4())
	cfg := Config{
		Name: name, Tags: map[string]string{"of": name}, Transport: tr, Advertise: netip.AddrPortFrom(addr, uint16(port)),
		Admit: admit, Logger: slog.New(slog.DiscardHandler),
	}
	for _, change := range more {
		change(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	out := &node{Pool: p, cancel: cancel, done: make(chan error, 1)}
	go func() { out.done <- p.Run(ctx) }()
	t.Cleanup(out.stop)
	select {
	case <-p.ready: // before, it would tell who joins it of no member at all
	case err := <-out.done:
		t.Fatal(err)
	}
	return out
}

func (n *node) stop() {
	n.cancel()
	n.done <- <-n.done // it stays readable
}

// kill ends the node so that nobody is told.
func (n *node) kill(t *testing.T) {
	t.Helper()
	<-n.ready
	if err := errors.Join(n.cfg.Transport.Shutdown(), n.serf.Load().Shutdown()); err != nil {
		t.Fatal(err)
	}
}

func (n *node) addr() string { return n.cfg.Name + "/" + n.cfg.Advertise.String() }

// await waits until check is nil for the members that n sees.
func (n *node) await(t *testing.T, what string, check func([]Member) error) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		changed := n.Changed()
		err := check(n.Members())
		if err == nil {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("%s sees %v: %s: %v", n.cfg.Name, n.Members(), what, err)
		}
	}
}

func has(name, addr string, s Status) func([]Member) error {
	return func(ms []Member) error {
		i := slices.IndexFunc(ms, func(m Member) bool { return m.Name == name })
		if i < 0 || ms[i].Status != s || ms[i].Addr != addr || ms[i].Tags["of"] != name {
			return fmt.Errorf("%s is not %s at %s", name, s, addr)
		}
		return nil
	}
}

func TestJoinAndLeave(t *testing.T) {
	t.Parallel()
	var net network
	a, b := newNode(t, &net, "a", nil), newNode(t, &net, "b", nil)
	if err := a.Join(t.Context(), b.addr()); err != nil {
		t.Fatal(err)
	}
	a.await(t, "joined", has("b", b.cfg.Advertise.String(), StatusAlive))
	b.await(t, "joined", has("a", a.cfg.Advertise.String(), StatusAlive))
	b.stop()
	a.await(t, "left", has("b", b.cfg.Advertise.String(), StatusLeft))
	if err := b.Join(t.Context(), a.addr()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("Join() after Run = %v, want ErrNotRunning", err)
	}
}

// A member that was killed comes back under another address before anybody noticed.
func TestMemberMoves(t *testing.T) {
	t.Parallel()
	var net network
	a, c := newNode(t, &net, "a", nil), newNode(t, &net, "c", nil)
	b := newNode(t, &net, "b", nil)
	if err := b.Join(t.Context(), a.addr(), c.addr()); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*node{a, c} {
		n.await(t, "joined", has("b", b.cfg.Advertise.String(), StatusAlive))
	}
	b.kill(t)

	moved := newNode(t, &net, "b", nil)
	if moved.cfg.Advertise == b.cfg.Advertise {
		t.Fatal("the network gave it the same address: nothing is tested")
	}
	if err := moved.Join(t.Context(), a.addr()); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*node{a, c, moved} {
		n.await(t, "moved", has("b", moved.cfg.Advertise.String(), StatusAlive))
	}
	moved.await(t, "knows the others", has("c", c.cfg.Advertise.String(), StatusAlive))
}

func TestAdmit(t *testing.T) {
	t.Parallel()
	var net network
	a := newNode(t, &net, "a", func(m Member) error {
		if m.Tags["of"] == "stranger" {
			return errors.New("strangers stay outside")
		}
		return nil
	})
	s := newNode(t, &net, "stranger", nil)
	if err := a.Join(t.Context(), s.addr()); err == nil {
		t.Error("the stranger was joined")
	}
	if n := len(a.Members()); n != 1 {
		t.Errorf("%d members, want one", n)
	}
}

// TestInTLS: a public address without gossip keys is no reason to warn, since gossip travels in TLS, nor is that the pool's own transport has
// been shut down; all else is told.
func TestInTLS(t *testing.T) {
	var b strings.Builder
	log := hclogs.Std(slog.New(inTLS{slog.NewTextHandler(&b, nil)}), "memberlist")
	log.Print("[WARN] memberlist: Binding to public address without encryption!")
	log.Printf("[ERR] memberlist: Failed to send gossip to 10.0.0.5:8300: %s", net.ErrClosed)
	log.Print("[WARN] memberlist: another")
	if got := b.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "another") {
		t.Error(got)
	}
}
