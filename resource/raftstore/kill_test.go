// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

// writerDir is an environment variable with a data directory. If it is set, the
// test binary writes to the store in that directory until the process is
// killed.
const writerDir = "WANFED_TEST_WRITER_DIR"

// killWriters is the number of goroutines that write.
const killWriters = 4

// killConfig returns a Config with small files and frequent snapshots, because
// kills must also hit rotation, snapshots and truncation.
func killConfig(dir string, l *layer) Config {
	return Config{
		Node: "a", Dir: dir, Stream: l, Logger: testLogger(),
		Heartbeat: 100 * time.Millisecond, segmentSize: 16 << 10,
		snapshotInterval: 20 * time.Millisecond, snapshotThreshold: 40, trailingLogs: 20,
	}
}

// runWriter writes to the store if writerDir is set, and returns false
// otherwise. It prints the name of each acknowledged write to standard output.
// The process ends when it is killed or when its standard input ends.
func runWriter() bool {
	dir := os.Getenv(writerDir)
	if dir == "" {
		return false
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	if err := writeLoop(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(1)
	return true
}

func writeLoop(dir string) error {
	ctx := context.Background()
	s, err := Open(killConfig(dir, newNetwork(listenLocally, nil).layer("a")))
	if err != nil {
		return err
	}
	if !s.HasState() {
		if err := s.Bootstrap([]string{"a"}); err != nil {
			return err
		}
	}
	for changed := s.LeaderChanged(); !s.IsLeader(); changed = s.LeaderChanged() {
		<-changed
	}
	errc := make(chan error)
	for w := range killWriters {
		go func() {
			for n := 0; ; n++ {
				name := fmt.Sprintf("p%d-w%d-%d", os.Getpid(), w, n)
				r, err := resource.New(testType, name, &pb.Node{Node: name})
				if err == nil {
					_, err = s.Commit(ctx, resource.PutOp(r, ""))
				}
				if err != nil {
					errc <- err
					return
				}
				fmt.Println(name) // one system call per line
			}
		}()
	}
	return <-errc
}

// TestKill checks that all acknowledged writes survive kill -9.
func TestKill(t *testing.T) {
	testutil.Cluster(t)
	const rounds = 20
	dir := t.TempDir()
	acked := make(map[string]bool)
	for round := range rounds {
		lines, stderr := killed(t, writerDir+"="+dir, 1+rand.IntN(120))
		for _, name := range lines {
			acked[name] = true
		}
		if len(lines) == 0 {
			t.Fatalf("round %d: the writer printed nothing: %s", round, stderr)
		}
		checkAcked(t, dir, acked)
		if t.Failed() {
			t.Fatalf("after round %d", round)
		}
	}
	t.Logf("%d acknowledged writes survived %d kills", len(acked), rounds)
}

// listenLocally listens on loopback in a process without a testing.T.
func listenLocally(*network) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	return l
}

// untilKilled starts cmd, kills the process after n lines, and returns all
// lines that the process printed.
func untilKilled(t *testing.T, cmd *exec.Cmd, n int) (lines []string) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := sync.OnceFunc(func() { cmd.Process.Kill() })
	r := bufio.NewReader(out)
	for {
		line, err := r.ReadString('\n')
		if err != nil { // end of output; an incomplete line is ignored
			break
		}
		lines = append(lines, strings.TrimSuffix(line, "\n"))
		if len(lines) >= n {
			kill()
		}
	}
	cmd.Wait() // returns an error, because the process was killed
	return lines
}

// checkAcked checks that the store in dir has all acknowledged writes.
func checkAcked(t *testing.T, dir string, acked map[string]bool) {
	t.Helper()
	s, err := Open(killConfig(dir, loopback(t).layer("a")))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	awaitLeader(t, s)
	all, _, err := s.List(t.Context(), resource.Strong, resource.Query{Type: testType})
	if err != nil {
		t.Fatal(err)
	}
	stored := make(map[string]bool, len(all))
	for _, r := range all {
		n, err := resource.Decode[*pb.Node](r)
		if err != nil || n.GetNode() != r.Id.Name {
			t.Errorf("data of %s = %v, %v, want its name", r.Id.Name, n, err)
		}
		stored[r.Id.Name] = true
	}
	for name := range acked {
		if !stored[name] {
			t.Errorf("acknowledged write %s is lost", name)
		}
	}
}
