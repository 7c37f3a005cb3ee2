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
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

// TestInstallSnapshot_UncommittedEntryAfter tests a server whose log begins
// right after a snapshot, with an entry that the next leader does not have. The
// server finds the previous entry in its snapshot, and replaces its own entry
// with the leader's.
func TestInstallSnapshot_UncommittedEntryAfter(t *testing.T) {
	testutil.Cluster(t)
	nw := loopback(t)
	all := group(t, nw, func(c *Config) { c.trailingLogs, c.segmentSize = 5, 4096 })
	leader := awaitLeader(t, values(all)...)
	away := values(all, leader)[0]
	node, dir := away.cfg.Node, away.cfg.Dir
	nw.isolate(node, true)
	for i := range 40 {
		put(t, leader, "n"+sprint(i), "1")
	}
	mustSnapshot(t, leader)
	covered, term := leader.LastIndex(), leader.raft.CurrentTerm()
	nw.isolate(node, false)
	awaitText(t, away, "n39", "1")
	if err := away.Close(); err != nil {
		t.Fatal(err)
	}
	nw.isolate(node, true) // if Close came before Raft emptied the log, Open empties the log
	if err := mustOpen(t, nw.config(t, node, dir)).Close(); err != nil {
		t.Fatal(err)
	}
	nw.isolate(node, false)

	// The leader has sent this entry to no other server.
	l, err := wal.Open(filepath.Join(dir, logDir), wal.WithSegmentSize(4096))
	if err != nil {
		t.Fatal(err)
	}
	if last, err := l.LastIndex(); last != 0 || err != nil {
		t.Fatalf("LastIndex() after the snapshot = %d, %v, want 0", last, err)
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
		t.Errorf("Read(lost) = %q, want none: the entry was never committed", got)
	}
}

// sendSnapshot makes leader send its newest snapshot to node, after change has
// modified the request.
func sendSnapshot(t *testing.T, leader *Store, node string,
	change func(*raft.InstallSnapshotRequest)) (*raft.InstallSnapshotResponse, error) {
	t.Helper()
	snaps, err := raft.NewFileSnapshotStoreWithLogger(leader.cfg.Dir, retainSnapshots, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	all, err := snaps.List()
	if err != nil || len(all) == 0 {
		t.Fatalf("List() = %v, %v, want a snapshot", all, err)
	}
	meta, r, err := snaps.Open(all[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	req := &raft.InstallSnapshotRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(leader.cfg.Node),
			Addr: []byte(leader.cfg.Node)},
		SnapshotVersion: meta.Version, Term: leader.raft.CurrentTerm(), Size: meta.Size,
		LastLogIndex: meta.Index, LastLogTerm: meta.Term,
		Configuration: raft.EncodeConfiguration(meta.Configuration), ConfigurationIndex: meta.ConfigurationIndex,
	}
	change(req)
	var resp raft.InstallSnapshotResponse
	err = leader.trans.NetworkTransport.InstallSnapshot(raft.ServerID(node), raft.ServerAddress(node), req, &resp, r)
	return &resp, err
}

// TestInstallSnapshot_NotNeeded checks that a snapshot whose entries the server
// already has changes nothing, and which snapshots are rejected.
func TestInstallSnapshot_NotNeeded(t *testing.T) {
	nw := loopback(t)
	all := group(t, nw, nil)
	leader := awaitLeader(t, values(all)...)
	f := values(all, leader)[0]
	put(t, leader, "x", "1")
	mustSnapshot(t, leader)
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
		"unchanged": func(*raft.InstallSnapshotRequest) {},
		"older":     func(r *raft.InstallSnapshotRequest) { r.LastLogIndex-- },
	} {
		resp, err := sendSnapshot(t, leader, f.cfg.Node, change)
		if term := leader.raft.CurrentTerm(); err != nil || !resp.Success || resp.Term != term {
			t.Errorf("InstallSnapshot(%s) = %+v, %v, want success in term %d", what, resp, err, term)
		}
	}
	if got, err := f.log.LastIndex(); got < last || err != nil {
		t.Errorf("LastIndex() = %d, %v, want at least %d", got, err, last)
	}
	put(t, leader, "none", "1")
	if ev, err := w.Next(t.Context()); err != nil || ev.GetUpsert() == nil {
		t.Errorf("Next() of the watch = %v, %v, want an upsert", ev, err)
	}

	// Raft rejects a snapshot of an earlier term.
	resp, err := sendSnapshot(t, leader, f.cfg.Node, func(r *raft.InstallSnapshotRequest) { r.Term-- })
	if err != nil || resp.Success {
		t.Errorf("InstallSnapshot() of an earlier term = %+v, %v, want no success and nil", resp, err)
	}
	// A snapshot that contradicts a longer log fails the store.
	_, err = sendSnapshot(t, leader, f.cfg.Node, func(r *raft.InstallSnapshotRequest) {
		r.LastLogIndex, r.LastLogTerm = last, 99
	})
	if err == nil {
		t.Error("InstallSnapshot() that contradicts the log = nil, want an error")
	}
	<-f.Failed()
	if err := f.Err(); !strings.Contains(err.Error(), "remove the data dir") {
		t.Errorf("Err() = %v, want an error with \"remove the data dir\"", err)
	}
}

// TestOpen_SnapshotAfterLog opens a store whose last process ended after it had
// stored the leader's snapshot, and before it emptied the log.
func TestOpen_SnapshotAfterLog(t *testing.T) {
	testutil.Cluster(t)
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
	mustSnapshot(t, leader)
	if err := os.CopyFS(filepath.Join(dir, snapshotDir),
		os.DirFS(filepath.Join(leader.cfg.Dir, snapshotDir))); err != nil {
		t.Fatal(err)
	}
	away = mustOpen(t, nw.config(t, node, dir))
	if got := textOf(t, away, resource.Eventual, "n49"); got != "1" {
		t.Errorf("Read(n49) = %q, want 1 from the snapshot", got)
	}
	put(t, leader, "last", "1")
	awaitText(t, away, "last", "1")
}

// TestChurn isolates, closes and opens servers at random, with frequent
// snapshots. It checks that in the end all servers have all acknowledged
// writes.
func TestChurn(t *testing.T) {
	testutil.Cluster(t)
	nw := loopback(t)
	small := func(c *Config) {
		shortHeartbeat(c)
		c.segmentSize, c.trailingLogs, c.snapshotThreshold, c.snapshotInterval = 4096, 20, 10, 20*time.Millisecond
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
			nw.isolate(node, true) // closes the connections of node
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
