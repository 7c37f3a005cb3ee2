// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/gossip/gossiptest"
	"github.com/wanfed/wanfed/internal/testutil"
)

// node is a pool on an in-memory network.
type node struct {
	*Pool
	cancel context.CancelFunc
	done   chan error
}

// newNode runs a pool at a new address. options change its Config.
func newNode(t *testing.T, n *gossiptest.Network, name string, options ...func(*Config)) *node {
	t.Helper()
	transport := n.Add(name)
	cfg := Config{
		Name: name, Tags: map[string]string{"of": name}, Transport: transport,
		Advertise: netip.MustParseAddrPort(transport.Addr.Addr), Logger: slog.New(slog.DiscardHandler),
	}
	for _, option := range options {
		option(&cfg)
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
	case <-p.ready: // the member list is not empty any more
	case err := <-out.done:
		t.Fatal(err)
	}
	return out
}

// stop ends Run and waits for its end. It may be called again.
func (n *node) stop() {
	n.cancel()
	n.done <- <-n.done
}

// kill ends the node without a leave message.
func (n *node) kill(t *testing.T) {
	t.Helper()
	<-n.ready
	if err := errors.Join(n.cfg.Transport.Shutdown(), n.serf.Load().Shutdown()); err != nil {
		t.Fatal(err)
	}
}

func (n *node) addr() string { return n.cfg.Name + "/" + n.cfg.Advertise.String() }

// await waits until check accepts the member list of n.
func (n *node) await(t *testing.T, check func([]Member) error) {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		changed := n.Changed()
		err := check(n.Members())
		if err == nil {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("members of %s = %v: %v", n.cfg.Name, n.Members(), err)
		}
	}
}

// has returns a check that the members include a member with this name, address
// and status.
func has(name, addr string, s Status) func([]Member) error {
	return func(ms []Member) error {
		i := slices.IndexFunc(ms, func(m Member) bool { return m.Name == name })
		if i < 0 || ms[i].Status != s || ms[i].Addr != addr || ms[i].Tags["of"] != name {
			return fmt.Errorf("want %s %s at %s", name, s, addr)
		}
		return nil
	}
}

func TestJoinAndLeave(t *testing.T) {
	t.Parallel()
	var net gossiptest.Network
	a, b := newNode(t, &net, "a"), newNode(t, &net, "b")
	if err := a.Join(t.Context(), b.addr()); err != nil {
		t.Fatal(err)
	}
	a.await(t, has("b", b.cfg.Advertise.String(), StatusAlive))
	b.await(t, has("a", a.cfg.Advertise.String(), StatusAlive))
	b.stop()
	a.await(t, has("b", b.cfg.Advertise.String(), StatusLeft))
	if err := b.Join(t.Context(), a.addr()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("Join() after Run = %v, want ErrNotRunning", err)
	}
}

// A killed member restarts at another address before other members detect its
// end.
func TestRejoin_AfterAddressChange(t *testing.T) {
	t.Parallel()
	var net gossiptest.Network
	a, c := newNode(t, &net, "a"), newNode(t, &net, "c")
	b := newNode(t, &net, "b")
	if err := b.Join(t.Context(), a.addr(), c.addr()); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*node{a, c} {
		n.await(t, has("b", b.cfg.Advertise.String(), StatusAlive))
	}
	b.kill(t)

	moved := newNode(t, &net, "b")
	if moved.cfg.Advertise == b.cfg.Advertise {
		t.Fatalf("address after the restart = %v, want another address", moved.cfg.Advertise)
	}
	if err := moved.Join(t.Context(), a.addr()); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*node{a, c, moved} {
		n.await(t, has("b", moved.cfg.Advertise.String(), StatusAlive))
	}
	moved.await(t, has("c", c.cfg.Advertise.String(), StatusAlive))
}

