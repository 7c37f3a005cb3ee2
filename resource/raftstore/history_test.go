// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// TestSnapshotThenLog: the log of a server begins right after a snapshot, with an entry that another leader does not have. Asked
// for the entry before, it knows it from the snapshot, and takes the other leader's entry.
func TestSnapshotThenLog(t *testing.T) {
	nw := loopback(t)
	all := group(t, nw, func(c *Config) { c.TrailingLogs, c.SegmentSize = 5, 4096 })
	leader := awaitLeader(t, values(all)...)
	away := values(all, leader)[0]
	node, dir := away.cfg.Node, away.cfg.Dir
	nw.isolate(node, true)
	for i := range 40 {
		put(t, leader, "n"+sprint(i), "1")
	}
	if err := leader.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	covered, term := leader.LastIndex(), leader.Stats().Term
	nw.isolate(node, false)
	awaitText(t, away, "n39", "1")
	if err := away.Close(); err != nil {
		t.Fatal(err)
	}

	// What that leader had sent to this server alone.
	l, err := wal.Open(filepath.Join(dir, logDir), wal.WithSegmentSize(4096))
	if err != nil {
		t.Fatal(err)
	}
	if last, err := l.LastIndex(); last != 0 || err != nil {
		t.Fatalf("the log ends at %d, %v: it was not emptied for the snapshot", last, err)
	}
	lost, err := proto.Marshal(&pb.Batch{Ops: []*pb.Op{resource.PutOp(thing(t, "lost", "1"), "")}})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.StoreLog(&raft.Log{Index: covered + 1, Term: term, Type: raft.LogCommand, Data: lost}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := leader.TransferLeadership(t.Context()); err != nil {
		t.Fatal(err)
	}
	leader = awaitLeader(t, values(all, away)...)
	away = mustOpen(t, nw.config(t, node, dir))
	put(t, leader, "last", "1")
	awaitText(t, away, "last", "1")
	if got := textOf(t, away, resource.Eventual, "lost"); got != "" {
		t.Error("an entry that was never committed was applied")
	}
}

// TestSnapshotWithOldLog: the process ended when it had stored the leader's snapshot, and had not emptied its log.
func TestSnapshotWithOldLog(t *testing.T) {
	nw := loopback(t)
	all := group(t, nw, nil)
	leader := awaitLeader(t, values(all)...)
	put(t, leader, "x", "1")
	away := values(all, leader)[0]
	awaitText(t, away, "x", "1")
	node, dir := away.cfg.Node, away.cfg.Dir
	if err := away.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		put(t, leader, "n"+sprint(i), "1")
	}
	if err := leader.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, snapshotDir), os.DirFS(filepath.Join(leader.cfg.Dir, snapshotDir))); err != nil {
		t.Fatal(err)
	}
	away = mustOpen(t, nw.config(t, node, dir))
	if got := textOf(t, away, resource.Eventual, "n49"); got != "1" {
		t.Errorf("the snapshot was not restored: n49 = %q", got)
	}
	put(t, leader, "last", "1")
	awaitText(t, away, "last", "1")
}

// TestChurn: servers are cut off, closed and opened again at random, with snapshots all the time; then all is healed, and all
// agree, with everything that was acknowledged.
func TestChurn(t *testing.T) {
	nw := loopback(t)
	small := func(c *Config) {
		quick(c)
		c.SegmentSize, c.TrailingLogs, c.SnapshotThreshold, c.SnapshotInterval = 4096, 5, 10, 20*time.Millisecond
	}
	all := group(t, nw, small)
	awaitLeader(t, values(all)...)
	var acked []string
	for round := range 8 {
		node := []string{"a", "b", "c"}[rand.IntN(3)]
		others := values(all, all[node])
		stop := load(t, "r"+sprint(round)+"-", values(all))
		switch rand.IntN(3) {
		case 0:
			nw.isolate(node, true)
			awaitWrites(t, awaitLeader(t, others...), 20)
			nw.isolate(node, false)
		case 1:
			nw.isolate(node, true) // and at once back: connections break, nothing else
			nw.isolate(node, false)
			awaitWrites(t, awaitLeader(t, values(all)...), 20)
		case 2:
			cfg := nw.config(t, node, all[node].cfg.Dir)
			small(&cfg)
			if err := all[node].Close(); err != nil {
				t.Fatal(err)
			}
			awaitWrites(t, awaitLeader(t, others...), 20)
			acked = append(acked, stop()...)
			stop = func() []string { return nil }
			all[node] = mustOpen(t, cfg)
		}
		acked = append(acked, stop()...)
	}
	put(t, awaitLeader(t, values(all)...), "last", "1")
	for _, s := range values(all) {
		awaitText(t, s, "last", "1")
		checkHas(t, s, resource.Eventual, acked)
	}
}
