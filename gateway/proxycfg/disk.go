// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
)

// The file is: magic, SHA-256 of the rest, the snapshot as protobuf.
const (
	snapshotFile  = "snapshot"
	snapshotMagic = "wanfed gateway snapshot 1\n"
)

// saveSnapshot replaces the file in one step: a crash leaves the old one or the new one.
func saveSnapshot(dir string, snap *pb.GatewaySnapshot) error {
	// The name is always the same, so that a crash leaves one such file at most. One process uses the folder;
	// two that wrote the same snapshot at once, while one hands over to the other, could leave one that is not used.
	tmp := filepath.Join(dir, snapshotFile+".new")
	b, err := encodeSnapshot(snap)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(tmp, filepath.Join(dir, snapshotFile)); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func encodeSnapshot(snap *pb.GatewaySnapshot) ([]byte, error) {
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(snap)
	if err != nil {
		return nil, fmt.Errorf("encode snapshot: %w", err)
	}
	sum := sha256.Sum256(body)
	return bytes.Join([][]byte{[]byte(snapshotMagic), sum[:], body}, nil), nil
}

// loadSnapshot reads the file. It returns nil without an error when there is none.
func loadSnapshot(dir string) (*pb.GatewaySnapshot, error) {
	path := filepath.Join(dir, snapshotFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	snap, err := parseSnapshot(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return snap, nil
}

func parseSnapshot(b []byte) (*pb.GatewaySnapshot, error) {
	rest, ok := bytes.CutPrefix(b, []byte(snapshotMagic))
	if !ok || len(rest) < sha256.Size {
		return nil, errors.New("is no snapshot of a gateway")
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
