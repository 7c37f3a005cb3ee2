// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/tlsutil"
)

// operate runs a command at a server, with the certificate of an operator of
// its datacenter, and returns the output.
func operate(t *testing.T, l *lab.Lab, s *lab.Node, args ...string) (string, error) {
	t.Helper()
	f, err := l.PKI.Issue(tlsutil.RoleOperator, s.DC().Name, "operator")
	if err != nil {
		t.Fatal(err)
	}
	return s.CLI(append(args, "--datacenter", s.DC().Name, "--server", s.ServerAddr(), "--ca-file", f.CA, "--cert-file",
		f.Cert, "--key-file", f.Key)...)
}

// mustOperate is operate for a command that must succeed.
func mustOperate(t *testing.T, l *lab.Lab, s *lab.Node, args ...string) string {
	t.Helper()
	out, err := operate(t, l, s, args...)
	if err != nil {
		t.Fatalf("wanfed %s = %v, want nil: %s", strings.Join(args, " "), err, out)
	}
	t.Logf("wanfed %s: %s", strings.Join(args, " "), strings.TrimSpace(out))
	return out
}

// mustRestore restores a snapshot at s. It repeats the command while a lost
// leader makes the outcome unknown, as an operator would.
func mustRestore(t *testing.T, l *lab.Lab, s *lab.Node, file string) {
	t.Helper()
	testutil.Await(t, failure, "restore of "+file, func(context.Context) error {
		out, err := operate(t, l, s, "snapshot", "restore", file, "--yes")
		if err == nil {
			t.Logf("wanfed snapshot restore: %s", strings.TrimSpace(out))
		} else if err = errors.New(out); !strings.Contains(out, "the outcome is unknown") {
			t.Fatal(err)
		}
		return err
	})
}

// awaitGroup waits until "wanfed operator raft list-peers" at s lists the Raft
// group want. want has the names of all servers, those without a vote in
// parentheses.
func awaitGroup(t *testing.T, l *lab.Lab, s *lab.Node, limit time.Duration, want string) {
	t.Helper()
	took := testutil.Await(t, limit, "Raft group "+want, func(context.Context) error {
		out, err := operate(t, l, s, "operator", "raft", "list-peers", "--output", "json")
		if err != nil {
			return errors.New(out)
		}
		var peers []struct {
			Node  string `json:"node"`
			Voter bool   `json:"voter"`
		}
		if err := json.Unmarshal([]byte(out), &peers); err != nil {
			return err
		}
		var got []string
		for _, p := range peers {
			if p.Voter {
				got = append(got, p.Node)
			} else {
				got = append(got, "("+p.Node+")")
			}
		}
		if g := strings.Join(got, " "); g != want {
			return fmt.Errorf("the group is %s", g)
		}
		return nil
	})
	t.Logf("Raft group %s after %v", want, took.Round(time.Millisecond))
}

// TestDeadServerRemoval kills servers of a group of three. A killed server is
// removed from the Raft group, but a second one is not. A removed server joins
// again as a new server, first without a vote. A server that stops cleanly
// stays in the group.
func TestDeadServerRemoval(t *testing.T) {
	t.Parallel()
	const deadAfter = 10 * time.Second // the minimum of --dead-server-after
	l := lab.New(t)
	dc := l.Add(3, 1)
	for _, s := range dc.Servers {
		s.StartServer("--dead-server-after", deadAfter.String())
	}
	dc.Gateways[0].StartGateway()
	awaitWhole(t, l, 2*promptly, "start")
	leader := leaderOf(t, dc)
	var others []*lab.Node
	for _, s := range dc.Servers {
		if s != leader {
			others = append(others, s)
		}
	}
	all := "srv1 srv2 srv3"
	without := func(nodes ...*lab.Node) string {
		out := all
		for _, n := range nodes {
			out = strings.Join(strings.Fields(strings.ReplaceAll(out, n.Name, "")), " ")
		}
		return out
	}
	awaitGroup(t, l, leader, promptly, all)

	others[0].Kill()
	killed := time.Now()
	writeNumbers(t, l, leader, 1)
	awaitGroup(t, l, leader, failure, without(others[0]))
	if took := time.Since(killed); took < deadAfter {
		t.Errorf("killed server removed after %v, want at least %v", took, deadAfter)
	}
	others[0].StartServer("--dead-server-after", deadAfter.String())
	awaitGroup(t, l, others[0], promptly, strings.Replace(all, others[0].Name, "("+others[0].Name+")", 1))
	awaitNumber(t, promptly, 1, others[0])
	// it gets a vote after 10 s of stability; an election restarts the 10 s
	awaitGroup(t, l, others[0], 3*promptly, all)

	// The new vote counts: two servers elect a leader and remove the old one.
	leader.Kill()
	writeNumbers(t, l, others[0], 2)
	awaitGroup(t, l, others[0], failure, without(leader))

	// One of the two remaining servers stops cleanly. It is not removed, and
	// writes continue after its restart.
	others[1].Stop()
	outage(t, 2*deadAfter)
	others[1].StartServer("--dead-server-after", deadAfter.String())
	awaitGroup(t, l, others[1], promptly, without(leader))
	writeNumbers(t, l, others[1], 3)
	leader.StartServer("--dead-server-after", deadAfter.String())
	awaitGroup(t, l, leader, 3*promptly, all)
	awaitNumber(t, promptly, 3, dc.Servers...)
	awaitWhole(t, l, promptly, "restart of all servers")
}

