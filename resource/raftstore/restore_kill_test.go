// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

// restorerDir is an environment variable with a data directory. If it is set,
// the test binary restores the snapshots a and b alternately to the store in
// that directory, until the process is killed. The files of the snapshots are
// in the parent directory.
const restorerDir = "WANFED_TEST_RESTORER_DIR"

// restoredThings is the number of resources in each snapshot.
const restoredThings = 300

// runRestorer restores snapshots if restorerDir is set, and returns false
// otherwise. It prints the index of each restore to standard output.
func runRestorer() bool {
	dir := os.Getenv(restorerDir)
	if dir == "" {
		return false
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	fmt.Fprintln(os.Stderr, restoreLoop(dir))
	os.Exit(1)
	return true
}

func restoreLoop(dir string) error {
	s, err := Open(killConfig(dir, newNetwork(listenLocally, nil).layer("a")))
	if err != nil {
		return err
	}
	for changed := s.LeaderChanged(); !s.IsLeader(); changed = s.LeaderChanged() {
		<-changed
	}
	for n := 0; ; n++ {
		b, err := os.ReadFile(filepath.Join(filepath.Dir(dir), "ab"[n%2:n%2+1]))
		if err != nil {
			return err
		}
		m, err := ParseHeader(b[:HeaderSize])
		if err != nil {
			return err
		}
		out, err := s.Restore(context.Background(), m, bytes.NewReader(b[HeaderSize:]))
		if err != nil {
			return err
		}
		fmt.Println(out.Index)
	}
}

// TestRestore_Kill checks that after kill -9 the state is one of the two
// snapshots, at the last printed index or above.
func TestRestore_Kill(t *testing.T) {
	testutil.Cluster(t)
	t.Parallel()
	const rounds = 12
	parent := t.TempDir()
	dir := filepath.Join(parent, "store")
	printed := uint64(0)
	func() {
		s, err := Open(killConfig(dir, loopback(t).layer("a")))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if err := s.Bootstrap([]string{"a"}); err != nil {
			t.Fatal(err)
		}
		awaitLeader(t, s)
		for _, text := range []string{"a", "b"} {
			var ops []*pb.Op
			for i := range restoredThings {
				ops = append(ops, resource.PutOp(thing(t, sprint(i), text), resource.AnyVersion))
			}
			if _, err := s.Commit(t.Context(), ops...); err != nil {
				t.Fatal(err)
			}
			m, data := saveData(t, s)
			if err := os.WriteFile(filepath.Join(parent, text), append(mustHeader(t, m), data...), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}()
	total := 0
	for round := range rounds {
		lines, stderr := killed(t, restorerDir+"="+dir, 1+rand.IntN(6))
		if len(lines) == 0 {
			t.Fatalf("round %d: the process restored nothing: %s", round, stderr)
		}
		total += len(lines)
		last, err := strconv.ParseUint(lines[len(lines)-1], 10, 64)
		if err != nil || last <= printed {
			t.Fatalf("round %d: printed indexes = %s, %v, want above %d", round, lines, err, printed)
		}
		printed = last
		checkRestored(t, dir, printed)
		if t.Failed() {
			t.Fatalf("after round %d", round)
		}
	}
	t.Logf("%d restores and %d kills", total, rounds)
}

// checkRestored checks that the store in dir has the state of one snapshot, at
// index printed or above.
func checkRestored(t *testing.T, dir string, printed uint64) {
	t.Helper()
	s, err := Open(killConfig(dir, loopback(t).layer("a")))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	awaitLeader(t, s)
	all, index, err := s.List(t.Context(), resource.Strong, resource.Query{Type: testType})
	if err != nil || len(all) != restoredThings || index < printed {
		t.Errorf("List() = %d resources at %d, %v; want %d at %d or above", len(all), index, err,
			restoredThings, printed)
	}
	texts := map[string]int{}
	for _, r := range all {
		texts[textOf(t, s, resource.Eventual, r.Id.Name)]++
	}
	if len(texts) != 1 {
		t.Errorf("resources by text = %v, want the text of one snapshot", texts)
	}
	checkNoSpools(t, s)
}

// killed runs this test binary with env, kills the process after n lines, and
// returns its output.
func killed(t *testing.T, env string, n int) (lines []string, stderr string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), env)
	var errs strings.Builder
	cmd.Stderr = &errs
	return untilKilled(t, cmd, n), errs.String()
}
