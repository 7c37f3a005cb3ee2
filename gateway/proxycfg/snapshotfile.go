// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/atomicfile"
)

// The file in Config.DataDir has snapshotMagic, the SHA-256 of the rest, and
// the snapshot as protobuf.
const (
	snapshotFile  = "snapshot"
	snapshotMagic = "wanfed gateway snapshot 1\n"
)

// saveSnapshot replaces the file atomically.
func saveSnapshot(dir string, snap *pb.GatewaySnapshot) error {
	b, err := encodeSnapshot(snap)
	if err != nil {
		return err
	}
	return atomicfile.WriteFile(filepath.Join(dir, snapshotFile), b, 0o600)
}

func encodeSnapshot(snap *pb.GatewaySnapshot) ([]byte, error) {
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(snap)
	if err != nil {
		return nil, fmt.Errorf("encode snapshot: %w", err)
	}
	sum := sha256.Sum256(body)
	return bytes.Join([][]byte{[]byte(snapshotMagic), sum[:], body}, nil), nil
}

// loadSnapshot reads the file. at is the time at which it was written. Without a
// file it returns nil and no error.
func loadSnapshot(dir string) (snap *pb.GatewaySnapshot, at time.Time, err error) {
	path := filepath.Join(dir, snapshotFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, at, nil
	}
	if err != nil {
		return nil, at, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, at, err
	}
	if snap, err = parseSnapshot(b); err != nil {
		return nil, at, fmt.Errorf("%s %w", path, err)
	}
	return snap, info.ModTime(), nil
}

func parseSnapshot(b []byte) (*pb.GatewaySnapshot, error) {
	rest, ok := bytes.CutPrefix(b, []byte(snapshotMagic))
	if !ok || len(rest) < sha256.Size {
		return nil, errors.New("is not a snapshot of a gateway")
	}
	sum, body := rest[:sha256.Size], rest[sha256.Size:]
	if got := sha256.Sum256(body); !bytes.Equal(got[:], sum) {
		return nil, errors.New("is damaged: its checksum does not match")
	}
	snap := &pb.GatewaySnapshot{}
	if err := proto.Unmarshal(body, snap); err != nil {
		return nil, fmt.Errorf("cannot be decoded: %w", err)
	}
	return snap, nil
}
