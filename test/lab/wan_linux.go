// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/wanfed/wanfed/test/lab/wan"
)

// emulator is a lab's WAN when it is no bridge.
type emulator struct {
	w    *wan.WAN
	taps atomic.Pointer[[]*tap]

	mu    sync.Mutex // for writing taps, and for ports
	ports map[*Node]*wan.Port
}

type tap struct{ f func(packet []byte) }

// NewWAN makes an empty lab whose WAN is emulated: every direction between two gateways does to packets what link says, until
// WANLink says otherwise. It skips the test where that cannot be.
func NewWAN(t testing.TB, link wan.Link) *Lab {
	t.Helper()
	if err := wan.Check(); err != nil {
		t.Skip(err)
	}
	l := newLab(t)
	e := &emulator{ports: map[*Node]*wan.Port{}}
	e.taps.Store(&[]*tap{})
	var err error
	if e.w, err = wan.New(wan.Config{Link: link, Tap: e.tap}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	l.emulator = e
	return l
}

// attach gives a gateway its leg in the WAN.
func (e *emulator) attach(n *Node) {
	t := n.dc.lab.t
	t.Helper()
	port, err := e.w.Attach(n.NS, "wan", netip.MustParseAddr(n.WAN))
	if err != nil {
		t.Fatal(err)
	}
	n.dc.lab.Net.Address(n.NS, "wan", n.WAN+"/16")
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ports[n] = port
}

// moved tells the emulator a gateway's new address.
func (e *emulator) moved(n *Node) {
	e.port(n).SetAddrs(netip.MustParseAddr(n.WAN))
}

func (e *emulator) port(n *Node) *wan.Port {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ports[n]
}

func (e *emulator) tap(packet []byte) {
	for _, t := range *e.taps.Load() {
		t.f(packet)
	}
}

// Tap calls f with every IP packet that a gateway sends to an emulated WAN, before anything happens to it, until stop is
// called. f must not block, nor keep the slice; it may still be running when stop returns.
func (l *Lab) Tap(f func(packet []byte)) (stop func()) {
	e, one := l.emulator, &tap{f}
	change := func(with func([]*tap) []*tap) {
		e.mu.Lock()
		defer e.mu.Unlock()
		taps := with(slices.Clone(*e.taps.Load()))
		e.taps.Store(&taps)
	}
	change(func(t []*tap) []*tap { return append(t, one) })
	return func() {
		change(func(ts []*tap) []*tap { return slices.DeleteFunc(ts, func(t *tap) bool { return t == one }) })
	}
}

// FlowOf reads to which direction of which TCP connection an IPv4 packet belongs.
func FlowOf(packet []byte) (f Flow, ok bool) {
	if len(packet) < 20 || packet[0]>>4 != 4 || packet[9] != protoTCP {
		return f, false
	}
	head := int(packet[0]&15) * 4
	if head < 20 || len(packet) < head+20 {
		return f, false
	}
	src, dst := netip.AddrFrom4([4]byte(packet[12:16])), netip.AddrFrom4([4]byte(packet[16:20]))
	return Flow{
		From: netip.AddrPortFrom(src, binary.BigEndian.Uint16(packet[head:])),
		To:   netip.AddrPortFrom(dst, binary.BigEndian.Uint16(packet[head+2:])),
	}, true
}

// Capture captures all of the WAN, be it a bridge or emulated. The test's end stops it.
func (l *Lab) Capture() *Capture {
	l.t.Helper()
	if l.emulator == nil {
		return StartCapture(l.t, l.WAN)
	}
	c := &Capture{fd: -1, flows: map[Flow]*stream{}, other: map[string]int{}}
	c.cancel = l.Tap(c.packet)
	return c
}

// packet is frame for what has no Ethernet header.
func (c *Capture) packet(b []byte) {
	typ := uint16(etherIPv4)
	if len(b) > 0 && b[0]>>4 == 6 {
		typ = etherIPv6
	}
	c.frame(append(binary.BigEndian.AppendUint16(make([]byte, 12, 14+len(b)), typ), b...))
}

// WANLink is the emulated WAN between two gateways.
type WANLink struct {
	There, Back *wan.Path // from the first gateway to the second, and from that to the first
	t           testing.TB
}

// WANLink returns what is between two gateways of a lab made by NewWAN.
func (l *Lab) WANLink(a, b *Node) WANLink {
	e := l.emulator
	return WANLink{There: e.w.Path(e.port(a), e.port(b)), Back: e.w.Path(e.port(b), e.port(a)), t: l.t}
}

// Set changes both directions.
func (k WANLink) Set(link wan.Link) {
	k.t.Helper()
	for _, p := range []*wan.Path{k.There, k.Back} {
		if err := p.Set(link); err != nil {
			k.t.Fatal(err)
		}
	}
}

// Cut drops everything in both directions; Heal ends that. Neither changes what else the link does.
func (k WANLink) Cut()  { k.t.Helper(); k.cut(true) }
func (k WANLink) Heal() { k.t.Helper(); k.cut(false) }

func (k WANLink) cut(yes bool) {
	k.t.Helper()
	for _, p := range []*wan.Path{k.There, k.Back} {
		link := p.Link()
		link.Cut = yes
		if err := p.Set(link); err != nil {
			k.t.Fatal(err)
		}
	}
}

// CutWAN cuts a gateway's links to all others. Its process and its LAN side go on. HealWAN ends that.
func (n *Node) CutWAN()  { n.dc.lab.t.Helper(); n.eachLink(WANLink.Cut) }
func (n *Node) HealWAN() { n.dc.lab.t.Helper(); n.eachLink(WANLink.Heal) }

func (n *Node) eachLink(f func(WANLink)) {
	for _, dc := range n.dc.lab.dcs {
		for _, other := range dc.Gateways {
			if other != n {
				f(n.dc.lab.WANLink(n, other))
			}
		}
	}
}
