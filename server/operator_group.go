// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"sync"
	"time"

	"github.com/wanfed/wanfed/gossip"
)

// holds are servers that an operator has removed from the group though they run. The leader that removed them knows it, and
// nobody else.
type holds struct {
	mu    sync.Mutex
	until map[string]time.Time
}

func (h *holds) add(node string, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.until == nil {
		h.until = map[string]time.Time{}
	}
	h.until[node] = until
}

func (h *holds) drop(node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.until, node)
}

// on says whether the server must not be added now. prune forgets those that have stopped.
func (h *holds) on(node string, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return now.Before(h.until[node])
}

func (h *holds) prune(members []gossip.Member) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for node := range h.until {
		if p := find(members, node); p == nil || !p.Alive() {
			delete(h.until, node)
		}
	}
}

// runMembers applies the rules until ctx ends. It belongs under leadership.
func (g *group) runMembers(ctx context.Context) error {
	m := newMembership(g.node, g.expect, g.deadAfter)
	refused := map[string]bool{}
	for {
		changed := g.lan.Changed()
		again := g.reconcile(ctx, m, refused)
		timer := time.NewTimer(again)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		timer.Stop()
	}
}

// reconcile looks once, and does what there is to do.
func (g *group) reconcile(ctx context.Context, m *membership, refused map[string]bool) (again time.Duration) {
	servers, err := g.raft.Members()
	if err != nil {
		g.logger.Warn("reading the Raft group", "err", err)
		return time.Second
	}
	members, now := g.lan.Members(), time.Now()
	g.holds.prune(members)
	todo, again := m.plan(now, servers, g.raft.LastIndex(), members, func(p gossip.Member) bool {
		return g.holds.on(p.Name, now) || g.refuses(p, refused)
	})
	for _, text := range m.warned {
		g.logger.Warn("a server that is down stays in the Raft group", "why", text)
	}
	m.warned = nil
	for _, c := range todo {
		if err := g.apply(ctx, c); err != nil && ctx.Err() == nil {
			g.logger.Warn("changing the Raft group", "change", c.do, "peer", c.node, "err", err)
			return time.Second
		}
	}
	if len(todo) > 0 {
		return 0
	}
	return again
}

// refuses says whether a server and this one were both started to form a group alone.
func (g *group) refuses(p gossip.Member, refused map[string]bool) bool {
	if g.expect != 1 || p.Tags[tagExpect] != "1" {
		return false
	}
	if !refused[p.Name] {
		g.logger.Error("server not added to the Raft group: both it and this one were started to form one alone; "+
			"start it anew with an empty data dir and --bootstrap-expect 3", "peer", p.Name)
	}
	refused[p.Name] = true
	return true
}

func (g *group) apply(ctx context.Context, c change) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	var err error
	switch c.do {
	case addServer:
		if err = g.raft.AddNonvoter(ctx, c.node); err == nil {
			g.logger.Info("server added to the Raft group; it has no vote yet", "peer", c.node)
		}
	case giveVote:
		if err = g.raft.AddVoter(ctx, c.node); err == nil {
			g.logger.Info("server has a vote in the Raft group", "peer", c.node)
		}
	case remove:
		if err = g.raft.RemoveServer(ctx, c.node); err == nil {
			g.logger.Info("server removed from the Raft group", "peer", c.node, "why", c.why)
		}
	}
	return err
}
