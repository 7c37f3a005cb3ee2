// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
)

var sample = &pb.GatewaySnapshot{
	Datacenter: "dc1", Domain: "wanfed", Servers: []*pb.SnapshotServer{server("srv1", "10.0.0.1:8300")},
	Datacenters: []*pb.SnapshotDatacenter{datacenter("dc2", "198.51.100.2:8443")},
}

func TestSnapshotOnDisk(t *testing.T) {
	dir := t.TempDir()
	if snap, _, err := loadSnapshot(dir); snap != nil || err != nil {
		t.Fatalf("loadSnapshot() of an empty directory = %v, %v; want nil, nil", snap, err)
	}
	for _, want := range []*pb.GatewaySnapshot{sample, {Datacenter: "dc1"}, sample} {
		if err := saveSnapshot(dir, want); err != nil {
			t.Fatal(err)
		}
		if got, at, err := loadSnapshot(dir); err != nil || !proto.Equal(got, want) || time.Since(at) > waitLimit {
			t.Fatalf("loadSnapshot() = %v, %v, %v; want %v of now", got, at, err, want)
		}
	}
	path := filepath.Join(dir, snapshotFile)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("ReadDir() = %v, %v; want one file", entries, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("Stat() = %v, %v; want mode 0600", info, err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(whole) { // truncated after each byte, and with one bit of each byte flipped
		flipped := append([]byte(nil), whole...)
		flipped[n] ^= 1
		for _, b := range [][]byte{whole[:n], flipped} {
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			if snap, _, err := loadSnapshot(dir); err == nil || snap != nil || !strings.Contains(err.Error(), path) {
				t.Fatalf("loadSnapshot() of a file damaged at byte %d = %v, %v; want an error with the path",
					n, snap, err)
			}
		}
	}
}

func TestSaveSnapshotFails(t *testing.T) {
	if err := saveSnapshot(filepath.Join(t.TempDir(), "absent"), sample); err == nil {
		t.Error("saveSnapshot() in a directory that does not exist = nil, want an error")
	}
}

func FuzzParseSnapshot(f *testing.F) {
	f.Add([]byte(snapshotMagic))
	whole, err := encodeSnapshot(sample)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Fuzz(func(t *testing.T, b []byte) {
		snap, err := parseSnapshot(b)
		if err != nil {
			return
		}
		if s, _ := snapshotOf(snap); s != nil {
			if _, _, err := Tables(s, UpstreamOptions{}); err != nil {
				t.Errorf("Tables(%v) = %v, want nil", s, err)
			}
		}
	})
}
