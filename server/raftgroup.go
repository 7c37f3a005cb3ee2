// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"log/slog"
	"maps"
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
	Peers() ([]string, error)
	Bootstrap(nodes []string) error
	LeaderChanged() <-chan struct{}
}

// group joins the LAN pool, and forms the first Raft group from it. Package
// server/operator maintains the membership later.
type group struct {
	node   string
	expect int             // bootstrap_expect
	join   func() []string // retry_join
	tags   map[string]string
	raft   raftGroup
	lan    *gossip.Pool
	// contacts are the known addresses of the servers of this datacenter.
	contacts *contacts
	logger   *slog.Logger
}

const (
	minJoinBackoff = 100 * time.Millisecond
	maxJoinBackoff = 2 * time.Second
)

// runJoin contacts the servers that joinTargets returns until all of them are
// alive in the LAN pool.
func (g *group) runJoin(ctx context.Context) error {
	pause, logged := backoff.Backoff{Min: minJoinBackoff, Max: maxJoinBackoff}, false
	var last []string
	for ctx.Err() == nil {
		changed := g.lan.Changed()
		targets, alone := g.joinTargets()
		if !slices.Equal(targets, last) {
			pause.Reset()
			logged, last = false, targets
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
			level := slog.LevelDebug
			if alone && !logged {
				level = slog.LevelWarn
			}
			g.logger.Log(ctx, level, "cannot join the LAN pool", "err", err)
			logged = true
		}
		backoff.Sleep(ctx, pause.Next(), changed)
	}
	return nil
}

// joinTargets returns the servers to join in order, as host:port or
// node/host:port, and whether no other server is alive in the LAN pool. The
// targets are the failed members, because only servers that were cut off notice
// the end of a partition, and the members of the Raft group that are not alive.
// While no other server is alive, the targets also include retry_join and every
// other known server.
func (g *group) joinTargets() (targets []string, alone bool) {
	alive, failed := map[string]bool{}, map[string]bool{}
	for _, m := range g.lan.Members() {
		if m.Name != g.node {
			alive[m.Name], failed[m.Name] = m.Alive(), m.Status == gossip.StatusFailed
		}
	}
	alone = !slices.Contains(slices.Collect(maps.Values(alive)), true)
	voters, _ := g.raft.Peers() // an error means that no member of the group is a target for that reason
	for node, addr := range g.contacts.known() {
		if !alive[node] && (alone || failed[node] || slices.Contains(voters, node)) {
			targets = append(targets, node+"/"+addr)
		}
	}
	if alone {
		targets = append(targets, g.join()...)
	}
	slices.Sort(targets)
	return targets, alone
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
// forms it. With expect 0 this node never forms a group.
func firstGroup(members []gossip.Member, node string, expect int) (nodes []string, ok bool) {
	switch expect {
	case 0:
		return nil, false
	case 1:
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
