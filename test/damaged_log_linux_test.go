// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/internal/subprocess"
)

// TestDamagedLog kills the only server of a datacenter and damages its log. The
// server must end with status 1 and a message that names the entry, the file
// and the remedy. With the intact log it must start again with all writes.
func TestDamagedLog(t *testing.T) {
	t.Parallel()
	const keys = 42
	for name, test := range map[string]struct {
		damage func(b []byte) []byte
		want   string
	}{
		"changed byte": {
			func(b []byte) []byte { b[bytes.Index(b, []byte("value-7."))] ^= 0x20; return b }, "its checksum differs",
		},
		"200 zero bytes": {
			func(b []byte) []byte { clear(b[bytes.Index(b, []byte("value-1."))-150:][:200]); return b }, "was stored",
		},
		"truncated": {
			func(b []byte) []byte { return b[:bytes.Index(b, []byte("value-40."))] }, "was stored",
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newLoopback(t).newDiskServer(t, "srv1", nil)
			d.start()
			for i := range keys {
				key := fmt.Sprintf("key%d", i)
				d.values[key] = fmt.Appendf(nil, "value-%d.", i)
				if status, answer, _ := d.request(http.MethodPut, key, d.values[key]); status != http.StatusOK {
					t.Fatalf("PUT %s = %d %s, want 200", key, status, answer)
				}
			}
			d.server.Kill()
			path := filepath.Join(d.data(), "raft", "wal", "00000000000000000001-0000000000000000.wal")
			intact, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			writeFile(t, path, test.damage(bytes.Clone(intact)))
			d.startRefused("exit status 1", test.want, "log entry", "/raft/wal", "remove-peer srv1",
				"wanfed snapshot restore")
			writeFile(t, path, intact)
			d.start()
			d.check(d.values, "&consistent")
		})
	}
}

func writeFile(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// startRefused checks that the server ends during its start, and that the error
// contains each text of want.
func (d *diskServer) startRefused(want ...string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	s, err := subprocess.StartServer(ctx, d.config)
	if err == nil {
		s.Kill()
		d.t.Fatalf("StartServer() = nil, want an error with %q", want)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			d.t.Errorf("StartServer() = %v, want an error with %q", err, w)
		}
	}
}
