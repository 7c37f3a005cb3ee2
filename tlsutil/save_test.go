// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func TestSave(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem")
	p := KeyPair{Cert: []byte("cert"), Key: []byte("key")}
	if err := p.Save(cert, key); err != nil {
		t.Fatal(err)
	}
	checkFile(t, cert, "cert", 0o644)
	checkFile(t, key, "key", 0o600)
	if err := (KeyPair{Cert: []byte("x"), Key: []byte("x")}).Save(cert, key); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second Save() = %v, want ErrExist", err)
	}
	// If one file exists, Save does not create the other file.
	for _, tt := range [][2]string{{cert, filepath.Join(dir, "k2.pem")}, {filepath.Join(dir, "c2.pem"), key}} {
		if err := p.Save(tt[0], tt[1]); !errors.Is(err, fs.ErrExist) {
			t.Errorf("Save(%v) = %v, want ErrExist", tt, err)
		}
	}
	checkFile(t, cert, "cert", 0o644)
	checkFile(t, key, "key", 0o600)
	checkNames(t, dir, "c.pem", "k.pem")
	if err := p.Save(filepath.Join(dir, "gone", "c.pem"), filepath.Join(dir, "k3.pem")); err == nil ||
		errors.Is(err, fs.ErrExist) {
		t.Errorf("Save() to a missing directory = %v, want an error other than ErrExist", err)
	}
	checkNames(t, dir, "c.pem", "k.pem")
	// A dangling symbolic link counts as a file.
	if err := os.Symlink("nowhere", filepath.Join(dir, "k4.pem")); err != nil {
		t.Fatal(err)
	}
	if err := p.Save(filepath.Join(dir, "c4.pem"), filepath.Join(dir, "k4.pem")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Save() over a symbolic link = %v, want ErrExist", err)
	}
}

func TestCreateExclusive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := createExclusive(path, []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := createExclusive(path, []byte("b"), 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second createExclusive() = %v, want ErrExist", err)
	}
	checkFile(t, path, "a", 0o600)
}

// TestSaveNumbered_Concurrent checks that concurrent calls get consecutive
// numbers, and that a certificate and its key have one number.
func TestSaveNumbered_Concurrent(t *testing.T) {
	dir := t.TempDir()
	// The number of an incomplete pair must be skipped.
	if err := os.WriteFile(filepath.Join(dir, "p-3.pem"), []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	const n = 20
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			b := fmt.Append(nil, i)
			cert, key, err := KeyPair{Cert: b, Key: b}.SaveNumbered(filepath.Join(dir, "p"))
			if err != nil {
				t.Errorf("SaveNumbered() = %v, want nil", err)
				return
			}
			checkFile(t, cert, string(b), 0o644)
			checkFile(t, key, string(b), 0o600)
		})
	}
	wg.Wait()
	checkFile(t, filepath.Join(dir, "p-3.pem"), "other", 0o600)
	pairs := 0
	for i := range n + 1 {
		cert, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("p-%d.pem", i)))
		if err != nil {
			t.Errorf("ReadFile() of certificate %d = %v, want nil", i, err)
		}
		key, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("p-%d-key.pem", i)))
		if err == nil && string(cert) == string(key) {
			pairs++
		}
	}
	if pairs != n {
		t.Errorf("complete pairs in %d numbers = %d, want %d", n+1, pairs, n)
	}
	if tmp, err := filepath.Glob(filepath.Join(dir, ".wanfed-*")); err != nil || len(tmp) > 0 {
		t.Errorf("temporary files = %v, %v, want none", tmp, err)
	}
}

func checkFile(t *testing.T, path, want string, mode fs.FileMode) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil || string(b) != want {
		t.Errorf("ReadFile(%s) = %q, %v, want %q", path, b, err, want)
		return
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != mode {
		t.Errorf("mode of %s = %v, %v, want %v", path, st.Mode().Perm(), err, mode)
	}
}

func checkNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != len(want) {
		t.Errorf("directory has %v, %v, want %v", entries, err, want)
		return
	}
	for i, e := range entries {
		if e.Name() != want[i] {
			t.Errorf("directory has %v, want %v", entries, want)
		}
	}
}