// A peer reports a forged address of a member. The member keeps its serf
// instance and its list, and remains a member at its address.
func TestRejoin_ForgedReport(t *testing.T) {
	t.Parallel()
	var net gossiptest.Network
	rejoined := make(chan struct{})
	a := newNode(t, &net, "a", func(c *Config) {
		c.NameTaken = func(context.Context, netip.AddrPort) bool { close(rejoined); return false }
	})
	b := newNode(t, &net, "b")
	if err := a.Join(t.Context(), b.addr()); err != nil {
		t.Fatal(err)
	}
	b.await(t, has("a", a.cfg.Advertise.String(), StatusAlive))
	before := a.serf.Load()
	forged := encoded(struct {
		Incarnation     uint32
		Node            string
		Addr, Meta, Vsn []byte
		Port            uint16
	}{7, "a", []byte{127, 0, 0, 9}, encodeTags("of", "a"), []byte{1, 5, 2, 2, 5, 5}, 1}, aliveMsg)
	net.Transport("a").Deliver(forged, "c")
	<-rejoined
	b.await(t, has("a", a.cfg.Advertise.String(), StatusFailed))
	b.await(t, has("a", a.cfg.Advertise.String(), StatusAlive))
	if a.serf.Load() != before || len(a.Members()) != 2 {
		t.Errorf("members of a after the report = %v with a new instance %v, want 2 and false", a.Members(), a.serf.Load() != before)
	}
}

func TestAdmit_RejectsMember(t *testing.T) {
	t.Parallel()
	var net gossiptest.Network
	a := newNode(t, &net, "a", func(c *Config) {
		c.Admit = func(m Member) error {
			if m.Tags["of"] == "unwanted" {
				return errors.New("not admitted")
			}
			return nil
		}
	})
	unwanted := newNode(t, &net, "unwanted")
	if err := a.Join(t.Context(), unwanted.addr()); err == nil {
		t.Error("Join() of a rejected member = nil, want an error")
	}
	if n := len(a.Members()); n != 1 {
		t.Errorf("Members() = %d members, want 1", n)
	}
}

// errorList is an error like those of memberlist, with several lines.
type errorList []error

func (l errorList) Error() string {
	return fmt.Sprintf("%d errors occurred:\n\t%v\n", len(l), []error(l))
}
func (l errorList) WrappedErrors() []error { return l }

func TestOneLine(t *testing.T) {
	list := errorList{
		errors.New("failed to join 192.0.2.1:8300: no"), errors.New("failed to join 10.0.0.1:8300: refused"),
	}
	got := oneLine(list, []string{"*.dc2/192.0.2.1:8300", "10.0.0.1:8300"})
	if want := "no; failed to join 10.0.0.1:8300: refused"; got.Error() != want {
		t.Errorf("oneLine(%v) = %q, want %q", list, got, want)
	}
	for _, err := range []error{errors.New("plain"), nil} {
		if got := oneLine(err, nil); got != err {
			t.Errorf("oneLine(%v) = %v, want it unchanged", err, got)
		}
	}
}

// TestReap_RemovesFailedMembers has members that are alive, failed and left. All
// are to be removed, but an alive member stays. A removed member may return.
func TestReap_RemovesFailedMembers(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		var net gossiptest.Network
		var reap atomic.Bool
		a := newNode(t, &net, "a", func(c *Config) { c.Reap = func(string) bool { return reap.Load() } })
		nodes := map[string]*node{}
		for _, name := range []string{"failed", "left", "alive"} {
			nodes[name] = newNode(t, &net, name)
			if err := nodes[name].Join(t.Context(), a.addr()); err != nil {
				t.Fatal(err)
			}
		}
		listed := func() string {
			synctest.Wait()
			var all []string
			for _, m := range a.Members() {
				all = append(all, fmt.Sprintf("%s:%s", m.Name, m.Status))
			}
			return strings.Join(all, " ")
		}
		net.Cut("failed", true)
		nodes["left"].stop()
		time.Sleep(5 * time.Minute)
		if got, want := listed(), "a:alive alive:alive failed:failed left:left"; got != want {
			t.Errorf("members after five minutes = %s, want %s", got, want)
		}
		reap.Store(true)
		time.Sleep(20 * time.Second)
		if got, want := listed(), "a:alive alive:alive"; got != want {
			t.Errorf("members after Reap = %s, want %s", got, want)
		}
		net.Cut("failed", false)
		if err := nodes["failed"].Join(t.Context(), a.addr()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got, want := listed(), "a:alive alive:alive failed:alive"; got != want {
			t.Errorf("members after the return = %s, want %s", got, want)
		}
	})
}
