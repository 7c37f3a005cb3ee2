// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/internal/testutil"
)

// loopDisk is a file system on its own block device. It becomes read-only on an
// error, as most file systems are configured to.
type loopDisk struct {
	t      *testing.T
	device string
	dir    string
}

func newLoopDisk(t *testing.T, dir string) *loopDisk {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a file system")
	}
	for _, tool := range []string{"losetup", "mkfs.ext4", "e2fsck"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs the %s command", tool)
		}
	}
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 200<<20); err != nil {
		t.Fatal(err)
	}
	d := &loopDisk{t: t, dir: dir}
	out, err := exec.Command("losetup", "--find", "--show", image).CombinedOutput()
	if err != nil {
		t.Skipf("needs a loop device: %s", out)
	}
	d.device = strings.TrimSpace(string(out))
	t.Cleanup(func() { d.run("losetup", "--detach", d.device) })
	d.run("mkfs.ext4", "-q", d.device)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	d.mount()
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return d
}

func (d *loopDisk) run(name string, args ...string) {
	d.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		d.t.Errorf("%s %v: %v: %s", name, args, err, out)
	}
}

func (d *loopDisk) mount() {
	d.t.Helper()
	if err := unix.Mount(d.device, d.dir, "ext4", 0, "errors=remount-ro"); err != nil {
		d.t.Skipf("cannot mount %s: %v", d.device, err)
	}
}

// fail triggers an error in the file system.
func (d *loopDisk) fail() {
	d.t.Helper()
	trigger := filepath.Join("/sys/fs/ext4", filepath.Base(d.device), "trigger_fs_error")
	if err := os.WriteFile(trigger, []byte("wanfed test"), 0); err != nil {
		d.t.Skipf("needs a kernel that can trigger a file system error: %v", err)
	}
}

// TestReadOnlyDisk: the file system of a running server becomes read-only. The
// server refuses writes with the directory and the reason, and serves reads.
// After a file system check and a restart it has all acknowledged values.
func TestReadOnlyDisk(t *testing.T) {
	t.Parallel()
	l := newLoopback(t)
	d := l.newDiskServer(t, "srv1", nil)
	disk := newLoopDisk(t, d.data())
	d.start()
	d.awaitPut("a leader")
	for range 20 {
		if refusal, _ := d.put(); refusal != "" {
			t.Fatal(refusal)
		}
	}
	disk.fail()
	refuses := func() {
		t.Helper()
		refusal, took := d.put()
		d.wantUnwritable("read-only file system", refusal, took)
	}
	refuses() // as leader
	testutil.Eventually(t, waitLimit, func() bool { return metric(t, d.server.HTTP, "wanfed_leader") == 0 },
		"srv1 leads no longer")
	refuses() // without a leader
	d.check(d.values, "&stale")

	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if err := d.server.Stop(ctx); err != nil {
		t.Errorf("Stop() = %v, want nil", err)
	}
	d.wantNoStart("read-only file system")
	if err := unix.Unmount(d.data(), 0); err != nil {
		t.Fatal(err)
	}
	// another namespace may use it for a moment
	testutil.Await(t, waitLimit, "a clean file system", func(ctx context.Context) error {
		out, err := exec.CommandContext(ctx, "e2fsck", "-p", disk.device).CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 1 { // errors were corrected
			return nil
		} else if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	disk.mount()
	d.start()
	d.awaitPut("a leader")
	d.check(d.values, "")
}
