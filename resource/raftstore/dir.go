// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/tlsutil"
)

// What stands in a store's directory.
const (
	lockFile    = "lock"      // held with flock by the process that uses the directory
	nodeFile    = "node"      // the node's name and a newline; written before anything else
	logDir      = "wal"       // raft-wal's
	snapshotDir = "snapshots" // the Raft library's
)

// lockDir makes the directory if it is absent, claims it for this process, and makes sure that it is node's. Closing the file
// gives it up.
func lockDir(dir, node string) (_ *os.File, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data dir: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data dir %s: %w", dir, err)
	}
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
	switch err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, fmt.Errorf("data dir %s is in use by another process; stop that one, or give another --data-dir", dir)
	case err != nil:
		return nil, fmt.Errorf("lock data dir %s: %w", dir, err)
	}
	return lock, claim(dir, node)
}

// claim compares the name in the directory with node, or writes it into a new directory.
func claim(dir, node string) error {
	path := filepath.Join(dir, nodeFile)
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := checkUnused(dir); err != nil {
			return err
		}
		return writeFile(path, node+"\n")
	case err != nil:
		return fmt.Errorf("data dir %s: %w", dir, err)
	}
	owner, ok := strings.CutSuffix(string(b), "\n")
	if !ok || tlsutil.CheckLabel(owner) != nil {
		return fmt.Errorf("file %s holds no node name; restore it from a backup, or give another --data-dir", path)
	}
	if owner != node {
		return fmt.Errorf("data dir %s belongs to node %q, not %q; give another --data-dir, or start with --node %s", dir, owner, node, owner)
	}
	return nil
}

// checkUnused refuses a directory that has a log but does not say whose.
func checkUnused(dir string) error {
	for _, name := range []string{logDir, snapshotDir} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return fmt.Errorf("data dir %s has %s but no file %s that says of which node it is; restore that file, or give another --data-dir", dir, name, nodeFile)
		}
	}
	return nil
}

// writeFile makes a file appear whole, or not at all, and stay.
func writeFile(path, content string) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = tmp.WriteString(content)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		os.Remove(tmp.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// removeTorn removes what a process that was killed left of snapshots it was writing.
func removeTorn(dir string) error {
	torn, err := filepath.Glob(filepath.Join(dir, snapshotDir, "*.tmp"))
	if err != nil {
		return err
	}
	for _, path := range torn {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove torn snapshot: %w", err)
		}
	}
	return nil
}

// remedy is what to do about a data dir that cannot be opened.
func remedy(err error) string {
	if unusable(err) {
		return "nothing in it is lost: make room, or make it writable, and start the server again"
	}
	return "restore it from a backup, or remove it so that the server joins anew"
}

// unusable says whether err is of a data dir that is as it should be, but cannot be written.
func unusable(err error) bool { return curable(err) || errors.Is(err, fs.ErrPermission) }
