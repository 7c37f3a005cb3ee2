// SPDX-License-Identifier: MPL-2.0

package xds

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/internal/ratelog"
)

const (
	// lookupInterval is the time between two lookups of a name. net.Resolver does
	// not report the TTL of a name. Common TTLs are longer.
	lookupInterval = 5 * time.Second
	lookupTimeout  = 2 * time.Second
	// maxHostNames limits the names of one datacenter that are resolved. Another
	// datacenter chooses its names.
	maxHostNames = 32
	// maxHostAddrs limits the addresses of a name.
	maxHostAddrs = 16
	// maxLookups is the number of concurrent lookups.
	maxLookups = 16
)

// names resolves the host names in snapshots. Envoy could resolve them too, but
// would then connect to each address, also to loopback addresses for a name of
// another datacenter. A name keeps its last addresses while it cannot be resolved.
type names struct {
	lookup  func(ctx context.Context, network, host string) ([]netip.Addr, error)
	refused *ratelog.Logger[string] // logs refused addresses, by name
	changed broadcast.Broadcast
	wake    chan struct{} // size 1: a name is new

	mu      sync.Mutex
	known   map[string][]netip.Addr // by name in use, sorted; nil: not resolved yet
	version uint64                  // number of changes of the addresses in known
}

func newNames(log *slog.Logger) *names {
	return &names{lookup: net.DefaultResolver.LookupNetIP, refused: ratelog.New[string](log),
		wake: make(chan struct{}, 1), known: map[string][]netip.Addr{}}
}

// use replaces the names in use. Run resolves the new ones.
func (n *names) use(hosts map[string]bool) {
	n.mu.Lock()
	maps.DeleteFunc(n.known, func(host string, _ []netip.Addr) bool { return !hosts[host] })
	isNew := false
	for host := range hosts {
		if _, ok := n.known[host]; !ok {
			n.known[host], isNew = nil, true
		}
	}
	n.mu.Unlock()
	if isNew {
		select {
		case n.wake <- struct{}{}:
		default:
		}
	}
}

// addresses returns the addresses of a host, which may be an address. It leaves out
// the addresses of a name of the kinds in refuse. It returns false for a name that
// was not resolved yet.
func (n *names) addresses(host string, refuse netaddr.Class) (out []netip.Addr, resolved bool) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.known[host]
	for _, ip := range all {
		if netaddr.ClassOf(ip)&refuse == 0 {
			out = append(out, ip)
		} else {
			n.refused.Log(host, slog.LevelWarn, "address refused", "name", host, "err", netaddr.RefusedError(ip))
		}
	}
	return out, all != nil
}

// changes returns the number of changes of the addresses.
func (n *names) changes() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.version
}

// run resolves the names in use, at once and every lookupInterval, until ctx ends.
func (n *names) run(ctx context.Context) error {
	for ctx.Err() == nil {
		n.mu.Lock()
		hosts := slices.Sorted(maps.Keys(n.known))
		n.mu.Unlock()
		if len(hosts) == 0 {
			select {
			case <-n.wake:
			case <-ctx.Done():
			}
			continue
		}
		n.resolve(ctx, hosts)
		backoff.Sleep(ctx, lookupInterval, n.wake)
	}
	return nil
}

// resolve resolves hosts, and stores what has changed.
func (n *names) resolve(ctx context.Context, hosts []string) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxLookups)
	for _, host := range hosts {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
			defer cancel()
			if ips, err := n.lookup(ctx, "ip", host); err == nil && len(ips) > 0 {
				n.store(host, ips)
			}
		})
	}
	wg.Wait()
}

// store keeps the IPv4 addresses of a name, or its IPv6 addresses if it has no
// others, at most maxHostAddrs.
func (n *names) store(host string, ips []netip.Addr) {
	for i, ip := range ips {
		ips[i] = ip.Unmap()
	}
	if slices.ContainsFunc(ips, netip.Addr.Is4) {
		ips = slices.DeleteFunc(ips, netip.Addr.Is6)
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	ips = slices.Compact(ips)
	ips = ips[:min(len(ips), maxHostAddrs)]
	n.mu.Lock()
	old, used := n.known[host]
	changed := used && !slices.Equal(old, ips)
	if changed {
		n.known[host] = ips
		n.version++
	}
	n.mu.Unlock()
	if changed {
		n.changed.Notify()
	}
}