// TestSnapshotRestore_Federation restores a snapshot in a secondary, and
// another in the primary while clients write. Afterwards all servers have the
// same resources.
func TestSnapshotRestore_Federation(t *testing.T) {
	t.Parallel()
	l := lab.New(t)
	dc1, dc2 := l.Add(3, 1), l.Add(1, 1)
	first, second := dc1.Servers[0], dc2.Servers[0]
	dir := t.TempDir()
	alone, old1, old2 := filepath.Join(dir, "alone.snap"), filepath.Join(dir, "dc1.snap"),
		filepath.Join(dir, "dc2.snap")
	dc1.Start()
	awaitShown(t, 2*promptly, dc1, dc1.Servers...)
	mustOperate(t, l, first, "snapshot", "save", alone)
	dc2.Start()
	awaitWhole(t, l, 2*promptly, "start")
	everybody := l.Running()
	writeNumbers(t, l, first, 5)
	awaitNumber(t, promptly, 5, everybody...)
	mustOperate(t, l, first, "snapshot", "save", old1)
	mustOperate(t, l, second, "snapshot", "save", old2)
	if out, err := operate(t, l, first, "snapshot", "restore", old2, "--yes"); err == nil ||
		!strings.Contains(out, "of datacenter dc2, not of dc1; nothing was changed") {
		t.Errorf("restore of a snapshot of dc2 in dc1 = %v, %s; want a refusal", err, out)
	}
	writeNumbers(t, l, first, 9)
	awaitNumber(t, promptly, 9, everybody...)

	// Replication replaces the restored old resources of the secondary.
	mustRestore(t, l, second, old2)
	awaitNumber(t, promptly, 9, everybody...)
	awaitWhole(t, l, promptly, "restore in the secondary")
	sameEverywhere(t, l)

	// The secondary follows the restored primary, although its resources are
	// newer.
	stop := writeOn(t, l, dc1, "dc8")
	mustRestore(t, l, first, old1)
	last := stop()
	awaitNumber(t, promptly, 5, everybody...)
	awaitWhole(t, l, promptly, "restore in the primary")
	testutil.Await(t, promptly, "the last acknowledged write at all servers", func(ctx context.Context) error {
		for _, s := range everybody {
			states, err := statesOf(ctx, s)
			if err != nil {
				return err
			}
			if got := numberOfJSON(states["dc8"]); got != last {
				return fmt.Errorf("%s has number %d of dc8, want the last acknowledged %d", s.WANName(), got, last)
			}
		}
		return nil
	})
	sameEverywhere(t, l)

	// The restored state is on disk.
	dc1.Kill()
	dc1.Start()
	awaitNumber(t, 2*promptly, 5, everybody...)
	writeNumbers(t, l, first, 6)
	awaitNumber(t, promptly, 6, everybody...)
	awaitWhole(t, l, promptly, "all of dc1 killed and restarted")
	sameEverywhere(t, l)

	// A snapshot from before the secondary joined: the secondary publishes its
	// federation state again. Other newer resources are deleted everywhere.
	mustRestore(t, l, first, alone)
	awaitNumber(t, promptly, -1, everybody...)
	awaitWhole(t, l, promptly, "restore from before the secondary")
	sameEverywhere(t, l)
}

// TestSnapshotRestore_AllDisksLost starts new servers in place of those of the
// primary, whose disks are lost, and restores the last snapshot. The secondary
// has newer resources. It ends with the same resources as the primary.
func TestSnapshotRestore_AllDisksLost(t *testing.T) {
	t.Parallel()
	l := lab.New(t)
	dc1, dc2 := l.Add(3, 1), l.Add(1, 1)
	dc1.Start()
	dc2.Start()
	awaitWhole(t, l, 2*promptly, "start")
	everybody := l.Running()
	writeNumbers(t, l, dc1.Servers[0], 3)
	awaitNumber(t, promptly, 3, everybody...)
	backup := filepath.Join(t.TempDir(), "dc1.snap")
	mustOperate(t, l, dc1.Servers[0], "snapshot", "save", backup)
	writeNumbers(t, l, dc1.Servers[0], 7)
	awaitNumber(t, promptly, 7, everybody...)

	dc1.Kill()
	for _, s := range dc1.Servers {
		s.Wipe()
	}
	dc1.Start()
	leaderOf(t, dc1)
	mustRestore(t, l, dc1.Servers[0], backup)
	awaitNumber(t, 2*promptly, 3, everybody...)
	awaitWhole(t, l, 2*promptly, "new servers with the restored resources")
	sameEverywhere(t, l)
	writeNumbers(t, l, dc1.Servers[0], 8)
	awaitNumber(t, promptly, 8, everybody...)
	sameEverywhere(t, l)
}

// writeOn writes the federation state of dc, a datacenter without servers, with
// increasing numbers. stop ends that, writes once more, and returns the last
// number, which was acknowledged.
func writeOn(t *testing.T, l *lab.Lab, to *lab.Datacenter, dc string) (stop func() int) {
	t.Helper()
	s := to.Servers[1]
	cc := connect(t, l, tlsutil.RoleServer, dc, "srv1", s.NS, s.ServerAddr(), tlsutil.ServerName("", to.Name, "wanfed"))
	n, begun, stopc := 0, make(chan struct{}), make(chan struct{})
	write := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := pb.NewFederationServiceClient(cc).Apply(ctx, &pb.ApplyFederationStateRequest{
			Op: pb.ApplyFederationStateRequest_OP_UPSERT, State: numbered(dc, n+1),
		})
		n++
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		failed := 0
		for {
			if err := write(); err != nil {
				failed++
			}
			if n == 20 {
				close(begun)
			}
			select {
			case <-stopc:
				t.Logf("%d writes during the restore, %d of them failed", n, failed)
				return
			default:
			}
		}
	})
	<-begun
	return func() int {
		close(stopc)
		wg.Wait()
		if err := write(); err != nil {
			t.Errorf("last write = %v, want nil", err)
		}
		return n
	}
}
