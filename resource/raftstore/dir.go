// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/wanfed/wanfed/internal/atomicfile"
	"github.com/wanfed/wanfed/internal/dirlock"
	"github.com/wanfed/wanfed/resource/raftstore/raftlog"
	"github.com/wanfed/wanfed/tlsutil"
)

// Files of a store's directory.
const (
	lockFile    = "lock"      // locked with flock by the process that uses the directory
	nodeFile    = "node"      // contains the node name and a newline; written first
	logDir      = "wal"       // directory of package raftlog
	snapshotDir = "snapshots" // directory of the Raft library
)

// Remedies that error messages end with.
const (
	removeDirRemedy = "remove the data dir, so that the server joins again, unless it is the only server of its datacenter and has all data"
	rejoinRemedy    = "restore the data dir from a backup, or " + removeDirRemedy
)

// lockDir creates the directory if necessary, locks the directory for this
// process, and checks that the directory belongs to node. Closing the returned
// file unlocks the directory.
func lockDir(dir, node string) (*os.File, error) {
	lock, err := dirlock.Lock(dir, lockFile)
	if errors.Is(err, dirlock.ErrInUse) {
		return nil, fmt.Errorf("data dir %s is in use by another process; "+
			"stop that one, or give another --data-dir", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("data dir %s: %w", dir, err)
	}
	if err := checkNode(dir, node); err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

// checkNode compares the name in the directory with node. In a new directory,
// checkNode writes the name.
func checkNode(dir, node string) error {
	path := filepath.Join(dir, nodeFile)
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := checkUnused(dir); err != nil {
			return err
		}
		if err := markJoining(dir, 0); err != nil { // before nodeFile, with which the directory is no longer new
			return fmt.Errorf("write %s of %s: %w", joiningFile, dir, err)
		}
		if err := atomicfile.WriteFile(path, []byte(node+"\n"), 0o600); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("data dir %s: %w", dir, err)
	}
	owner, ok := strings.CutSuffix(string(b), "\n")
	if !ok || tlsutil.CheckLabel(owner) != nil {
		return fmt.Errorf("file %s holds no node name; restore it from a backup, or give another --data-dir", path)
	}
	if owner != node {
		return fmt.Errorf("data dir %s belongs to node %q, not %q; give another --data-dir, or start with --node %s",
			dir, owner, node, owner)
	}
	return nil
}

// checkUnused rejects a directory that has a log or snapshots. The directory
// has no file with the node name.
func checkUnused(dir string) error {
	for _, name := range []string{logDir, snapshotDir} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return fmt.Errorf("data dir %s has %s and no file %s, which names its node; "+
				"restore that file, or give another --data-dir", dir, name, nodeFile)
		}
	}
	return nil
}

// removeTornSnapshots removes the temporary files that a killed process left.
func removeTornSnapshots(dir string) error {
	for _, pattern := range []string{filepath.Join(snapshotDir, "*.tmp"), spoolPattern} {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		for _, path := range paths {
			err = errors.Join(err, os.RemoveAll(path))
		}
		if err != nil {
			return fmt.Errorf("remove torn snapshot: %w", err)
		}
	}
	return nil
}

// remedy returns the remedy for a data directory of node that cannot be used.
func remedy(err error, node string) string {
	switch {
	case notWritable(err):
		return "nothing in it is lost: free space, or make it writable, and start the server again"
	case errors.Is(err, raftlog.ErrDamaged):
		return fmt.Sprintf("check the disk; if the datacenter has other servers, run on one of them: "+
			"wanfed operator raft remove-peer %s; then remove the data dir and start this server again, and it "+
			"joins them; "+
			"a server that is the only one starts empty, and needs the latest snapshot file: wanfed snapshot "+
			"restore FILE", node)
	}
	return rejoinRemedy
}

// notWritable reports whether err means that the data directory is intact but
// cannot be written.
func notWritable(err error) bool { return raftlog.IsTemporary(err) || errors.Is(err, fs.ErrPermission) }
