// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/internal/atomicfile"
	"github.com/wanfed/wanfed/resource"
)

// Files of the working directory. Names of tasks do not begin with a dot.
const (
	lockFile     = ".lock"     // locked with flock by the daemon
	identityFile = ".identity" // random text that makes the daemon the holder of its leases again after a restart
)

// openDir creates the working directory, locks it for this process, and returns
// its identity.
func openDir(dir string) (identity string, unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, fmt.Errorf("working directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", nil, fmt.Errorf("working directory %s: %w", dir, err)
	}
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
	switch err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return "", nil, fmt.Errorf("working directory %s is in use by another process: "+
			"stop that one, or set another working_dir", dir)
	case err != nil:
		return "", nil, fmt.Errorf("lock working directory %s: %w", dir, err)
	}
	path := filepath.Join(dir, identityFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(b) == 0 {
		b = []byte(resource.NewUID() + "\n")
		err = atomicfile.WriteFile(path, b, 0o600)
	}
	if err != nil {
		return "", nil, fmt.Errorf("identity of the daemon: %w", err)
	}
	return strings.TrimSpace(string(b)), func() { lock.Close() }, nil
}
