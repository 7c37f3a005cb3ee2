// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// diskServer is a server with its own disk, and the values that it
// acknowledged.
type diskServer struct {
	*loopback
	config subprocess.ServerConfig
	server *subprocess.Server
	client *http.Client
	random *rand.ChaCha8
	values map[string][]byte
}

// valueSize is the size of each written value: a log file of 64 MiB is full
// after about a hundred.
const valueSize = 500 << 10

// soon bounds the time until a write to a full disk is refused. It is far
// shorter than the 7 s that a write waits for a leader.
const soon = 5 * time.Second

// newDiskServer returns a server of dc1 that is not started. change may change
// its configuration.
func (l *loopback) newDiskServer(t *testing.T, node string, change func(*subprocess.ServerConfig)) *diskServer {
	t.Helper()
	d := &diskServer{loopback: l, random: rand.NewChaCha8([32]byte{1}), values: map[string][]byte{}}
	d.config = subprocess.ServerConfig{
		Program: []string{l.bin}, Dir: filepath.Join(l.dir, node), DC: "dc1", Node: node,
		TLS: l.ca.Files(t, tlsutil.RoleServer, node, "dc1"), LogLevel: "info",
	}
	if change != nil {
		change(&d.config)
	}
	d.client = &http.Client{Transport: &http.Transport{
		TLSClientConfig: l.client(t, tlsutil.RoleOperator, "op", "dc1", "server.dc1.wanfed"),
	}}
	return d
}

// data returns the data directory.
func (d *diskServer) data() string { return filepath.Join(d.config.Dir, "data") }

func (d *diskServer) start() {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	var err error
	if d.server, err = subprocess.StartServer(ctx, d.config); err != nil {
		d.t.Fatal(err)
	}
	d.keep(d.server.Process)
	d.client.CloseIdleConnections()
}

// smallDisk mounts a file system of mib MiB on dir. It skips the test without
// root.
func smallDisk(t *testing.T, dir string, mib int) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a file system")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mib)); err != nil {
		t.Skipf("cannot mount a file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil { // detach: the server may still have files open
			t.Errorf("unmount: %v", err)
		}
	})
}

func remount(t *testing.T, dir string, flags uintptr, options string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT|flags, options); err != nil {
		t.Fatalf("remount: %v", err)
	}
}

// request sends one request to /v1/kv with a deadline.
func (d *diskServer) request(method, path string, body []byte) (status int, answer []byte, took time.Duration) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method,
		strings.Replace(d.server.HTTP, "http:", "https:", 1)+"/v1/kv/"+path, bytes.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	start := time.Now()
	resp, err := d.client.Do(req)
	if err != nil {
		d.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, answer, time.Since(start)
}

// put writes one more value and records it if it is acknowledged. Otherwise it
// returns the response and how long it took.
func (d *diskServer) put() (refusal string, took time.Duration) {
	d.t.Helper()
	name, value := fmt.Sprintf("%s-%d", d.config.Node, len(d.values)), make([]byte, valueSize)
	_, _ = d.random.Read(value) // never fails
	status, answer, took := d.request(http.MethodPut, name, value)
	if status != http.StatusOK || string(bytes.TrimSpace(answer)) != "true" {
		return fmt.Sprintf("%d %s", status, answer), took
	}
	d.values[name] = value
	return "", took
}

// fill writes until a write is refused because of the disk, and returns the
// response. It repeats writes that fail for another reason, such as an
// election.
func (d *diskServer) fill() (refusal string, took time.Duration) {
	d.t.Helper()
	for range 1000 {
		if refusal, took = d.put(); strings.Contains(refusal, "free disk space") {
			return refusal, took
		}
	}
	d.t.Fatalf("disk not full after 1000 writes, last response %q", refusal)
	return "", 0
}

// awaitPut waits until a write is acknowledged.
func (d *diskServer) awaitPut(what string) time.Duration {
	d.t.Helper()
	return testutil.Await(d.t, waitLimit, what, func(context.Context) error {
		if refusal, _ := d.put(); refusal != "" {
			return errors.New(refusal)
		}
		return nil
	})
}

// check fails the test unless all acknowledged values can be read.
func (d *diskServer) check(values map[string][]byte, query string) {
	d.t.Helper()
	for name, value := range values {
		if status, answer, _ := d.request(http.MethodGet, name+"?raw"+query, nil); status != http.StatusOK ||
			!bytes.Equal(answer, value) {
			d.t.Errorf("%s at %s = %d, %d bytes %.200q, want the %d acknowledged bytes", name, d.config.Node, status,
				len(answer), answer, len(value))
		}
	}
}

