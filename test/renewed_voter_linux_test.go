// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// TestRenewedVoter: a voter loses its disk and returns with an empty data
// directory, while another voter lacks acknowledged writes. The two must not
// elect a leader. With the third server, the renewed one becomes a voter again
// when it has caught up, without an operator.
func TestRenewedVoter(t *testing.T) {
	t.Parallel()
	testutil.Cluster(t)
	l := newLoopback(t)
	all := l.three(t)
	complete, stale, renewed := all[0], all[1], all[2]
	g := &grown{l, all}
	g.awaitWhole(t, waitLimit)
	complete.awaitPut("a value")
	stale.server.Kill()
	for range 3 {
		complete.awaitPut("a value without srv2")
	}
	complete.server.Kill()
	renewed.server.Kill()
	if err := os.RemoveAll(renewed.data()); err != nil {
		t.Fatal(err)
	}
	stale.start()
	renewed.start()
	// after several election timeouts
	if refusal, took := stale.put(); !strings.Contains(refusal, "No cluster leader") {
		t.Fatalf("write = %q after %v, want a refusal: srv2 lacks acknowledged writes, and srv3 lost its disk",
			refusal, took)
	}
	complete.start()
	complete.awaitPut("a write by srv1 and srv2")
	stale.check(complete.values, "")
	joining := filepath.Join(renewed.data(), "raft", "joining")
	took := testutil.Await(t, 2*waitLimit, "a vote of srv3", func(context.Context) error {
		if _, err := os.Stat(joining); !errors.Is(err, os.ErrNotExist) {
			return errors.New("srv3 has no vote")
		}
		return nil
	})
	t.Logf("srv3 may vote %v after srv1 started", took.Round(time.Millisecond))
	g.awaitWhole(t, waitLimit)
	complete.server.Kill()
	stale.awaitPut("a write by srv2 and srv3")
	renewed.check(complete.values, "")
}

// TestRecoverLostMajority_OldDisks starts the two lost servers with their old
// data directories after the third one was recovered. They form no second group,
// and become voters of the recovered one.
func TestRecoverLostMajority_OldDisks(t *testing.T) {
	t.Parallel()
	testutil.Cluster(t)
	l := newLoopback(t)
	all := l.three(t)
	g := &grown{l, all}
	g.awaitWhole(t, waitLimit)
	survivor := all[2]
	survivor.awaitPut("a value")
	for _, d := range all {
		d.server.Kill()
	}
	out, err := exec.Command(l.bin, "server", "recover", "--yes", "--data-dir", survivor.data()).CombinedOutput()
	if err != nil {
		t.Fatalf("server recover = %v: %s", err, out)
	}
	survivor.start()
	survivor.awaitPut("a write after the recovery")
	logs := []*logFile{logOf(all[0].server.Process).mark(t), logOf(all[1].server.Process).mark(t)}
	for _, lost := range all[:2] {
		lost.start()
	}
	for _, node := range []string{"srv1", "srv2"} {
		logOf(survivor.server.Process).await(t, `msg="server has a vote in the Raft group".* peer=`+node)
	}
	testutil.Await(t, 3*waitLimit, "votes of srv1 and srv2", func(context.Context) error {
		for _, lost := range all[:2] {
			if _, err := os.Stat(filepath.Join(lost.data(), "raft", "joining")); !errors.Is(err, os.ErrNotExist) {
				return errors.New("a server has no vote")
			}
		}
		return nil
	})
	// A server whose log the recovered group replaced at once reports nothing.
	for _, log := range logs {
		log.await(t, "server started")
		if led, err := log.lines("leadership acquired"); err != nil || len(led) > 0 {
			t.Errorf("%s has %d lines of an acquired leadership, %v, want none", log.path, len(led), err)
		}
	}
	g.awaitWhole(t, waitLimit)
	all[0].check(survivor.values, "")
}
