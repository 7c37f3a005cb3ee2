// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// smallDisk mounts a file system of size bytes and returns its directory. It
// skips the test if the mount fails.
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

// TestOpen_ReadOnlyDir checks that Open fails if the directory cannot be
// written, that the error names the directory, and that no data are lost.
func TestOpen_ReadOnlyDir(t *testing.T) {
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
		t.Fatal("Open() of a read-only directory = nil, want an error")
	}
	if text := err.Error(); !strings.Contains(text, dir) || !strings.Contains(text, "read-only file system") ||
		!strings.Contains(text, "make it writable, and start the server again") {
		t.Errorf("Open() = %v, want an error with directory, cause and remedy", err)
	}
	remount(t, dir, 0, "size=16m")
	s = mustOpen(t, nw.config(t, "a", dir))
	defer s.Close() // before the disk is unmounted
	awaitLeader(t, s)
	if got := textOf(t, s, resource.Strong, "x"); got != "1" {
		t.Errorf("x = %q, want 1", got)
	}
}

// TestCommit_LargeResources checks that a store writes and replaces resources
// of 1 MiB, and reads them after a restart.
func TestCommit_LargeResources(t *testing.T) {
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
		put(t, s, "large", text)
	}
	var ops []*pb.Op
	for n := range 33 {
		ops = append(ops, resource.PutOp(thing(t, fmt.Sprintf("n%d", n), text), ""))
	}
	if _, err := s.Commit(t.Context(), ops...); !errors.Is(err, resource.ErrInvalid) ||
		!strings.Contains(err.Error(), "commit them in several") {
		t.Errorf("Commit() of 33 MiB = %v, want ErrInvalid with a remedy", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, nw.config(t, "a", cfg.Dir))
	awaitLeader(t, s)
	if got := textOf(t, s, resource.Strong, "large"); got != text {
		t.Errorf("large = %d bytes, want the %d bytes written", len(got), len(text))
	}
}
