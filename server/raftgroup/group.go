// SPDX-License-Identifier: MPL-2.0

package raftgroup

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/raftstore"
	"github.com/wanfed/wanfed/server/operator"
)

// Tags of LAN pool members.
const (
	tagExpect = operator.TagExpect
	// tagRaft is "1" once a server has Raft state. A new group must not contain
	// such a server.
	tagRaft    = "raft"
	tagJoining = operator.TagJoining
	// tagOps is the version of store operations that a server supports:
	// resource.OpsVersion. A server without the tag supports version 1.
	tagOps = "ops"
)

// OpsVersion returns the version of store operations that all servers of
// the Raft group support. If the version is lower than the version of this
// server, OpsVersion also returns the node that limits the version. Dead
// servers count, because they read the log when they return. Servers that are
// not in the pool do not count.
func OpsVersion(lan *gossip.Pool, store *raftstore.Store) (version int, node string) {
	version = resource.OpsVersion
	peers, _ := store.Peers()
	for _, m := range lan.Members() {
		supported, err := strconv.Atoi(m.Tags[tagOps])
		if err != nil {
			supported = 1
		}
		if supported < version && (m.Alive() || slices.Contains(peers, m.Name)) {
			version, node = supported, m.Name
		}
	}
	return version, node
}

// Group joins the LAN pool, and forms the first Raft group from the members of
// the pool. Package server/operator maintains the membership later.
type Group struct {
	Config
	tags map[string]string // of this server in the LAN pool
}

// Config configures a Group.
type Config struct {
	Node      string          // name of this server
	Expect    int             // bootstrap_expect; 0: forms no group
	RetryJoin func() []string // returns addresses (host:port)
	// Tags are the tags of this server in the LAN pool, with those of Tags.
	Tags     map[string]string
	Store    *raftstore.Store
	LAN      *gossip.Pool
	Contacts *Contacts
	// Describe calls DescribeCaller of the other servers that wanted accepts, and
	// returns the responses by node: see Names.Describe.
	Describe func(ctx context.Context, wanted func(node string) bool) map[string]*pb.DescribeCallerResponse
	Logger   *slog.Logger
}

// New returns a Group.
func New(cfg Config) *Group { return &Group{cfg, maps.Clone(cfg.Tags)} }

// Tags returns the tags of a server at its start, with which the other servers
// of the datacenter decide on the first group.
func Tags(store *raftstore.Store, expect int) map[string]string {
	tags := map[string]string{tagExpect: strconv.Itoa(expect), tagOps: strconv.Itoa(resource.OpsVersion)}
	joining := joiningNew
	if store.HasState() {
		tags[tagRaft], joining = "1", joiningAgain
	}
	select {
	case <-store.Admitted():
	default:
		tags[tagJoining] = joining
	}
	return tags
}

const (
	minJoinBackoff = 100 * time.Millisecond
	maxJoinBackoff = 2 * time.Second
)

// RunJoin contacts the servers that joinTargets returns until all of them are
// alive in the LAN pool.
func (g *Group) RunJoin(ctx context.Context) error {
	pause, logged := backoff.Backoff{Min: minJoinBackoff, Max: maxJoinBackoff}, false
	var last []string
	for ctx.Err() == nil {
		changed := g.LAN.Changed()
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
		order := slices.Clone(targets) // dialed in random order, because the first address may be dead
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		if err := g.LAN.Join(ctx, order...); err != nil && ctx.Err() == nil {
			level := slog.LevelDebug
			if alone && !logged {
				level = slog.LevelWarn
			}
			g.Logger.Log(ctx, level, "cannot join the LAN pool", "err", err)
			logged = true
		}
		backoff.Sleep(ctx, pause.Next(), changed)
	}
	return nil
}

// joinTargets returns the servers to join in order, as host:port or
// node/host:port, and whether no other server is alive in the LAN pool. The
// targets are the failed members and the members of the Raft group that are not
// alive. Contacts to failed members detect the end of a partition. While no
// other server is alive, the targets also include retry_join and every other
// known server.
func (g *Group) joinTargets() (targets []string, alone bool) {
	alive, failed := map[string]bool{}, map[string]bool{}
	for _, m := range g.LAN.Members() {
		if m.Name != g.Node {
			alive[m.Name], failed[m.Name] = m.Alive(), m.Status == gossip.StatusFailed
		}
	}
	alone = !slices.Contains(slices.Collect(maps.Values(alive)), true)
	voters, _ := g.Store.Peers() // on an error, no server is a target because of the group
	for node, addr := range g.Contacts.Known() {
		if !alive[node] && (alone || failed[node] || slices.Contains(voters, node)) {
			targets = append(targets, node+"/"+addr)
		}
	}
	if alone {
		targets = append(targets, g.RetryJoin()...)
	}
	slices.Sort(targets)
	return targets, alone
}