const noSpace = "no space left on device"

// wantUnwritable checks what a server reports while its disk is not writable:
// the refusal of a write, its metric, its status and its log.
func (d *diskServer) wantUnwritable(why, refusal string, took time.Duration) {
	d.t.Helper()
	if !strings.Contains(refusal, why) || !strings.Contains(refusal, d.data()) ||
		!strings.Contains(refusal, "free disk space") || took > soon {
		d.t.Errorf("write = %s after %v, want %q, the directory and the remedy within %v", refusal, took, why, soon)
	}
	select {
	case <-d.server.Done():
		d.t.Fatalf("the server ended: %v", d.server.Err())
	default:
	}
	if v := metric(d.t, d.server.HTTP, "wanfed_log_writable"); v != 0 {
		d.t.Errorf("wanfed_log_writable = %v, want 0", v)
	}
	out, err := exec.Command(d.bin, "status", "--output", "wide", "--http-addr", d.server.HTTP).CombinedOutput()
	if text := string(out); err != nil || !strings.Contains(text, "cannot be written") || !strings.Contains(text, why) {
		d.t.Errorf("wanfed status --output wide = %v, want the reason %q:\n%s", err, why, text)
	}
	logOf(d.server.Process).await(d.t, "cannot write raft log.*"+why)
}

// TestFullDisk_OfALoneServer: a server with a full disk refuses writes at once,
// with the reason, and serves reads. It accepts writes again when there is
// space, without a restart. It keeps all acknowledged values, also after
// SIGKILL and a start on the full disk.
func TestFullDisk_OfALoneServer(t *testing.T) {
	t.Parallel()
	l := newLoopback(t)
	d := l.newDiskServer(t, "srv1", nil)
	smallDisk(t, d.data(), 100)
	d.start()
	d.awaitPut("a leader")
	refusal, took := d.fill()
	t.Logf("after %d values of %d KiB, in %v: %s", len(d.values), valueSize>>10, took.Round(time.Millisecond), refusal)
	d.wantUnwritable(noSpace, refusal, took)
	before := rssOf(t, &site{server: d.server})
	tries := 0
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); tries++ { // as leader, and without a leader
		if refusal, took = d.put(); !strings.Contains(refusal, noSpace) || took > soon {
			t.Fatalf("write = %s after %v, want %q within %v", refusal, took, noSpace, soon)
		}
	}
	d.wantUnwritable(noSpace, refusal, took)
	d.check(d.values, "&stale")
	after := rssOf(t, &site{server: d.server})
	t.Logf("memory: %d MiB when it was full, %d MiB after %d more writes in 2 s", before>>20, after>>20, tries)
	if after > 2*before {
		t.Errorf("memory grew from %d to %d MiB by refused writes, want at most twice as much", before>>20, after>>20)
	}
	if status, answer, took := d.request(http.MethodGet, "srv1-0", nil); status == http.StatusOK ||
		!strings.Contains(string(answer), noSpace) || took > soon {
		t.Errorf("strong read on a full disk = %d %s after %v, want a refusal (%s) within %v", status, answer, took,
			noSpace, soon)
	}

	remount(t, d.data(), 0, "size=190m")
	t.Logf("writes accepted %v after there was space",
		d.awaitPut("a write after there was space").Round(time.Millisecond))
	logOf(d.server.Process).await(t, `raft log writable again`)
	if v := metric(t, d.server.HTTP, "wanfed_log_writable"); v != 1 {
		t.Errorf("wanfed_log_writable = %v, want 1", v)
	}
	d.check(d.values, "")
	refusal, took = d.fill()
	d.wantUnwritable(noSpace, refusal, took)
	d.server.Kill()

	d.start()
	testutil.Await(t, waitLimit, "a refusal for the full disk by the new process", func(context.Context) error {
		refusal, took = d.put()
		if !strings.Contains(refusal, noSpace) {
			return errors.New(refusal)
		}
		return nil
	})
	d.wantUnwritable(noSpace, refusal, took)
	last := fmt.Sprintf("%s-%d", d.config.Node, len(d.values)-1)
	testutil.Await(t, waitLimit, "stale reads on the full disk", func(context.Context) error {
		if status, answer, _ := d.request(http.MethodGet, last+"?raw&stale", nil); status != http.StatusOK {
			return fmt.Errorf("%d %.200q", status, answer)
		}
		return nil
	})
	d.check(d.values, "&stale")
	remount(t, d.data(), 0, "size=400m")
	d.awaitPut("a write after there was space again")
	d.check(d.values, "")
	t.Logf("%d values acknowledged, none lost", len(d.values))
}
