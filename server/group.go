// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server/operator"
)

// Tags of LAN pool members.
const (
	tagExpect = operator.TagExpect
	// tagRaft is "1" once a server has Raft state: it must not be part of a new group.
	tagRaft = "raft"
	// tagOps is the version of ops that a server understands: resource.OpsVersion. Servers older than the tag understand 1.
	tagOps = "ops"
)

// understood is the version of ops that all servers of the group understand, also those that are down: they have to read the log when
// they are back. Who is not in the pool is not counted.
func (p *parts) understood() (version int, node string) {
	version = resource.OpsVersion
	for _, m := range p.lan.Members() {
		theirs, err := strconv.Atoi(m.Tags[tagOps])
		if err != nil {
			theirs = 1
		}
		if theirs < version && (m.Alive() || p.isPeer(m.Name)) {
			version, node = theirs, m.Name
		}
	}
	return version, node
}

func (p *parts) isPeer(node string) bool {
	peers, err := p.store.Peers()
	return err == nil && slices.Contains(peers, node)
}

// raftGroup is what bootstrap needs of the store.
type raftGroup interface {
	HasState() bool
	Bootstrap(nodes []string) error
	LeaderChanged() <-chan struct{}
}

// group forms the datacenter's Raft group out of the LAN pool.
type group struct {
	node   string
	expect int
	join   []string // LAN addresses
	tags   map[string]string
	raft   raftGroup
	lan    *gossip.Pool
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
		case m.Status == gossip.StatusFailed:
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
func firstGroup(members []gossip.Member, node string, expect int) ([]string, bool) {
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
