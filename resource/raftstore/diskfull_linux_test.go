// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

// randomText returns n bytes of text that does not compress.
func randomText(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('a' + rand.IntN(26))
	}
	return string(b)
}

// fill writes to s until a write fails, and returns the error. It adds each
// acknowledged text to texts, by resource name.
func fill(t *testing.T, s *Store, texts map[string]string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		name, text := fmt.Sprintf("n%d", len(texts)), randomText(20_000)
		if _, err := s.Commit(ctx, resource.PutOp(thing(t, name, text), resource.AnyVersion)); err != nil {
			return err
		}
		texts[name] = text
	}
}

// fillDisk writes a file to dir until the disk is full.
func fillDisk(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "fill"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size >= 4096; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
}

// checkTexts checks that s returns all acknowledged texts.
func checkTexts(t *testing.T, s *Store, texts map[string]string) {
	t.Helper()
	for name, text := range texts {
		if got := textOf(t, s, resource.Eventual, name); got != text {
			t.Errorf("%s at %s = %.20q, %d bytes; want %.20q", name, s.cfg.Node, got, len(got), text)
		}
	}
}

// awaitWrite repeats a write until the write succeeds, at most for waitLimit.
func awaitWrite(t *testing.T, s *Store, name, text string) {
	t.Helper()
	for end := time.Now().Add(waitLimit); ; {
		_, err := s.Commit(t.Context(), resource.PutOp(thing(t, name, text), resource.AnyVersion))
		if err == nil {
			return
		}
		if !errors.Is(err, resource.ErrReadOnly) && !errors.Is(err, resource.ErrNotLeader) || time.Now().After(end) {
			t.Fatalf("Commit(%s) = %v, want nil", name, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// diskTest is a store of one server on a small disk.
type diskTest struct {
	dir   string
	nw    *network
	s     *Store
	texts map[string]string // acknowledged texts by resource name
}

func (d *diskTest) open(t *testing.T) {
	t.Helper()
	cfg := d.nw.config(t, "a", d.dir)
	cfg.Heartbeat = 150 * time.Millisecond
	var err error
	if d.s, err = Open(cfg); err != nil {
		t.Fatal(err)
	}
}

func (d *diskTest) restart(t *testing.T) {
	t.Helper()
	if err := d.s.Close(); err != nil {
		t.Fatal(err)
	}
	d.open(t)
}

// TestDiskFull checks that a store on a full disk rejects writes with the
// reason and serves reads, also after a restart. When the disk has space again,
// the store leads and writes without a restart. It loses no acknowledged write.
func TestDiskFull(t *testing.T) {
	d := &diskTest{dir: smallDisk(t, 6<<20), nw: loopback(t), texts: map[string]string{}}
	d.open(t)
	defer func() { d.s.Close() }() // before the disk is unmounted
	if err := d.s.Bootstrap([]string{"a"}); err != nil {
		t.Fatal(err)
	}
	awaitLeader(t, d.s)
	for size := 6; size <= 12; size *= 2 {
		t.Run(fmt.Sprintf("full at %d MiB", size), func(t *testing.T) { d.fillAndGrow(t, size) })
	}
	t.Run("restart on a full disk", d.restartFull)
	t.Run("space again", func(t *testing.T) {
		remount(t, d.dir, 0, "size=64m")
		awaitWrite(t, d.s, "last", "1")
		d.texts["last"] = "1"
		checkTexts(t, d.s, d.texts)
	})
	t.Run("restart", func(t *testing.T) {
		d.restart(t)
		awaitLeader(t, d.s)
		checkTexts(t, d.s, d.texts)
	})
}

// fillAndGrow fills a disk of size MiB, checks the store, and doubles the disk.
func (d *diskTest) fillAndGrow(t *testing.T, size int) {
	before := len(d.texts)
	err := fill(t, d.s, d.texts)
	if !errors.Is(err, resource.ErrReadOnly) || !errors.Is(err, syscall.ENOSPC) ||
		errors.Is(err, resource.ErrUnknownOutcome) ||
		!strings.Contains(err.Error(), d.dir) || !strings.Contains(err.Error(), "free disk space") {
		t.Errorf("Commit() on a full disk = %v, want ErrReadOnly and ENOSPC with directory and remedy", err)
	}
	t.Logf("%d writes filled the disk: %v", len(d.texts)-before, err)
	if err := d.s.WriteError(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("WriteError() = %v, want ENOSPC", err)
	}
	until(t, "IsLeader() = false on a full disk", func() bool { return !d.s.IsLeader() })
	checkTexts(t, d.s, d.texts)

	remount(t, d.dir, 0, fmt.Sprintf("size=%dm", 2*size))
	awaitWrite(t, d.s, "after", "1")
	if err := d.s.WriteError(); err != nil {
		t.Errorf("WriteError() after a write = %v, want nil", err)
	}
}

// restartFull fills the disk, restarts the store and checks that the store
// serves reads of all acknowledged writes.
func (d *diskTest) restartFull(t *testing.T) {
	fillDisk(t, d.dir)
	if err := fill(t, d.s, d.texts); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Commit() on a full disk = %v, want ENOSPC", err)
	}
	d.restart(t)
	testutil.Eventually(t, waitLimit, func() bool { return errors.Is(d.s.WriteError(), syscall.ENOSPC) },
		"WriteError() = ENOSPC on a full disk")
	last := fmt.Sprintf("n%d", len(d.texts)-1)
	d.texts["after"] = "1"
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if err := d.s.Wait(ctx, resource.Query{Type: testType, Name: last}, 1); err != nil {
		t.Fatalf("Wait() for the last resource = %v, want nil: the log must be readable", err)
	}
	checkTexts(t, d.s, d.texts)
	if err := d.s.WriteError(); err == nil || d.s.IsLeader() {
		t.Errorf("WriteError() = %v, IsLeader() = %t on a full disk, want an error and false", err, d.s.IsLeader())
	}
	if err := d.s.raft.Snapshot().Error(); err == nil {
		t.Error("Snapshot() = nil, want an error while the state has entries that Raft has not applied")
	}
}

// TestDiskFull_Follower checks that two servers continue while the disk of the
// third server is full, and that the third server receives the missing entries
// when its disk has space again.
func TestDiskFull_Follower(t *testing.T) {
	small := smallDisk(t, 4<<20)
	testutil.Bubble(t, func(t *testing.T) { diskFullFollower(t, small) })
}

func diskFullFollower(t *testing.T, small string) {
	nw := pipes()
	all := group(t, nw, func(c *Config) {
		if c.Node == "a" {
			c.Dir = small
		}
	})
	defer all["a"].Close() // before the disk is unmounted
	leader := awaitLeader(t, values(all)...)
	if leader != all["a"] {
		if err := leader.TransferLeadershipTo(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		awaitLeader(t, all["a"])
	}
	texts := map[string]string{}
	if err := fill(t, all["a"], texts); !errors.Is(err, resource.ErrReadOnly) {
		t.Errorf("Commit() at the leader with the full disk = %v, want ErrReadOnly", err)
	}
	leader = awaitLeader(t, all["b"], all["c"])
	for n := range 100 {
		name := fmt.Sprintf("later%d", n)
		texts[name] = randomText(20_000)
		put(t, leader, name, texts[name])
	}
	if err := all["a"].WriteError(); err == nil || all["a"].failure() != nil {
		t.Errorf("WriteError() = %v, failure() = %v, want an error and nil", err, all["a"].failure())
	}
	if got := textOf(t, all["a"], resource.Eventual, "later99"); got != "" {
		t.Errorf("Read(later99) at a = %.20q, want none: the disk of a is full", got)
	}
	remount(t, small, 0, "size=64m")
	awaitText(t, all["a"], "later99", texts["later99"])
	checkTexts(t, all["a"], texts)
}
