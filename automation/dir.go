// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/wanfed/wanfed/internal/atomicfile"
	"github.com/wanfed/wanfed/internal/dirlock"
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
	lock, err := dirlock.Lock(dir, lockFile)
	if errors.Is(err, dirlock.ErrInUse) {
		return "", nil, fmt.Errorf("working directory %s is in use by another process: "+
			"stop that one, or set another working_dir", dir)
	}
	if err != nil {
		return "", nil, fmt.Errorf("working directory %s: %w", dir, err)
	}
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
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
