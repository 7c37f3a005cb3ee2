// SPDX-License-Identifier: MPL-2.0

package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
)

// buildData makes the data dir, or makes sure that it is this datacenter's: one that came with the image of a machine of
// another holds that one's records. Whether it is this node's, and not in use, the store tells.
func (p *parts) buildData() error {
	dir := p.cfg.DataDir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make data_dir: %w; give a --data-dir that this user may write", err)
	}
	dc, err := lineOf(filepath.Join(dir, "datacenter"), func() string { return p.cfg.DC })
	if err != nil {
		return err
	}
	if dc != p.cfg.DC {
		return fmt.Errorf("data dir %s belongs to datacenter %q, not %q; give another --data-dir, or empty this one", dir, dc, p.cfg.DC)
	}
	if p.nodeID, err = lineOf(filepath.Join(dir, "node-id"), uuid.NewString); err != nil {
		return err
	}
	return p.buildKeys()
}

// lineOf returns the line that a file holds. Where there is no file, it gets the line that first makes, whole or not at all.
func lineOf(file string, first func() string) (string, error) {
	b, err := os.ReadFile(file)
	if line := strings.TrimSpace(string(b)); err == nil && line != "" {
		return line, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read %s of the data dir: %w", filepath.Base(file), err)
	}
	line := first()
	tmp := file + ".tmp"
	err = os.WriteFile(tmp, []byte(line+"\n"), 0o600)
	if err == nil {
		err = os.Rename(tmp, file)
	}
	if err != nil {
		return "", fmt.Errorf("write %s of the data dir: %w; give a --data-dir that this user may write", filepath.Base(file), errors.Join(err, os.RemoveAll(tmp)))
	}
	return line, nil
}
