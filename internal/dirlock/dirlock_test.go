// SPDX-License-Identifier: MPL-2.0

package dirlock

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	lock, err := Lock(dir, "lock")
	if err != nil {
		t.Fatalf("Lock() = %v, want nil", err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode of the directory = %v, %v, want 0700", info, err)
	}
	if _, err := Lock(dir, "lock"); !errors.Is(err, ErrInUse) {
		t.Errorf("Lock() of a locked directory = %v, want ErrInUse", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if lock, err = Lock(dir, "lock"); err != nil {
		t.Fatalf("Lock() after Close = %v, want nil", err)
	}
	lock.Close()
	file := filepath.Join(dir, "lock")
	if _, err := Lock(file, "lock"); err == nil || errors.Is(err, ErrInUse) {
		t.Errorf("Lock(file) = %v, want another error", err)
	}
}
