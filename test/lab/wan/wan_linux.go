// SPDX-License-Identifier: MPL-2.0

package wan

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Config configures a WAN.
type Config struct {
	// Link is the initial link of every direction between two ports. Path.Set
	// changes it.
	Link Link
	// Seed makes losses and jitter the same in every run with the same packets.
	// 0: a random seed.
	Seed uint64
	// Tap, if not nil, is called with each IP packet that a port sends, before
	// the path treats it. Tap must not block or keep the slice. One goroutine
	// makes all calls, one at a time.
	Tap func(packet []byte)
}

// WAN switches IP packets between its ports. Its methods may be called from any
// goroutine.
type WAN struct {
	cfg      Config
	unrouted atomic.Uint64
	table    atomic.Pointer[table] // written with mu held

	mu    sync.Mutex
	ended bool // Run has returned: Attach fails
	event int  // eventfd that wakes the switch; -1 while Run does not run
}

// table lists the attached ports. It is immutable: changes replace it.
type table struct {
	ports  []*Port
	byAddr map[netip.Addr]*Port
	paths  [][]*Path // by Port.index of sender and receiver; nil for a port and itself
}

// Port is a device in a namespace.
type Port struct {
	w     *WAN
	index int
	fd    int
	dead  bool // the device was deleted; used by the goroutine of the switch only
}

// ErrEnded is the error of Attach after Run has returned.
var ErrEnded = errors.New("the WAN has ended")

// New checks cfg and returns a WAN without ports. It does not start goroutines
// or open descriptors.
func New(cfg Config) (*WAN, error) {
	if err := cfg.Link.validate(); err != nil {
		return nil, fmt.Errorf("WAN: %w", err)
	}
	if cfg.Seed == 0 {
		cfg.Seed = rand.Uint64()
	}
	w := &WAN{cfg: cfg, event: -1}
	w.table.Store(&table{})
	return w, nil
}

// Attach creates the device dev in a namespace of ip-netns(8) and sets it up
// with MTU and without addresses. The caller adds the addresses, with a prefix
// that covers the WAN. Packets to addrs are delivered to this port. The device
// is deleted when Run returns. The caller of Attach must call Run, even if only
// with a context that has ended.
func (w *WAN) Attach(ns, dev string, addrs ...netip.Addr) (*Port, error) {
	fd, err := openTUN(ns, dev)
	if err != nil {
		return nil, fmt.Errorf("attach %s: %w", ns, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		unix.Close(fd)
		return nil, ErrEnded
	}
	old := w.table.Load()
	p := &Port{w: w, index: len(old.ports), fd: fd}
	t := &table{ports: append(slices.Clone(old.ports), p)}
	for from := range t.ports {
		row := make([]*Path, len(t.ports))
		for to := range t.ports {
			switch {
			case from == to:
			case from < p.index && to < p.index:
				row[to] = old.paths[from][to]
			default:
				row[to] = newPath(w.cfg.Link)
			}
		}
		t.paths = append(t.paths, row)
	}
	t.byAddr = routes(old, p, addrs)
	w.table.Store(t)
	w.wakeLocked()
	return p, nil
}

// routes returns the routes of t, with addrs as the only addresses of p.
func routes(t *table, p *Port, addrs []netip.Addr) map[netip.Addr]*Port {
	m := map[netip.Addr]*Port{}
	maps.Copy(m, t.byAddr)
	maps.DeleteFunc(m, func(_ netip.Addr, owner *Port) bool { return owner == p })
	for _, a := range addrs {
		m[a.Unmap()] = p
	}
	return m
}

// SetAddrs replaces the addresses whose packets are delivered to the port. It
// does not change the device.
func (p *Port) SetAddrs(addrs ...netip.Addr) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	t := *p.w.table.Load()
	t.byAddr = routes(&t, p, addrs)
	p.w.table.Store(&t)
}

// Path returns the direction from one port to another. Both must be different
// ports of w; otherwise Path panics.
func (w *WAN) Path(from, to *Port) *Path {
	if from.w != w || to.w != w || from == to {
		panic("wan: Path needs two ports of this WAN")
	}
	return w.table.Load().paths[from.index][to.index]
}

// Unrouted returns how many packets had an address that no port has, or were
// not IP packets. Kernels with IPv6 send a few such packets on their own.
func (w *WAN) Unrouted() uint64 { return w.unrouted.Load() }

// wakeLocked makes the switch check the table and its context. The caller holds
// w.mu.
func (w *WAN) wakeLocked() {
	if w.event >= 0 {
		_, _ = unix.Write(w.event, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // fails only if the eventfd is readable already
	}
}

// Run switches packets until ctx ends. It then deletes all devices and returns
// nil. It returns an error if a system call fails. Run must be called exactly
// once.
func (w *WAN) Run(ctx context.Context) error {
	defer w.end()
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("WAN: eventfd: %w", err)
	}
	w.mu.Lock()
	w.event = event
	w.mu.Unlock()
	defer context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.wakeLocked()
	})()
	s := &switcher{w: w, event: event, random: rand.New(rand.NewPCG(w.cfg.Seed, 1)).Float64}
	done := make(chan error, 1)
	go func() { done <- s.run(ctx) }() // a goroutine that can keep its thread
	return <-done
}

// end closes all descriptors after the goroutine of the switch has ended.
func (w *WAN) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	if w.event >= 0 {
		unix.Close(w.event)
		w.event = -1
	}
	for _, p := range w.table.Load().ports {
		unix.Close(p.fd)
	}
}
