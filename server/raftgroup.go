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
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/raftstore"
	"github.com/wanfed/wanfed/server/operator"
)

// Tags of LAN pool members.
const (
	tagExpect = operator.TagExpect
	// tagRaft is "1" once a server has Raft state. Such a server must not be part
	// of a new group.
	tagRaft = "raft"
	// tagOps is the version of store operations that a server supports:
	// resource.OpsVersion. Older servers without the tag support version 1.
	tagOps = "ops"
)

// groupOpsVersion returns the version of store operations that all servers of
// the Raft group support. It also returns the node that limits the version, if
// the version is not this server's. Dead servers count, because they read the
// log when they return. Servers that are not in the pool do not count.
func groupOpsVersion(lan *gossip.Pool, store *raftstore.Store) (version int, node string) {
	version = resource.OpsVersion
	peers, _ := store.Peers()
	for _, m := range lan.Members() {
		theirs, err := strconv.Atoi(m.Tags[tagOps])
		if err != nil {
			theirs = 1
		}
		if theirs < version && (m.Alive() || slices.Contains(peers, m.Name)) {
			version, node = theirs, m.Name
		}
	}
	return version, node
}

// raftGroup has the methods of the store that bootstrap needs.
type raftGroup interface {
	HasState() bool
	Bootstrap(nodes []string) error
	LeaderChanged() <-chan struct{}
}

// group joins the LAN pool, and forms the first Raft group from it. Package
// server/operator maintains the membership later.
type group struct {
	node   string
	expect int      // bootstrap_expect
	join   []string // LAN addresses to join
	tags   map[string]string
	raft   raftGroup
	lan    *gossip.Pool
	logger *slog.Logger
}

const (
	minJoinBackoff = 100 * time.Millisecond
	maxJoinBackoff = 2 * time.Second
)

// runJoin contacts the configured addresses while no other server of this
// datacenter is alive. It also contacts each failed member, because only the
// servers that were cut off notice the end of a partition.
func (g *group) runJoin(ctx context.Context) error {
	pause, failing := backoff.Backoff{Min: minJoinBackoff, Max: maxJoinBackoff}, false
	var last []string
	for ctx.Err() == nil {
		changed := g.lan.Changed()
		targets := g.joinTargets()
		if !slices.Equal(targets, last) {
			pause.Reset()
			failing, last = false, targets
		}
		if len(targets) == 0 {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		order := slices.Clone(targets) // addresses are dialed in order, and a dead address must not always be the first
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		if err := g.lan.Join(ctx, order...); err != nil && ctx.Err() == nil {
			level := slog.LevelWarn
			if failing {
				level = slog.LevelDebug // logged before
			}
			g.logger.Log(ctx, level, "cannot join the LAN pool", "err", err)
			failing = true
		}
		backoff.Sleep(ctx, pause.Next(), changed)
	}
	return nil
}

// joinTargets returns the members to join, as host:port or node/host:port.
func (g *group) joinTargets() []string {
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

// runBootstrap forms the first Raft group once as many servers as expected are
// alive, none of which has Raft state. Only the first of them by name writes the
// configuration; the others wait for its messages.
func (g *group) runBootstrap(ctx context.Context) error {
	for !g.raft.HasState() {
		changed, leader := g.lan.Changed(), g.raft.LeaderChanged()
		if nodes, ok := firstGroup(g.lan.Members(), g.node, g.expect); ok {
			if err := g.raft.Bootstrap(nodes); err != nil {
				return err
			}
			g.logger.Info("first Raft group formed", "servers", nodes)
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
		g.logger.Warn("cannot set the tag raft in the LAN pool", "err", err)
	}
	return nil
}

// firstGroup returns the servers of the first Raft group, and whether this node
// forms it.
func firstGroup(members []gossip.Member, node string, expect int) (nodes []string, ok bool) {
	if expect == 1 {
		return []string{node}, true
	}
	for _, m := range members {
		if !m.Alive() || m.Tags[tagExpect] != strconv.Itoa(expect) {
			continue
		}
		if m.Tags[tagRaft] == "1" {
			return nil, false // there is already a group, and its leader adds this server
		}
		nodes = append(nodes, m.Name)
	}
	slices.Sort(nodes)
	return nodes, len(nodes) >= expect && nodes[0] == node
}
