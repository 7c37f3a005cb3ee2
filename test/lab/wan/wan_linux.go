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

// Config of a WAN.
type Config struct {
	// Link is what every direction between two ports does until Path.Set says otherwise.
	Link Link
	// Seed makes losses and jitter the same in every run with the same packets. 0: another one each time.
	Seed uint64
	// Tap, if not nil, is called with each IP packet that a port sends, before anything is done to it. It must not block, nor
	// keep the slice. Calls come from one goroutine, one at a time.
	Tap func(packet []byte)
}

// WAN switches IP packets between its ports. Its methods may be called from any goroutine.
type WAN struct {
	cfg      Config
	unrouted atomic.Uint64
	table    atomic.Pointer[table] // written with mu held

	mu    sync.Mutex
	ended bool // after Run: nothing can be attached any more
	event int  // eventfd that wakes the switch; -1 while it does not run
}

// table is who is attached. It is replaced, never changed.
type table struct {
	ports  []*Port
	byAddr map[netip.Addr]*Port
	paths  [][]*Path // by Port.index of sender and receiver; nil from a port to itself
}

// Port is a device in a namespace.
type Port struct {
	w     *WAN
	index int
	fd    int
	dead  bool // belongs to the switch's goroutine: the device is gone
}

// ErrEnded says that Run has returned.
var ErrEnded = errors.New("the WAN has ended")

// New checks cfg. It starts and opens nothing.
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

// Attach makes the device dev in a namespace of ip-netns(8), up, with MTU and without addresses: the caller adds those, with
// a prefix that covers the WAN. Packets to addrs go to this port. The device is gone when Run returns; an attached port needs
// a Run, be it with a context that has ended.
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

// routes is t's with p at addrs and nowhere else.
func routes(t *table, p *Port, addrs []netip.Addr) map[netip.Addr]*Port {
	m := map[netip.Addr]*Port{}
	maps.Copy(m, t.byAddr)
	maps.DeleteFunc(m, func(_ netip.Addr, owner *Port) bool { return owner == p })
	for _, a := range addrs {
		m[a.Unmap()] = p
	}
	return m
}

// SetAddrs says that packets to these addresses, and to no others, go to the port. It does not change the device.
func (p *Port) SetAddrs(addrs ...netip.Addr) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	t := *p.w.table.Load()
	t.byAddr = routes(&t, p, addrs)
	p.w.table.Store(&t)
}

// Path is the direction from one port to another one; both must be attached to w.
func (w *WAN) Path(from, to *Port) *Path {
	if from.w != w || to.w != w || from == to {
		panic("wan: Path needs two ports of this WAN")
	}
	return w.table.Load().paths[from.index][to.index]
}

// Unrouted counts packets to addresses that no port has, and what is no IP packet. IPv6 kernels send a few by themselves.
func (w *WAN) Unrouted() uint64 { return w.unrouted.Load() }

// wakeLocked makes the switch look at the table and its context.
func (w *WAN) wakeLocked() {
	if w.event >= 0 {
		_, _ = unix.Write(w.event, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // eventfd(2): it only fails when it is readable already
	}
}

// Run switches packets until ctx ends, then takes all devices away and returns nil. It returns an error when the system does
// not give it what it needs. Call it once.
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
	go func() { done <- s.run(ctx) }() // its own goroutine, for a thread of its own
	return <-done
}

// end closes everything. The switch's goroutine has ended.
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
