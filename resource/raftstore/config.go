// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/internal/slogadapter"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// Config says where a store lives and how it reaches the others.
type Config struct {
	// Node is this server: its id and its address in Raft. A DNS label; required.
	Node string
	// Dir holds log, snapshots and the node's name. Made with mode 0700 if absent. Required; for one process at a time.
	Dir string
	// Stream accepts and dials the connections of Raft. Dial is given a node name as address; it is called with a timeout
	// of at most 2 s and must end when Close is called. Required. The store closes it, also if Open fails.
	Stream raft.StreamLayer
	// Understood tells the version of ops that all servers of the group understand, as far as that is known, and which one understands
	// no more. Default: resource.OpsVersion.
	OpsVersion func() (version int, node string)
	// Logger. Default: slog.Default().
	Logger *slog.Logger

	// Heartbeat is how long a follower waits for its leader, up to twice that, before it calls an election; a leader that does not
	// reach a majority for three quarters of it steps down. The same on all servers. Default 1 s, at least 20 ms.
	Heartbeat time.Duration
	// SnapshotInterval is how often to look whether SnapshotThreshold entries have come since the last snapshot, and so
	// a new one is due. Defaults: 30 s and 8192 entries.
	SnapshotInterval  time.Duration
	SnapshotThreshold uint64
	// TrailingLogs is how many entries stay behind a snapshot, so that a server that was away for a short time needs no
	// snapshot. Default 10240.
	TrailingLogs uint64
	// SegmentSize is the size in bytes of one file of the log, allocated ahead. Default 64 MiB.
	SegmentSize int
}

// Fixed values.
const (
	minHeartbeat = 20 * time.Millisecond
	// commitTimeout is how late at most (twice that) a follower of an idle leader learns what was committed.
	commitTimeout = 25 * time.Millisecond
	// rpcTimeout bounds one Raft call between servers, dialTimeout a dial for it.
	rpcTimeout  = 10 * time.Second
	dialTimeout = 2 * time.Second
	// rpcsInFlight of 1 turns pipelining off. With it (raft 1.8.0) a leader whose follower refuses an entry can block for ever
	// on handing over the next, while the one who would take it has gone: that follower gets nothing more, and Shutdown
	// never returns. Entries that wait go together in the next call, so that little is lost.
	rpcsInFlight = 1
	// drainTimeout bounds how long Close waits for commits under way.
	drainTimeout = time.Second
	// maxBatch is how many entries go together: to disk with one fsync, to a follower in one call, to the state machine.
	maxBatch = 256
	// maxEntry bounds a log entry, in bytes.
	maxEntry        = 32 << 20
	retainSnapshots = 2
)

// withDefaults returns c with defaults in place of zero values.
func (c Config) withDefaults() Config {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.OpsVersion == nil {
		c.OpsVersion = func() (int, string) { return resource.OpsVersion, "" }
	}
	setDefault(&c.Heartbeat, time.Second)
	setDefault(&c.SnapshotInterval, 30*time.Second)
	setDefault(&c.SnapshotThreshold, 8192)
	setDefault(&c.TrailingLogs, 10240)
	setDefault(&c.SegmentSize, 64<<20)
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
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
	if c.SnapshotInterval < minHeartbeat {
		faults = append(faults, fmt.Errorf("SnapshotInterval %v is below %v", c.SnapshotInterval, minHeartbeat))
	}
	if c.SegmentSize < 4096 || c.SegmentSize > 1<<30 {
		faults = append(faults, fmt.Errorf("SegmentSize %d is not within 4096 bytes and 1 GiB", c.SegmentSize))
	}
	if len(faults) > 0 {
		return fmt.Errorf("raft store: %w", errors.Join(faults...))
	}
	return nil
}

// raftConfig is c in the library's words.
func (c *Config) raftConfig() *raft.Config {
	rc := raft.DefaultConfig()
	rc.LocalID = raft.ServerID(c.Node)
	rc.Logger = slogadapter.New(slog.New(slogadapter.Demote(c.Logger.Handler())), "raft")
	rc.HeartbeatTimeout = c.Heartbeat
	rc.ElectionTimeout = c.Heartbeat + nudge
	rc.LeaderLeaseTimeout = c.Heartbeat * 3 / 4 // it knows that it leads no more before another does; a stall costs no election
	rc.CommitTimeout = commitTimeout
	rc.MaxAppendEntries, rc.BatchApplyCh = maxBatch, true
	rc.SnapshotInterval = c.SnapshotInterval
	rc.SnapshotThreshold = c.SnapshotThreshold
	rc.TrailingLogs = c.TrailingLogs
	rc.ShutdownOnRemove = false // a removed server still answers eventual reads, until it is closed
	rc.NoLegacyTelemetry = true
	return rc
}
