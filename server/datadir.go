// SPDX-License-Identifier: MPL-2.0

package server

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/atomicfile"
)

// raftDir is the directory of the store in the data directory.
const raftDir = "raft"

// dataDir has the identity of a data directory and of its process.
type dataDir struct {
	nodeID           string // a UUID that does not change
	instance         string // a UUID of this process
	previousInstance string // the instance of the previous process, or ""
}

// openDataDir creates the data directory, or checks that it belongs to
// datacenter dc. A directory that was copied with a machine image may contain
// the resources of another datacenter. The store checks that the directory
// belongs to this node and is not in use.
func openDataDir(dir, dc string) (d dataDir, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return d, fmt.Errorf("create data_dir: %w; choose a --data-dir that this user may write", err)
	}
	owner, err := readOrWriteLine(filepath.Join(dir, "datacenter"), func() string { return dc })
	if err != nil {
		return d, err
	}
	if owner != dc {
		return d, fmt.Errorf("data directory %s belongs to datacenter %q, not %q; choose another --data-dir, or "+
			"empty this one",
			dir, owner, dc)
	}
	if d.nodeID, err = readOrWriteLine(filepath.Join(dir, "node-id"), uuid.NewString); err != nil {
		return d, err
	}
	d.instance = uuid.NewString()
	d.previousInstance, err = replaceLine(filepath.Join(dir, "instance"), d.instance)
	return d, err
}

// replaceLine writes a line to a file and returns the previous line, or "".
func replaceLine(file, line string) (previous string, err error) {
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read %s of the data directory: %w", filepath.Base(file), err)
	}
	return strings.TrimSpace(string(b)), writeLine(file, line)
}

func writeLine(file, line string) error {
	if err := atomicfile.WriteFile(file, []byte(line+"\n"), 0o600); err != nil {
		return fmt.Errorf("write %s of the data directory: %w; free space, or make it writable for this user, and "+
			"start the server again",
			filepath.Base(file), err)
	}
	return nil
}

// readOrWriteLine returns the line in a file. If the file does not exist or is
// empty, readOrWriteLine writes initial() to the file first.
func readOrWriteLine(file string, initial func() string) (string, error) {
	b, err := os.ReadFile(file)
	if line := strings.TrimSpace(string(b)); err == nil && line != "" {
		return line, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read %s of the data directory: %w", filepath.Base(file), err)
	}
	line := initial()
	return line, writeLine(file, line)
}

// openKeyring opens the keyring of the data directory. Without a keyring,
// openKeyring creates one with the key of cfg.EncryptFile. It returns nil if
// there is neither a keyring nor a key file.
func openKeyring(cfg Config, logger *slog.Logger) (*gossip.KeyringStore, error) {
	store := gossip.KeyringStoreConfig{Path: filepath.Join(cfg.DataDir, "keyring.json"), Logger: logger}
	if cfg.EncryptFile != "" {
		key, err := gossip.ReadKeyFile(cfg.EncryptFile, logger)
		if err != nil {
			return nil, err
		}
		store.InitialKey = &key
	}
	return gossip.OpenKeyringStore(store)
}
