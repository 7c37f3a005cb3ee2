// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
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
	nw.isolate(node, true) // it may have been closed before it emptied its log: then it does now
	if err := mustOpen(t, nw.config(t, node, dir)).Close(); err != nil {
		t.Fatal(err)
	}
	nw.isolate(node, false)

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

// sendSnapshot makes leader send its newest snapshot to node, as it does when it thinks that node needs it.
func sendSnapshot(t *testing.T, leader *Store, node string, change func(*raft.InstallSnapshotRequest)) (*raft.InstallSnapshotResponse, error) {
	t.Helper()
	snaps, err := raft.NewFileSnapshotStoreWithLogger(leader.cfg.Dir, retainSnapshots, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	all, err := snaps.List()
	if err != nil || len(all) == 0 {
		t.Fatalf("snapshots %v, %v", all, err)
	}
	meta, r, err := snaps.Open(all[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	req := &raft.InstallSnapshotRequest{
		RPCHeader:       raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(leader.cfg.Node), Addr: []byte(leader.cfg.Node)},
		SnapshotVersion: meta.Version, Term: leader.Stats().Term, Size: meta.Size,
		LastLogIndex: meta.Index, LastLogTerm: meta.Term,
		Configuration: raft.EncodeConfiguration(meta.Configuration), ConfigurationIndex: meta.ConfigurationIndex,
	}
	change(req)
	var resp raft.InstallSnapshotResponse
	err = leader.trans.NetworkTransport.InstallSnapshot(raft.ServerID(node), raft.ServerAddress(node), req, &resp, r)
	return &resp, err
}

// TestSnapshotAgain: a snapshot that comes when the server has all it covers, and more, costs it nothing.
func TestSnapshotAgain(t *testing.T) {
	nw := loopback(t)
	all := group(t, nw, nil)
	leader := awaitLeader(t, values(all)...)
	f := values(all, leader)[0]
	put(t, leader, "x", "1")
	if err := leader.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	last := put(t, leader, "after", "1").ModifyIndex
	awaitText(t, f, "after", "1")
	w, err := f.Watch(resource.Query{Type: testType, Prefix: "none"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.Next(t.Context()); err != nil { // end of snapshot
		t.Fatal(err)
	}
	for what, change := range map[string]func(*raft.InstallSnapshotRequest){
		"as it is": func(*raft.InstallSnapshotRequest) {},
		"older":    func(r *raft.InstallSnapshotRequest) { r.LastLogIndex-- },
	} {
		resp, err := sendSnapshot(t, leader, f.cfg.Node, change)
		if err != nil || !resp.Success || resp.Term != leader.Stats().Term {
			t.Errorf("%s: %+v, %v", what, resp, err)
		}
	}
	if got, err := f.log.LastIndex(); got < last || err != nil {
		t.Errorf("the log ends at %d, %v; it had %d", got, err, last)
	}
	put(t, leader, "none", "1")
	if ev, err := w.Next(t.Context()); err != nil || ev.GetUpsert() == nil {
		t.Errorf("the watch over it: %v, %v", ev, err)
	}

	// One of an earlier term is not even that.
	if resp, err := sendSnapshot(t, leader, f.cfg.Node, func(r *raft.InstallSnapshotRequest) { r.Term-- }); err != nil || resp.Success {
		t.Errorf("of an earlier term: %+v, %v", resp, err)
	}
	// One that contradicts a log which is longer stops the server before it loses track of its log.
	_, err = sendSnapshot(t, leader, f.cfg.Node, func(r *raft.InstallSnapshotRequest) { r.LastLogIndex, r.LastLogTerm = last, 99 })
	if err == nil {
		t.Error("a contradiction was accepted")
	}
	<-f.Failed()
	if err := f.Err(); !strings.Contains(err.Error(), "remove the data dir") {
		t.Errorf("it failed with %v", err)
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
		c.SegmentSize, c.TrailingLogs, c.SnapshotThreshold, c.SnapshotInterval = 4096, 20, 10, 20*time.Millisecond
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
	write(t, values(all), "last", "1")
	for _, s := range values(all) {
		awaitText(t, s, "last", "1")
		checkHas(t, s, acked)
	}
}
