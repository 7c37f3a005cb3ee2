// SPDX-License-Identifier: MPL-2.0

package main

import (
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/subprocess"
)

// serviceManager is what processes that the test starts from now on tell their states. The function it returns waits for some, in any
// order, and fails the test if another one comes.
func serviceManager(t *testing.T) (told func(want ...string)) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { manager.Close() })
	manager.SetDeadline(time.Now().Add(refuseLimit))
	t.Setenv("NOTIFY_SOCKET", socket)
	return func(want ...string) {
		t.Helper()
		b := make([]byte, 256)
		for len(want) > 0 {
			n, err := manager.Read(b)
			first, _, _ := strings.Cut(string(b[:n]), "\n") // the time of a reload is another each time
			i := slices.Index(want, first)
			if err != nil || i < 0 {
				t.Fatalf("told %q, %v, want one of %q", b[:n], err, want)
			}
			want = slices.Delete(want, i, i+1)
		}
	}
}

func TestServerTellsTheServiceManager(t *testing.T) {
	told := serviceManager(t)
	c := newPEMFiles(t)
	s := startServerProcess(t, t.TempDir(), "srv1", c.files("srv1"), subprocess.ServerConfig{})
	told("READY=1")
	stopProcess(t, s.Process)
	told("STOPPING=1")
}
