// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// smallDisk mounts a file system of some bytes; only root can.
func smallDisk(t *testing.T, size int) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can mount a file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Skipf("mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

func remount(t *testing.T, dir string, flags uintptr, options string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT|flags, options); err != nil {
		t.Fatalf("remount: %v", err)
	}
}

// noise is text that does not compress, of n bytes.
func noise(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('a' + rand.IntN(26))
	}
	return string(b)
}

// TestDiskFull: on a full disk the store fails and says so; once there is room, everything that was acknowledged is there, and
// writes go on.
func TestDiskFull(t *testing.T) {
	dir := smallDisk(t, 6<<20)
	nw := loopback(t)
	cfg := nw.config(t, "a", dir)
	cfg.SegmentSize = 256 << 10
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Bootstrap([]string{"a"}); err != nil {
		t.Fatal(err)
	}
	awaitLeader(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	texts := map[string]string{}
	for n := 0; err == nil; n++ {
		name, text := fmt.Sprintf("n%d", n), noise(20_000)
		if _, err = s.Commit(ctx, resource.PutOp(thing(t, name, text), "")); err == nil {
			texts[name] = text
		}
	}
	<-s.Failed()
	for _, err := range []error{err, s.Err()} {
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "see to the disk") {
			t.Errorf("the write that found no room: %v", err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	remount(t, dir, 0, "size=64m")
	s = mustOpen(t, nw.config(t, "a", dir))
	defer s.Close() // before the disk is unmounted
	write(t, []*Store{s}, "after", "1")
	texts["after"] = "1"
	for name, text := range texts {
		if got := textOf(t, s, resource.Strong, name); got != text {
			t.Errorf("%s holds %.20q, %d bytes; want %.20q", name, got, len(got), text)
		}
	}
	t.Logf("%d writes before the disk was full", len(texts)-1)
}

// TestReadOnlyDir: a store whose directory cannot be written does not open, says which it is, and leaves it as it is.
func TestReadOnlyDir(t *testing.T) {
	dir := smallDisk(t, 16<<20)
	nw := loopback(t)
	s, err := Open(nw.config(t, "a", dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Bootstrap([]string{"a"}); err != nil {
		t.Fatal(err)
	}
	awaitLeader(t, s)
	put(t, s, "x", "1")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	remount(t, dir, unix.MS_RDONLY, "")
	s, err = Open(nw.config(t, "a", dir))
	if err == nil {
		s.Close()
		t.Fatal("it opened")
	}
	if !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "read-only file system") {
		t.Errorf("the error is %v", err)
	}
	remount(t, dir, 0, "size=16m")
	s = mustOpen(t, nw.config(t, "a", dir))
	defer s.Close() // before the disk is unmounted
	awaitLeader(t, s)
	if got := textOf(t, s, resource.Strong, "x"); got != "1" {
		t.Errorf("x holds %q", got)
	}
}

// TestGreatResources: resources of 1 MiB are written, replace each other and are read again, and the log of them is no reason
// to run out of memory.
func TestGreatResources(t *testing.T) {
	nw := loopback(t)
	cfg := nw.config(t, "a", t.TempDir())
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Bootstrap([]string{"a"}); err != nil {
		t.Fatal(err)
	}
	awaitLeader(t, s)
	text := ""
	for n := range 20 {
		text = strings.Repeat(fmt.Sprint(n%10), 1<<20)
		put(t, s, "great", text)
	}
	var ops []*pb.Op
	for n := range 33 {
		ops = append(ops, resource.PutOp(thing(t, fmt.Sprintf("n%d", n), text), ""))
	}
	if _, err := s.Commit(t.Context(), ops...); !errors.Is(err, resource.ErrInvalid) || !strings.Contains(err.Error(), "commit them in several") {
		t.Errorf("a batch of 33 MiB: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, nw.config(t, "a", cfg.Dir))
	awaitLeader(t, s)
	if got := textOf(t, s, resource.Strong, "great"); got != text {
		t.Errorf("%d bytes were read, %d written", len(got), len(text))
	}
}
