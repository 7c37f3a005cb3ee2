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

// emulator is the emulated WAN of a lab.
type emulator struct {
	w    *wan.WAN
	taps atomic.Pointer[[]*tap]

	mu    sync.Mutex // guards writes to taps, and ports
	ports map[*Node]*wan.Port
}

type tap struct{ f func(packet []byte) }

// NewWAN returns an empty lab with an emulated WAN. Every direction between two
// gateways has the properties of link until WANLink.Set changes them. NewWAN
// skips the test where a WAN cannot be emulated.
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

// attach adds the WAN interface of a gateway.
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

// moved sets the new address of a gateway.
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

// Tap calls f with every IP packet that a gateway sends into the emulated WAN,
// before delay and loss, until stop is called. f must not block and must not
// retain the slice. f may still run when stop returns.
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

// FlowOf returns the flow of an IPv4 packet. It returns false if the packet is
// not TCP over IPv4.
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

// Capture captures all traffic of the WAN until the test ends.
func (l *Lab) Capture() *Capture {
	l.t.Helper()
	if l.emulator == nil {
		return StartCapture(l.t, l.WAN)
	}
	c := &Capture{fd: -1, flows: map[Flow][]*stream{}, other: map[string]int{}}
	c.cancel = l.Tap(c.packet)
	return c
}

// packet records a packet without an Ethernet header.
func (c *Capture) packet(b []byte) {
	typ := uint16(etherIPv4)
	if len(b) > 0 && b[0]>>4 == 6 {
		typ = etherIPv6
	}
	c.frame(append(binary.BigEndian.AppendUint16(make([]byte, 12, 14+len(b)), typ), b...))
}

// WANLink is the emulated WAN between two gateways.
type WANLink struct {
	There *wan.Path // from the first gateway to the second
	Back  *wan.Path // from the second gateway to the first
	t     testing.TB
}

// WANLink returns the link between two gateways of a lab made by NewWAN.
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

// Cut drops all packets in both directions until Heal. Delay and loss stay.
func (k WANLink) Cut() { k.t.Helper(); k.cut(true) }

// Heal ends Cut.
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

// CutWAN cuts the links of a gateway to all other gateways until HealWAN. Its
// process and its LAN interface keep working.
func (n *Node) CutWAN() { n.dc.lab.t.Helper(); n.eachLink(WANLink.Cut) }

// HealWAN ends CutWAN.
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