// RunBootstrap forms the first Raft group once the expected number of servers
// is alive and none of them has Raft state. Only the first of them by name
// writes the configuration. The other servers wait for its messages. At the
// end, RunBootstrap waits until this server may vote, and removes tagJoining.
func (g *Group) RunBootstrap(ctx context.Context) error {
	rejoins, err := g.checkLog(ctx)
	if err != nil {
		return err
	}
	for !g.Store.HasState() {
		changed, leader := g.LAN.Changed(), g.Store.LeaderChanged()
		if nodes, ok := firstGroup(g.LAN.Members(), g.Node, g.Expect); ok {
			if err := g.Store.Bootstrap(nodes); err != nil {
				return err
			}
			g.Logger.Info("first Raft group formed", "servers", nodes)
			break
		}
		select {
		case <-changed:
		case <-leader:
		case <-ctx.Done():
			return nil
		}
	}
	if g.Expect != 1 {
		if !rejoins {
			if err := g.admitFirst(ctx); err != nil {
				return err
			}
		}
		g.tags[tagRaft] = "1"
		select {
		case <-g.Store.Admitted():
			delete(g.tags, tagJoining)
		default:
		}
		g.setTags(ctx)
	}
	select {
	case <-g.Store.Admitted():
	case <-ctx.Done():
		return nil
	}
	if g.tags[tagJoining] != "" {
		delete(g.tags, tagJoining)
		g.setTags(ctx)
	}
	return nil
}

const (
	// checkLogTime limits the time for which a started server waits for the
	// responses of the other voters before it may vote.
	checkLogTime = 2 * time.Second
	// checkLogPause is the time between two calls of the servers that have not
	// responded.
	checkLogPause = 100 * time.Millisecond
	// joiningNew and joiningAgain are values of tagJoining: the data directory is
	// new, or it is outdated.
	joiningNew   = "1"
	joiningAgain = "2"
)

// checkLog requests from the other voters which entries this server has
// confirmed before its restart, and then releases its vote. rejoins is true if
// the log lacks such an entry, because an older copy of the data directory was
// restored, or if the group has removed this server. Then this server has no
// vote until it has caught up. A voter that does not respond within
// checkLogTime is not considered.
func (g *Group) checkLog(ctx context.Context) (rejoins bool, err error) {
	if !g.Store.VoteHeld() {
		return false, nil
	}
	defer g.Store.ReleaseVote()
	voters, err := g.Store.Peers()
	if err != nil {
		return false, err
	}
	limited, cancel := context.WithTimeout(ctx, checkLogTime)
	defer cancel()
	responses := map[string]*pb.DescribeCallerResponse{}
	for len(responses) < len(voters)-1 && limited.Err() == nil {
		maps.Copy(responses, g.Describe(limited, func(node string) bool {
			return responses[node] == nil && slices.Contains(voters, node)
		}))
		if len(responses) < len(voters)-1 {
			backoff.Sleep(limited, checkLogPause, nil)
		}
	}
	var base uint64
	for node, r := range responses {
		if index, reason := outdated(g.Store, slices.Contains(voters, g.Node), r); index > 0 {
			g.Logger.Warn("this server has no vote until it has caught up", "reason", reason, "peer", node,
				"index", index, "last_index", g.Store.LastIndex())
			base = max(base, index)
		}
	}
	if base == 0 || ctx.Err() != nil {
		return false, nil
	}
	if err := g.Store.Rejoin(base); err != nil {
		return false, err
	}
	g.tags[tagJoining] = joiningAgain
	g.setTags(ctx)
	return true, nil
}

// outdated returns the index up to which the log of a server is outdated, with
// the reason, according to the response of another server. voter reports whether
// the server has a vote according to its log. A group that has removed the
// server may have added it again without a vote. outdated returns 0 if the log
// is not outdated.
func outdated(log interface {
	LastIndex() uint64
	LacksEntry(term, index uint64) bool
}, voter bool, r *pb.DescribeCallerResponse) (index uint64, reason string) {
	switch {
	case log.LacksEntry(r.ConfirmedTerm, r.ConfirmedIndex):
		return r.ConfirmedIndex,
			"its log ends before an entry that it had confirmed: an older copy of the data directory was restored"
	case voter && r.InGroup && !r.Voter && r.LastIndex > log.LastIndex():
		return r.LastIndex, "the group has removed this server"
	}
	return 0, ""
}

// firstGroupTime is the time for which the servers of a first group keep the
// tags of new servers, so that each of them sees that all are new.
const firstGroupTime = 2 * time.Second

// admitFirst admits this server at once if it sees that all servers of the
// first group have new data directories. In that case no disk can have lost a
// write. admitFirst blocks for firstGroupTime.
func (g *Group) admitFirst(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, firstGroupTime)
	defer cancel()
	for {
		changed := g.LAN.Changed()
		if g.Expect > 0 && newServers(g.LAN.Members(), g.Expect) >= g.Expect {
			if err := g.Store.Admit(); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// newServers returns the number of alive members that expect as many servers and
// have a new data directory.
func newServers(members []gossip.Member, expect int) (n int) {
	for _, m := range members {
		if m.Alive() && m.Tags[tagExpect] == strconv.Itoa(expect) && m.Tags[tagJoining] == joiningNew {
			n++
		}
	}
	return n
}

func (g *Group) setTags(ctx context.Context) {
	if err := g.LAN.SetTags(ctx, g.tags); err != nil && ctx.Err() == nil {
		g.Logger.Warn("cannot set the tags of the LAN pool", "err", err)
	}
}

// firstGroup returns the servers of the first Raft group, and whether this node
// forms the group. With expect 0 this node never forms a group.
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
