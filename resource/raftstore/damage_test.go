// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

// writtenDir returns the configuration of a store that was killed after it
// acknowledged entries writes, with a snapshot after half of them. The log has
// several segments. The texts of the resources are equal to their names.
func writtenDir(t *testing.T, nw *network, entries int) Config {
	t.Helper()
	cfg := nw.config(t, "a", t.TempDir())
	cfg.trailingLogs, cfg.segmentSize = 5, 16<<10
	s := mustOpen(t, cfg)
	if err := s.Bootstrap([]string{"a"}); err != nil {
		t.Fatal(err)
	}
	awaitLeader(t, s)
	for i := range entries {
		put(t, s, "n"+sprint(i), numbered(i))
		if i == entries/2 {
			mustSnapshot(t, s)
		}
	}
	killed := cfg
	killed.Dir = t.TempDir()
	copyDir(t, killed.Dir, cfg.Dir) // the store is open, so the copy is the directory of a killed process
	return killed
}

func numbered(i int) string { return fmt.Sprintf("%d-%s", i, strings.Repeat("x", 300)) }

func copyDir(t *testing.T, to, from string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// damage changes one file of dir at random, and describes the change.
func damage(t *testing.T, rnd *rand.Rand, dir string) string {
	t.Helper()
	var files []string
	for _, pattern := range []string{"wal/*.wal", "wal/*.wal", "wal/wal-meta.db", "wal/stored-index", "wal/vote",
		"snapshots/*/*"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	path := files[rnd.IntN(len(files))]
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	used := len(strings.TrimRight(string(b), "\x00"))
	at := rnd.IntN(max(used, 1))
	what := ""
	switch rnd.IntN(4) {
	case 0:
		what, b[at] = "flipped byte", b[at]^byte(1+rnd.IntN(255))
	case 1:
		at = at &^ 511
		what = "zeroed sector"
		clear(b[at:min(at+512, len(b))])
	case 2:
		what = "200 zero bytes"
		clear(b[at:min(at+200, len(b))])
	case 3:
		what, b = "truncation", b[:at]
	}
	writeTest(t, path, string(b))
	return fmt.Sprintf("%s at %d of %d in %s", what, at, used, filepath.Base(path))
}

// TestOpen_RandomDamage damages the files of a killed server. The server must
// refuse the start with a message, or serve everything that was acknowledged.
func TestOpen_RandomDamage(t *testing.T) {
	const entries = 100
	nw := loopback(t)
	cfg := writtenDir(t, nw, entries)
	refused := 0
	for seed := range uint64(200) {
		t.Run(sprint(int(seed)), func(t *testing.T) {
			c := nw.config(t, "a", t.TempDir())
			c.trailingLogs, c.segmentSize = cfg.trailingLogs, cfg.segmentSize
			copyDir(t, c.Dir, cfg.Dir)
			what := damage(t, rand.New(rand.NewPCG(seed, 1)), c.Dir)
			s, err := Open(c)
			if err != nil {
				refused++
				t.Logf("%s: %v", what, err)
				if !strings.Contains(err.Error(), c.Dir) || !strings.Contains(err.Error(), "; ") {
					t.Errorf("%s: Open() = %q, want an error with the directory and a remedy", what, err)
				}
				return
			}
			defer s.Close()
			awaitLeader(t, s)
			checkWritten(t, s, resource.Strong, entries, what)
			t.Logf("%s: intact", what)
		})
	}
	t.Logf("%d of 200 refused", refused)
}

// checkWritten checks that s has the resources that writtenDir wrote.
func checkWritten(t *testing.T, s *Store, c resource.Consistency, entries int, what string) {
	t.Helper()
	all, _, err := s.List(t.Context(), c, resource.Query{Type: testType})
	if err != nil {
		t.Fatalf("%s: List() = %v, want nil", what, err)
	}
	texts := map[string]bool{}
	for _, r := range all {
		n, err := resource.Decode[*pb.Node](r)
		if err != nil {
			t.Fatalf("%s: Decode(%s) = %v, want nil", what, r.Id.Name, err)
		}
		texts[r.Id.Name+"="+n.GetNode()] = true
	}
	for i := range entries {
		if want := "n" + sprint(i) + "=" + numbered(i); !texts[want] {
			t.Errorf("%s: resource n%d is lost or changed", what, i)
			break
		}
	}
}

// TestOpen_RandomDamageOfOne damages the files of one server of three. The
// server must refuse the start, or have the resources of the others after it
// has caught up. After a refusal, the documented remedy makes it equal to the
// others.
func TestOpen_RandomDamageOfOne(t *testing.T) {
	testutil.Cluster(t)
	const entries = 60
	rounds := 20
	if os.Getenv("WANFED_CHAOS") != "" {
		rounds = 200
	}
	g := newDamagedGroup(t, entries)
	leader := g.leader
	refused := 0
	for seed := range uint64(rounds) {
		cfg := g.copy(t)
		what := damage(t, rand.New(rand.NewPCG(seed, 3)), cfg.Dir)
		s, err := Open(cfg)
		if err != nil {
			refused++
			if !strings.Contains(err.Error(), cfg.Dir) || !strings.Contains(err.Error(), "; ") {
				t.Errorf("%s: Open() = %q, want an error with the directory and a remedy", what, err)
			}
			s = g.renew(t)
		}
		put(t, leader, "round", sprint(int(seed)))
		awaitText(t, s, "round", sprint(int(seed)))
		checkWritten(t, s, resource.Eventual, entries, what)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of %d refused", refused, rounds)
}

// damagedGroup is a group of three servers, of which one is stopped.
type damagedGroup struct {
	nw      *network
	leader  *Store
	node    string // the stopped server
	written string // copy of its directory
}

func smallFiles(c *Config) { c.trailingLogs, c.segmentSize = 5, 16<<10 }

// newDamagedGroup returns a group that has acknowledged a number of writes, with
// a snapshot after half of them.
func newDamagedGroup(t *testing.T, entries int) damagedGroup {
	t.Helper()
	g := damagedGroup{nw: loopback(t), written: t.TempDir()}
	stores := group(t, g.nw, smallFiles)
	g.leader = awaitLeader(t, values(stores)...)
	for i := range entries {
		put(t, g.leader, "n"+sprint(i), numbered(i))
		if i == entries/2 {
			for _, s := range values(stores) {
				awaitText(t, s, "n"+sprint(i), numbered(i))
				mustSnapshot(t, s)
			}
		}
	}
	damaged := values(stores, g.leader)[0]
	g.node = damaged.cfg.Node
	awaitText(t, damaged, "n"+sprint(entries-1), numbered(entries-1))
	if err := damaged.Close(); err != nil {
		t.Fatal(err)
	}
	copyDir(t, g.written, damaged.cfg.Dir)
	return g
}

// copy returns the configuration of the stopped server with a copy of its
// directory.
func (g damagedGroup) copy(t *testing.T) Config {
	t.Helper()
	cfg := g.nw.config(t, g.node, t.TempDir())
	smallFiles(&cfg)
	copyDir(t, cfg.Dir, g.written)
	return cfg
}

// renew performs the documented remedy: it removes the server, and adds it again
// with a new directory.
func (g damagedGroup) renew(t *testing.T) *Store {
	t.Helper()
	if err := g.leader.RemoveServer(t.Context(), g.node); err != nil {
		t.Fatal(err)
	}
	cfg := g.nw.config(t, g.node, t.TempDir())
	smallFiles(&cfg)
	s := mustOpen(t, cfg)
	if err := g.leader.AddVoter(t.Context(), g.node); err != nil {
		t.Fatal(err)
	}
	return s
}
