// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/internal/proxyproto"
	"github.com/wanfed/wanfed/tlsutil"
)

const (
	// firstTrial is the time from the registration of the gateway, or from the
	// first snapshot with a server, to the first trial of a server. By then the
	// server has the registration.
	firstTrial = time.Second
	// trialInterval is the time between two trials of a server. A trial costs a
	// TLS handshake at both ends.
	trialInterval = 15 * time.Second
	// maxTrials bounds concurrent trials.
	maxTrials = 8
)

// localHeader is a PROXY header without an address, for a connection of the
// gateway itself.
var localHeader = proxyproto.Append(nil, netip.AddrPort{}, netip.AddrPort{})

// headerTrials finds the servers of the local datacenter that accept a PROXY
// header from this gateway: those with which a TLS handshake after a header
// works. A server does not accept a header if it is of an earlier version, or if
// it sees another address than the registered one, as behind NAT.
type headerTrials struct {
	// try performs a TLS handshake with a server, after header.
	try     func(ctx context.Context, addr string, header []byte) error
	log     *slog.Logger
	changed broadcast.Broadcast // notified after each change of accepting

	mu        sync.Mutex
	accepting []string // addresses, sorted; immutable
}

func newHeaderTrials(id *tlsutil.Identity, log *slog.Logger) *headerTrials {
	return &headerTrials{log: log, try: func(ctx context.Context, addr string, header []byte) error {
		ctx, cancel := context.WithTimeout(ctx, serverTimeout)
		defer cancel()
		c, err := dialServer(ctx, id, addr, header)
		if err != nil {
			return describe(err)
		}
		return c.Close()
	}}
}

// addrs returns the servers that accept a header, and a channel that is closed
// after a change.
func (t *headerTrials) addrs() ([]string, <-chan struct{}) {
	changed := t.changed.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.accepting, changed
}

// run tries the servers of the newest snapshot until ctx ends.
func (t *headerTrials) run(ctx context.Context, snapshot func() (*Snapshot, <-chan struct{})) {
	due := map[string]time.Time{}
	for ctx.Err() == nil {
		snap, changed := snapshot()
		var addrs, ready []string
		if snap != nil {
			addrs = snap.LocalAddresses()
		}
		maps.DeleteFunc(due, func(addr string, _ time.Time) bool { return !slices.Contains(addrs, addr) })
		now := time.Now()
		for _, addr := range addrs {
			if at, ok := due[addr]; !ok {
				due[addr] = now.Add(firstTrial)
			} else if !at.After(now) {
				ready, due[addr] = append(ready, addr), now.Add(trialInterval)
			}
		}
		t.tryAll(ctx, addrs, ready)
		next := now.Add(trialInterval)
		for _, at := range due {
			if at.Before(next) {
				next = at
			}
		}
		backoff.Sleep(ctx, time.Until(next), changed)
	}
}

// tryAll tries the servers ready and replaces accepting. Servers that are not
// in addrs do not exist any more.
func (t *headerTrials) tryAll(ctx context.Context, addrs, ready []string) {
	before, _ := t.addrs()
	var mu sync.Mutex
	accepting := map[string]bool{}
	for _, addr := range before {
		accepting[addr] = slices.Contains(addrs, addr)
	}
	var g errgroup.Group
	g.SetLimit(maxTrials)
	for _, addr := range ready {
		was := slices.Contains(before, addr)
		g.Go(func() error {
			now := t.accepts(ctx, addr, was)
			mu.Lock()
			defer mu.Unlock()
			accepting[addr] = now
			return nil
		})
	}
	_ = g.Wait()
	maps.DeleteFunc(accepting, func(_ string, ok bool) bool { return !ok })
	after := slices.Sorted(maps.Keys(accepting))
	if slices.Equal(before, after) || ctx.Err() != nil {
		return
	}
	t.mu.Lock()
	t.accepting = after
	t.mu.Unlock()
	t.changed.Notify()
}

// accepts tries one server. A server that accepted headers before, and now
// answers neither with nor without a header, still counts as accepting: it is
// overloaded or down.
func (t *headerTrials) accepts(ctx context.Context, addr string, before bool) bool {
	err := t.try(ctx, addr, localHeader)
	switch {
	case err == nil:
		if !before {
			t.log.Info("server accepts PROXY headers", "addr", addr)
		}
		return true
	case !before:
		t.log.Debug("server accepts no PROXY header", "addr", addr, "err", err)
		return false
	case t.try(ctx, addr, nil) != nil:
		return true
	}
	t.log.Warn("server no longer accepts PROXY headers", "addr", addr, "err", err)
	return false
}
