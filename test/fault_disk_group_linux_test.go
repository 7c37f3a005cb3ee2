// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// TestFullDisk_OfTheLeader fills the disk of the leader of three servers.
// Another server becomes leader, and all three accept writes; the full one
// forwards them. When it has space, it receives what it lacks.
func TestFullDisk_OfTheLeader(t *testing.T) {
	t.Parallel()
	l := newLoopback(t)
	var all []*diskServer
	first := unusedPort(t)
	for _, node := range []string{"srv1", "srv2", "srv3"} {
		d := l.newDiskServer(t, node, func(c *subprocess.ServerConfig) {
			c.BootstrapExpect, c.RetryJoin = 3, []string{fmt.Sprintf("127.0.0.1:%d", first)}
			if len(all) == 0 {
				c.Port = first
			}
		})
		if node == "srv1" {
			smallDisk(t, d.data(), 100)
		}
		d.start()
		all = append(all, d)
	}
	full, other := all[0], all[1]
	full.awaitPut("a leader")
	op := l.ca.Files(t, tlsutil.RoleOperator, "op", "dc1")
	testutil.Await(t, waitLimit, "leadership of srv1", func(ctx context.Context) error {
		out, err := exec.CommandContext(ctx, l.bin, "operator", "raft", "transfer-leader", "srv1", "--datacenter",
			"dc1", "--server", full.server.Addr,
			"--ca-file", op.CA, "--cert-file", op.Cert, "--key-file", op.Key).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	refusal, took := full.fill()
	full.wantUnwritable(noSpace, refusal, took)
	t.Logf("%d values until the disk of srv1 is full; others write after %v", len(full.values),
		other.awaitPut("a write by another leader").Round(time.Millisecond))
	for range 20 { // a stall of this machine may change the leader
		other.awaitPut("a write at srv2")
	}
	full.awaitPut("a write at srv1, for another leader")
	other.check(full.values, "")
	if status, answer, took := full.request(http.MethodGet, "srv1-0", nil); status == http.StatusOK ||
		!strings.Contains(string(answer), noSpace) || took > soon {
		t.Errorf("strong read at srv1 = %d %.200s after %v, want a refusal (%s) within %v", status, answer, took,
			noSpace, soon)
	}
	if status, _, _ := full.request(http.MethodGet, fmt.Sprintf("srv2-%d?raw&stale", len(other.values)-1),
		nil); status != http.StatusNotFound {
		t.Errorf("read at srv1 of a value it cannot store = %d, want 404", status)
	}
	remount(t, full.data(), 0, "size=400m")
	t.Logf("srv1 is up to date %v after it had space",
		testutil.Await(t, waitLimit, "srv1 up to date", func(context.Context) error {
			for _, d := range []*diskServer{full, other} {
				last := fmt.Sprintf("%s-%d", d.config.Node, len(d.values)-1)
				if status, answer, _ := full.request(http.MethodGet, last+"?raw&stale", nil); status != http.StatusOK {
					return fmt.Errorf("%s at srv1: %d %s", last, status, answer)
				}
			}
			return nil
		}).Round(time.Millisecond))
	full.check(full.values, "&stale")
	full.check(other.values, "&stale")
	for _, d := range all[1:] { // the other servers restart
		d.server.Kill()
		d.start()
	}
	all[2].awaitPut("a write after two restarts")
	all[2].check(full.values, "")
}

// TestStart_UnwritableDirectory: a server whose data directory is not writable
// ends with status 1. The error names the directory, the cause and the remedy.
func TestStart_UnwritableDirectory(t *testing.T) {
	l := newLoopback(t)
	d := l.newDiskServer(t, "srv1", nil)
	smallDisk(t, d.data(), 150)
	d.start()
	d.awaitPut("a leader")
	if err := unix.Mount("tmpfs", d.data(), "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != syscall.EBUSY {
		t.Fatalf("a file system with open files could be made read-only under the server (%v): let this test do so",
			err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if err := d.server.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	remount(t, d.data(), unix.MS_RDONLY, "")
	d.wantNoStart("read-only file system")
	remount(t, d.data(), 0, "size=150m")
	d.start()
	d.awaitPut("a leader")
	d.check(d.values, "")

	empty := l.newDiskServer(t, "srv2", nil)
	smallDisk(t, empty.data(), 1)
	empty.wantNoStart(noSpace)
	remount(t, empty.data(), unix.MS_RDONLY, "")
	empty.wantNoStart("read-only file system")
}

// wantNoStart fails the test unless the start of the server fails with why.
func (d *diskServer) wantNoStart(why string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	s, err := subprocess.StartServer(ctx, d.config)
	if err == nil {
		s.Kill()
		d.t.Fatalf("start with an unwritable directory = nil, want an error: %s", why)
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	if text := err.Error(); !ok || exit.ExitCode() != 1 || !strings.Contains(text, d.data()) ||
		!strings.Contains(text, why) || !strings.Contains(text, "start the server again") {
		d.t.Errorf("start = %v, want status 1 with the directory, %q and the remedy", err, why)
	}
	d.t.Logf("start refused: %v", err)
}
