// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
)

// headerGrace is the time after which a server no longer accepts PROXY headers
// from the address of a gateway that is gone. The gateway, or the one that
// replaces it, may still open connections while it stops.
const headerGrace = 10 * time.Second

// headerSources are the addresses from which a server accepts PROXY headers:
// the LAN addresses of the gateways that are registered in its datacenter, also
// of those whose heartbeat is late.
type headerSources struct {
	known chan struct{} // closed by the first call of update

	mu    sync.Mutex
	until map[netip.Addr]time.Time // zero: the gateway is registered
}

func newHeaderSources() *headerSources { return &headerSources{known: make(chan struct{})} }

// update replaces the registered gateways. Only one goroutine may call it.
func (h *headerSources) update(gateways []*pb.MeshGateway) {
	h.mu.Lock()
	defer h.mu.Unlock()
	first, old := h.until == nil, h.until
	h.until = make(map[netip.Addr]time.Time, len(gateways))
	for _, g := range gateways {
		if lan, err := netip.ParseAddrPort(catalog.TaggedAddr(g, catalog.TagLAN)); err == nil {
			h.until[lan.Addr().Unmap().WithZone("")] = time.Time{}
		}
	}
	now := time.Now()
	for addr, until := range old {
		if _, ok := h.until[addr]; ok {
			continue
		}
		if until.IsZero() {
			until = now.Add(headerGrace)
		}
		if now.Before(until) {
			h.until[addr] = until
		}
	}
	if first {
		close(h.known)
	}
}

// contain reports whether addr is that of a gateway. After a start, contain
// waits for the registered gateways, at most until ctx ends.
func (h *headerSources) contain(ctx context.Context, addr netip.Addr) bool {
	select {
	case <-h.known:
	case <-ctx.Done():
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	until, ok := h.until[addr.Unmap().WithZone("")]
	return ok && (until.IsZero() || time.Now().Before(until))
}
