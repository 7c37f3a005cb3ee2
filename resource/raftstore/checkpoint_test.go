// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/raftstore/raftlog"
)

// tamper replaces old, of equal length, with replacement in the log of a closed
// store. The checksums are correct afterwards, so the start accepts the log.
func tamper(t *testing.T, cfg Config, old, replacement string) {
	t.Helper()
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(cfg.Dir, retainSnapshots, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	l, err := raftlog.Open(raftlog.Config{
		Dir: filepath.Join(cfg.Dir, logDir), SegmentSize: 64 << 20, Snapshots: snapshots,
		SnapshotDir: filepath.Join(cfg.Dir, snapshotDir), Logger: slog.New(slog.DiscardHandler), Fail: func(error) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	first, _ := l.FirstIndex()
	last, _ := l.LastIndex()
	var after []*raft.Log
	for i := first; i <= last; i++ {
		e := new(raft.Log)
		if err := l.GetLog(i, e); err != nil {
			t.Fatal(err)
		}
		if found := bytes.Contains(e.Data, []byte(old)); found || len(after) > 0 {
			e.Data = bytes.ReplaceAll(e.Data, []byte(old), []byte(replacement))
			after = append(after, e)
		}
	}
	if len(after) == 0 || len(old) != len(replacement) {
		t.Fatalf("no entry contains %q, or %q has another length", old, replacement)
	}
	if err := l.DeleteRange(after[0].Index, last); err != nil {
		t.Fatal(err)
	}
	if err := l.StoreLogs(after); err != nil {
		t.Fatal(err)
	}
}

// digestAt makes all stores take a checkpoint, and returns their digests.
func digestAt(t *testing.T, leader *Store, stores ...*Store) (digests []string) {
	t.Helper()
	if err := leader.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	index, _, err := leader.Digest()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stores {
		until(t, "the checkpoint at "+s.cfg.Node, func() bool {
			at, digest, err := s.Digest()
			if err != nil {
				t.Fatal(err)
			}
			if at == index {
				digests = append(digests, digest)
			}
			return at == index
		})
	}
	return digests
}

// TestResync gives one server of three another state. Its digest differs. After
// Resync, while the leader commits writes, it is equal to the others, also
// after a restart.
func TestResync(t *testing.T) {
	testutil.Cluster(t)
	nw := loopback(t)
	stores := group(t, nw, nil)
	leader := awaitLeader(t, values(stores)...)
	for i := range 50 {
		put(t, leader, "n"+sprint(i), numbered(i))
	}
	followers := values(stores, leader)
	wrong, other := followers[0], followers[1]
	awaitText(t, wrong, "n49", numbered(49))
	awaitText(t, other, "n49", numbered(49))
	if d := digestAt(t, leader, leader, wrong, other); d[0] != d[1] || d[0] != d[2] || d[0] == "" {
		t.Fatalf("digests of equal stores = %q, want one", d)
	}
	node, dir := wrong.cfg.Node, wrong.cfg.Dir
	if err := wrong.Close(); err != nil {
		t.Fatal(err)
	}
	tamper(t, wrong.cfg, "7-xxxxx", "7-XXXXX")
	wrong = mustOpen(t, nw.config(t, node, dir))
	d := digestAt(t, leader, leader, other, wrong)
	if d[0] != d[1] || d[0] == d[2] {
		t.Fatalf("digests = %q, want the third to differ", d)
	}

	stop := make(chan struct{})
	written := make(chan int)
	go func() {
		n := 0
		defer func() { written <- n }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			op := resource.PutOp(thing(t, "w"+sprint(n%10), sprint(n)), resource.AnyVersion)
			_, err := leader.Commit(context.Background(), op)
			if err != nil {
				t.Error(err)
				return
			}
			n++
		}
	}()
	var b bytes.Buffer
	snapshot, err := leader.Snapshot(t.Context())
	if err == nil {
		_, err = snapshot.WriteTo(&b)
	}
	if err != nil {
		t.Fatal(err)
	}
	after := leader.raft.LastIndex()
	until(t, "the leader writes more", func() bool { return leader.raft.LastIndex() > after })
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if err := wrong.Resync(ctx, &b); err != nil {
		t.Fatal(err)
	}
	close(stop)
	if n := <-written; n == 0 {
		t.Error("0 writes during Resync, want some")
	}
	if d := digestAt(t, leader, leader, other, wrong); d[0] != d[1] || d[0] != d[2] {
		t.Errorf("digests after Resync = %q, want one", d)
	}
	if err := wrong.Close(); err != nil {
		t.Fatal(err)
	}
	wrong = mustOpen(t, nw.config(t, node, dir))
	if text := textOf(t, wrong, resource.Eventual, "n7"); !strings.HasPrefix(text, "7-xxxxx") {
		t.Errorf("text of n7 after a restart = %.20q, want 7-xxxxx", text)
	}
	if d := digestAt(t, leader, leader, other, wrong); d[0] != d[1] || d[0] != d[2] {
		t.Errorf("digests after a restart = %q, want one", d)
	}
}
