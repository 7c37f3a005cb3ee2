// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/internal/slogadapter"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// Config configures a Store.
type Config struct {
	// Node is the name of this server, a DNS label. Raft uses the name as id
	// and address. Required.
	Node string
	// Dir is the directory of the log, the snapshots and the node name. Open
	// creates the directory with mode 0700. Only one process may use the
	// directory at a time. Required.
	Dir string
	// Stream accepts and dials the connections of Raft. Dial is called with a
	// node name as address and a timeout of at most 2 s. Close must end Dial.
	// The store closes Stream, also if Open fails. Required.
	Stream raft.StreamLayer
	// OpsVersion returns the latest version of ops that all known servers of
	// the group support, and the name of a node that supports no later version.
	// Default: resource.OpsVersion.
	OpsVersion func() (version int, node string)
	// HoldVote keeps a voter of a group of several servers out of elections
	// from Open until ReleaseVote. During this time the caller finds out
	// whether the log lacks entries that this server had confirmed, because the
	// disk was restored from an older image (see Store.Confirmed and
	// Store.LacksEntry).
	HoldVote bool
	// Logger receives messages. Default: slog.Default().
	Logger *slog.Logger

	// Heartbeat is the minimum election timeout. A follower calls an election
	// after one to two times Heartbeat without a message from the leader. A
	// leader steps down if it does not reach a majority for three quarters of
	// Heartbeat. The value must be equal on all servers. Default 1 s, minimum
	// 20 ms.
	Heartbeat time.Duration
	// Tests lower the following values. 0 means the default.
	snapshotInterval  time.Duration // time between two checks whether a snapshot is due; default 30 s
	snapshotThreshold uint64        // number of entries between two snapshots; default 8192
	// trailingLogs is the number of entries that stay in the log after a
	// snapshot. A server that missed fewer entries needs no snapshot. Default
	// 10240.
	trailingLogs uint64
	segmentSize  int // size of one log file in bytes; default 64 MiB
}

const (
	minHeartbeat = 20 * time.Millisecond
	// commitTimeout is the interval at which an idle leader sends its commit
	// index. A follower receives the index after at most twice this time.
	commitTimeout = 25 * time.Millisecond
	// rpcTimeout bounds one Raft call between servers. dialTimeout bounds the
	// dial for a call.
	rpcTimeout  = 10 * time.Second
	dialTimeout = 2 * time.Second
	// rpcsInFlight of 1 disables pipelining. With pipelining (raft 1.8.0), a
	// leader can deadlock after a follower rejects an entry: the goroutine that
	// would receive the next entry has ended. The follower then receives
	// nothing more, and Shutdown never returns. Without pipelining, pending
	// entries share the next call, so the cost is small.
	rpcsInFlight = 1
	// maxBatch bounds the number of entries in one batch. A batch is written to
	// disk with one fsync, sent to a follower in one call, and applied at once.
	maxBatch = 256
	// maxEntry bounds a log entry, in bytes.
	maxEntry        = 32 << 20
	retainSnapshots = 2
)

// withDefaults returns c with defaults in place of zero values.
func (c Config) withDefaults() Config {
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if c.OpsVersion == nil {
		c.OpsVersion = func() (int, string) { return resource.OpsVersion, "" }
	}
	c.Heartbeat = cmp.Or(c.Heartbeat, time.Second)
	c.snapshotInterval = cmp.Or(c.snapshotInterval, 30*time.Second)
	c.snapshotThreshold = cmp.Or(c.snapshotThreshold, 8192)
	c.trailingLogs = cmp.Or(c.trailingLogs, 10240)
	c.segmentSize = cmp.Or(c.segmentSize, 64<<20)
	return c
}

// validate returns all faults of a Config that has its defaults.
func (c *Config) validate() error {
	var faults []error
	if err := tlsutil.CheckLabel(c.Node); err != nil {
		faults = append(faults, fmt.Errorf("Node: %w", err))
	}
	if c.Dir == "" {
		faults = append(faults, errors.New("Dir is required"))
	}
	if c.Stream == nil {
		faults = append(faults, errors.New("Stream is required"))
	}
	if c.Heartbeat < minHeartbeat {
		faults = append(faults, fmt.Errorf("Heartbeat %v is below %v", c.Heartbeat, minHeartbeat))
	}
	if len(faults) > 0 {
		return fmt.Errorf("raft store: %w", errors.Join(faults...))
	}
	return nil
}

// demoteFirstElection makes a Debug record of Raft's warning that a server
// without a leader starts an election, unless the server had a leader. Each
// start of a whole group, or of a lone server, begins with such an election.
func demoteFirstElection(r *slog.Record) bool {
	if !strings.HasPrefix(r.Message, "heartbeat timeout reached, starting election") {
		return true
	}
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "last-leader-addr" && a.Value.String() == "" {
			r.Level = slog.LevelDebug
		}
		return true
	})
	return true
}

// raftConfig returns the configuration of the Raft library.
func (c *Config) raftConfig() *raft.Config {
	rc := raft.DefaultConfig()
	rc.LocalID = raft.ServerID(c.Node)
	handler := slogadapter.Filter(slogadapter.Demote(c.Logger.Handler()), demoteFirstElection)
	rc.Logger = slogadapter.New(slog.New(handler), "raft")
	rc.HeartbeatTimeout = c.Heartbeat
	rc.ElectionTimeout = c.Heartbeat + timeoutStep
	// A leader must step down before another leader is elected. A stall of
	// the leader that is shorter than the lease causes no election.
	rc.LeaderLeaseTimeout = c.Heartbeat * 3 / 4
	rc.CommitTimeout = commitTimeout
	// BatchApplyCh stays false: Raft does not answer the calls that are in its
	// buffer when it shuts down, so their goroutines never end.
	rc.MaxAppendEntries = maxBatch
	rc.SnapshotInterval = c.snapshotInterval
	rc.SnapshotThreshold = c.snapshotThreshold
	rc.TrailingLogs = c.trailingLogs
	rc.ShutdownOnRemove = false // a removed server serves eventual reads until it is closed
	rc.NoLegacyTelemetry = true
	return rc
}
