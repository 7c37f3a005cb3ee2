// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/wanfed/wanfed/pool"
)

// Tags of LAN pool members.
const (
	tagExpect = "expect"
	// tagRaft is "1" once a server has Raft state: it must not be part of a new group.
	tagRaft = "raft"
)

// raftGroup is what bootstrap and membership need of the store.
type raftGroup interface {
	HasState() bool
	Bootstrap(nodes []string) error
	Peers() ([]string, error)
	AddVoter(ctx context.Context, node string) error
	RemoveServer(ctx context.Context, node string) error
	LeaderChanged() <-chan struct{}
}

// group forms the datacenter's Raft group out of the LAN pool.
type group struct {
	node   string
	expect int
	join   []string // LAN addresses
	tags   map[string]string
	raft   raftGroup
	lan    *pool.Pool
	logger *slog.Logger
}

const (
	minLANBackoff = 100 * time.Millisecond
	maxLANBackoff = 2 * time.Second
)

// runJoin contacts the configured addresses as long as no other server of this datacenter is alive, and every one that the
// pool calls failed: it may have been cut off only, and then nobody but this server and its like notices that it is back.
func (g *group) runJoin(ctx context.Context) error {
	backoff, failing := minLANBackoff, false
	var last []string
	for {
		changed := g.lan.Changed()
		missing := g.missing()
		if !slices.Equal(missing, last) {
			backoff, failing, last = minLANBackoff, false, missing
		}
		if len(missing) == 0 {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		order := slices.Clone(missing) // they are dialed one after the other: a dead one should not always be the first
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		if err := g.lan.Join(ctx, order...); err != nil && ctx.Err() == nil {
			level := slog.LevelWarn
			if failing {
				level = slog.LevelDebug // no news
			}
			g.logger.Log(ctx, level, "joining the LAN pool", "err", err)
			failing = true
		}
		timer := time.NewTimer(backoff + rand.N(backoff/4))
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		timer.Stop()
		backoff = min(2*backoff, maxLANBackoff)
	}
}

// missing lists whom to join: host:port, or node/host:port.
func (g *group) missing() []string {
	var out []string
	alone := true
	for _, m := range g.lan.Members() {
		switch {
		case m.Name == g.node:
		case m.Alive():
			alone = false
		case m.Status == pool.StatusFailed:
			out = append(out, m.Name+"/"+m.Addr)
		}
	}
	if alone {
		out = append(out, g.join...)
	}
	return out
}

// runBootstrap forms the first Raft group once as many servers as expected are alive, none of which has Raft state. Only the
// first of them by name writes the configuration; the others wait for its messages.
func (g *group) runBootstrap(ctx context.Context) error {
	for !g.raft.HasState() {
		changed, leader := g.lan.Changed(), g.raft.LeaderChanged()
		if nodes, ok := firstGroup(g.lan.Members(), g.node, g.expect); ok {
			if err := g.raft.Bootstrap(nodes); err != nil {
				return err
			}
			g.logger.Info("formed the first Raft group", "servers", nodes)
			break
		}
		select {
		case <-changed:
		case <-leader:
		case <-ctx.Done():
			return nil
		}
	}
	if g.expect == 1 {
		return nil
	}
	g.tags[tagRaft] = "1"
	if err := g.lan.SetTags(ctx, g.tags); err != nil && ctx.Err() == nil {
		g.logger.Warn("telling the LAN pool that Raft has state", "err", err)
	}
	return nil
}

// firstGroup decides whether this node forms the first group, and of whom. It is pure.
func firstGroup(members []pool.Member, node string, expect int) ([]string, bool) {
	if expect == 1 {
		return []string{node}, true
	}
	var nodes []string
	for _, m := range members {
		if !m.Alive() || m.Tags[tagExpect] != strconv.Itoa(expect) {
			continue
		}
		if m.Tags[tagRaft] == "1" {
			return nil, false // there is a group: its leader adds this server
		}
		nodes = append(nodes, m.Name)
	}
	slices.Sort(nodes)
	return nodes, len(nodes) >= expect && nodes[0] == node
}

// runMembers adds alive servers of the LAN pool to the Raft group, and removes those the pool has forgotten (72 h after they
// failed or left). It belongs under leadership.
func (g *group) runMembers(ctx context.Context) error {
	refused := map[string]bool{}
	known := map[string]bool{}
	for {
		changed := g.lan.Changed()
		again := g.reconcile(ctx, known, refused)
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

func (g *group) reconcile(ctx context.Context, known, refused map[string]bool) (again time.Duration) {
	again = time.Hour
	peers, err := g.raft.Peers()
	if err != nil {
		g.logger.Warn("reading the Raft group", "err", err)
		return time.Second
	}
	present := map[string]bool{}
	for _, m := range g.lan.Members() {
		present[m.Name], known[m.Name] = true, true
		if !m.Alive() || slices.Contains(peers, m.Name) {
			continue
		}
		if g.expect == 1 && m.Tags[tagExpect] == "1" {
			if !refused[m.Name] {
				g.logger.Error("server not added to the Raft group: both it and this one were started to form one alone; "+
					"start it anew with an empty data dir and --bootstrap-expect 3", "peer", m.Name)
			}
			refused[m.Name] = true
			continue
		}
		if err := g.raft.AddVoter(ctx, m.Name); err != nil {
			g.logger.Warn("adding a server to the Raft group", "peer", m.Name, "err", err)
			again = time.Second
			continue
		}
		g.logger.Info("server added to the Raft group", "peer", m.Name)
	}
	for _, node := range peers {
		if node == g.node || present[node] || !known[node] {
			continue
		}
		if err := g.raft.RemoveServer(ctx, node); err != nil {
			g.logger.Warn("removing a server from the Raft group", "peer", node, "err", err)
			again = time.Second
			continue
		}
		g.logger.Info("server removed from the Raft group: the LAN pool has forgotten it", "peer", node)
	}
	return again
}
