// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

func TestMain(m *testing.M) {
	if runWriter() || runRestorer() {
		return
	}
	goleak.VerifyTestMain(m)
}

// mustSnapshot makes Raft take a snapshot.
func mustSnapshot(t testing.TB, s *Store) {
	t.Helper()
	if err := s.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
}

// shortHeartbeat is for tests that lose leaders.
func shortHeartbeat(c *Config) { c.Heartbeat = 150 * time.Millisecond }

func mustOpen(t testing.TB, cfg Config) *Store {
	t.Helper()
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close() of %s = %v, want nil", cfg.Node, err)
		}
	})
	return s
}

// single returns a store that is the only voter, and leads.
func single(t testing.TB) *Store {
	t.Helper()
	s := mustOpen(t, loopback(t).config(t, "a", t.TempDir()))
	if err := s.Bootstrap([]string{"a"}); err != nil {
		t.Fatal(err)
	}
	awaitLeader(t, s)
	return s
}

// group returns three stores with one leader.
func group(t testing.TB, nw *network, change func(*Config)) map[string]*Store {
	t.Helper()
	names := []string{"a", "b", "c"}
	all := make(map[string]*Store)
	for _, node := range names {
		cfg := nw.config(t, node, t.TempDir())
		if change != nil {
			change(&cfg)
		}
		all[node] = mustOpen(t, cfg)
	}
	for _, node := range names {
		if err := all[node].Bootstrap(names); err != nil && !errors.Is(err, ErrHasState) {
			t.Fatal(err)
		}
	}
	return all
}

// waitLimit bounds each wait of a test.
const waitLimit = time.Minute

// until waits until cond returns true. The description of the condition is for
// the failure message.
func until(t testing.TB, description string, cond func() bool) {
	t.Helper()
	testutil.Eventually(t, waitLimit, cond, "%s", description)
}

// awaitLeader waits until one of stores leads, and returns it.
func awaitLeader(t testing.TB, stores ...*Store) *Store {
	t.Helper()
	var leader *Store
	until(t, "a leader", func() bool {
		for _, s := range stores {
			if s.IsLeader() {
				leader = s
				return true
			}
		}
		return false
	})
	return leader
}

// values returns the stores of nodes a, b and c, in this order, except some.
func values(all map[string]*Store, except ...*Store) []*Store {
	var out []*Store
	for _, node := range []string{"a", "b", "c"} {
		if s := all[node]; s != nil && !slices.Contains(except, s) {
			out = append(out, s)
		}
	}
	return out
}

var testType = &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Thing"}

func thing(t testing.TB, name, text string) *pb.Resource {
	t.Helper()
	r, err := resource.New(testType, name, &pb.Node{Node: text})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func put(t testing.TB, s *Store, name, text string) *pb.Resource {
	t.Helper()
	out, err := s.Commit(t.Context(), resource.PutOp(thing(t, name, text), resource.AnyVersion))
	if err != nil {
		t.Fatal(err)
	}
	return out[0]
}

// write commits a resource on the leader and returns the leader. If leadership
// is lost, write tries again.
func write(t testing.TB, stores []*Store, name, text string) *Store {
	t.Helper()
	for {
		s := awaitLeader(t, stores...)
		_, err := s.Commit(t.Context(), resource.PutOp(thing(t, name, text), resource.AnyVersion))
		switch {
		case err == nil:
			return s
		case !errors.Is(err, resource.ErrNotLeader) && !errors.Is(err, resource.ErrUnknownOutcome):
			t.Fatal(err)
		}
	}
}

// textOf returns the text of a resource, or "" if the resource does not exist.
func textOf(t testing.TB, s *Store, c resource.Consistency, name string) string {
	t.Helper()
	r, err := s.Read(t.Context(), c, &pb.ID{Type: testType, Name: name})
	if errors.Is(err, resource.ErrNotFound) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	n, err := resource.Decode[*pb.Node](r)
	if err != nil {
		t.Fatal(err)
	}
	return n.GetNode()
}

// awaitText waits until s has applied a resource with that text.
func awaitText(t testing.TB, s *Store, name, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	for {
		_, index, err := s.List(ctx, resource.Eventual, resource.Query{Type: testType})
		if err != nil {
			t.Fatal(err)
		}
		if textOf(t, s, resource.Eventual, name) == text {
			return
		}
		if err := s.Wait(ctx, resource.Query{Type: testType}, index); err != nil {
			t.Fatalf("%s has not applied %s = %q: %v", s.cfg.Node, name, text, err)
		}
	}
}

func sprint(n int) string { return fmt.Sprint(n) }

func testLogger() *slog.Logger {
	if os.Getenv("WANFED_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.DiscardHandler)
}
