// SPDX-License-Identifier: MPL-2.0

package atomicfile

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWriteFile_ReplacesContentsAndMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatalf("WriteFile(old) = %v, want nil", err)
	}
	if err := os.WriteFile(path+suffix, []byte("left by a crash, and longer"), 0o644); err != nil {
		t.Fatalf("WriteFile(temporary) = %v, want nil", err)
	}
	if err := WriteFile(path, []byte("new"), 0o600); err != nil {
		t.Fatalf("WriteFile() = %v, want nil", err)
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != "new" {
		t.Errorf("ReadFile() = %q, %v, want %q", got, err, "new")
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode = %v, %v, want 0600", info.Mode().Perm(), err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("directory has %d files, want 1", len(entries))
	}
}

func TestWriteFile_FailedRenameKeepsTarget(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir")
	if err := os.MkdirAll(filepath.Join(path, "entry"), 0o700); err != nil {
		t.Fatalf("MkdirAll() = %v, want nil", err)
	}
	if err := WriteFile(path, []byte("new"), 0o600); err == nil {
		t.Fatal("WriteFile() onto a directory = nil, want an error")
	}
	if _, err := os.Stat(path + suffix); !os.IsNotExist(err) {
		t.Errorf("Stat(temporary file) = %v, want not exist", err)
	}
}
