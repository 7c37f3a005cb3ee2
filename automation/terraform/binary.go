// SPDX-License-Identifier: MPL-2.0

package terraform

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/hashicorp/go-version"

	"github.com/wanfed/wanfed/automation/process"
)

var (
	oldest       = version.Must(version.NewVersion("0.13.0"))
	hasSensitive = version.Must(version.NewVersion("0.14.0")) // variables
	hasJSON      = version.Must(version.NewVersion("1.0.0"))  // output of plan, apply and destroy
)

// binary is an executable of Terraform or OpenTofu.
type binary struct {
	path    string
	name    string // "Terraform" or "OpenTofu"
	version *version.Version
}

func (b *binary) has(v *version.Version) bool { return b.version.Core().GreaterThanOrEqual(v) }

// binaries caches the versions of executables. It is safe for concurrent use.
type binaries struct {
	mu    sync.Mutex
	known map[binaryFile]func() (*binary, error)
}

// binaryFile identifies an executable. Another version has another size or time.
type binaryFile struct {
	path string
	size int64
	time time.Time
}

// find returns the executable at path: a file, a directory, or empty for PATH.
func (c *binaries) find(ctx context.Context, path string) (*binary, error) {
	file, err := locate(path)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	get, ok := c.known[file]
	if !ok {
		get = sync.OnceValues(func() (*binary, error) { return readVersion(context.WithoutCancel(ctx), file.path) })
		if c.known == nil {
			c.known = make(map[binaryFile]func() (*binary, error))
		}
		c.known[file] = get
	}
	c.mu.Unlock()
	b, err := get()
	if err != nil {
		c.mu.Lock()
		delete(c.known, file)
		c.mu.Unlock()
		return nil, err
	}
	return b, nil
}

func locate(path string) (binaryFile, error) {
	var err error
	if info, statErr := os.Stat(path); path == "" || statErr == nil && info.IsDir() {
		for _, name := range []string{"terraform", "tofu"} {
			var found string
			if found, err = lookPath(path, name); err == nil {
				path = found
				break
			}
		}
	}
	if err != nil {
		return binaryFile{}, fmt.Errorf("no terraform or tofu in %s: install one of them, or set the path of the driver",
			cmp.Or(path, "PATH"))
	}
	path, err = filepath.Abs(path)
	if err != nil {
		return binaryFile{}, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return binaryFile{}, fmt.Errorf("find Terraform: %w", err)
	}
	return binaryFile{path, info.Size(), info.ModTime()}, nil
}

// lookPath finds a program in a directory, or in PATH.
func lookPath(dir, name string) (string, error) {
	if dir != "" {
		name = filepath.Join(dir, name)
	}
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrDot) {
		err = nil
	}
	return path, err
}

var versionLine = regexp.MustCompile(`(?m)^(Terraform|OpenTofu) v(\S+)`)

// readVersion runs "terraform version".
func readVersion(ctx context.Context, path string) (*binary, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "version")
	cmd.Dir, cmd.Env = os.TempDir(), process.Environ(ofTerraform, fixed)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s version: %w: %s", path, err, process.LastLine(out))
	}
	m := versionLine.FindSubmatch(out)
	if m == nil {
		return nil, fmt.Errorf("%s version: unexpected output %q", path, process.LastLine(out))
	}
	v, err := version.NewVersion(string(m[2]))
	if err != nil {
		return nil, fmt.Errorf("%s version: %w", path, err)
	}
	b := &binary{path, string(m[1]), v}
	if !b.has(oldest) {
		return nil, fmt.Errorf("%s has version %s: install version %s or newer", path, v, oldest)
	}
	return b, nil
}
