// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

func openStore(t testing.TB, path string, initial *Key) *KeyringStore {
	t.Helper()
	cfg := KeyringStoreConfig{Path: path, InitialKey: initial, Logger: slog.New(slog.DiscardHandler)}
	s, err := OpenKeyringStore(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// checkLive checks that memberlist uses exactly the keys in want, the first one
// as the primary key.
func checkLive(t *testing.T, s *KeyringStore, want ...Key) {
	t.Helper()
	live := s.live.GetKeys()
	if len(live) != len(want) || !bytes.Equal(live[0], want[0].b[:]) {
		t.Fatalf("GetKeys() = %d keys, want %d with %s as the primary", len(live), len(want), want[0])
	}
	for _, key := range want {
		if !slices.ContainsFunc(live, func(b []byte) bool { return bytes.Equal(b, key.b[:]) }) {
			t.Fatalf("GetKeys() lacks key %s", key)
		}
	}
}

func TestKeyringStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keyring.json")
	if s := openStore(t, path, nil); s != nil {
		t.Fatal("OpenKeyringStore() without a key and a file = a store, want nil")
	}
	a, b, c := NewKey(), NewKey(), NewKey()
	s := openStore(t, path, &a)
	changed := s.Changed()
	for _, f := range []func(Keyring) (Keyring, error){
		func(r Keyring) (Keyring, error) { return r.Add(b) },
		func(r Keyring) (Keyring, error) { return r.Add(c) },
		func(r Keyring) (Keyring, error) { return r.Use(c) },
		func(r Keyring) (Keyring, error) { return r.Remove(a) }, // not the last key
	} {
		if _, err := s.Update(f); err != nil {
			t.Fatal(err)
		}
	}
	<-changed
	checkLive(t, s, c, b)
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode of the file = %v, %v, want 0600", st.Mode(), err)
	}

	t.Run("reopened", func(t *testing.T) {
		var log strings.Builder
		cfg := KeyringStoreConfig{Path: path, InitialKey: &a, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		s, err := OpenKeyringStore(cfg)
		if err != nil {
			t.Fatal(err)
		}
		checkLive(t, s, c, b)
		if r := s.Current(); r.Version != 4 || r.Primary() != c {
			t.Errorf("Current() = %v, want version 4 with primary %s", r, c)
		}
		text := log.String()
		if !strings.Contains(text, "is not the primary") || !strings.Contains(text, "configured="+a.Fingerprint()) ||
			strings.Contains(text, a.Base64()) {
			t.Errorf("log = %s, want the fingerprint of the configured key", text)
		}
	})
	t.Run("reopened without a configured key", func(t *testing.T) {
		if openStore(t, path, nil) == nil {
			t.Error("OpenKeyringStore() = nil, want the keyring on disk")
		}
	})
}

func TestKeyringStore_UpdateFailsWithoutDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	a, b := NewKey(), NewKey()
	s := openStore(t, filepath.Join(dir, "keyring.json"), &a)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	_, err := s.Update(func(r Keyring) (Keyring, error) { return r.Add(b) })
	if err == nil || !strings.Contains(err.Error(), "write keyring") {
		t.Errorf("Update() = %v, want a write error", err)
	}
	checkLive(t, s, a)
	if n := len(s.Current().Keys); n != 1 {
		t.Errorf("Current() has %d keys, want 1", n)
	}
}

func TestOpenKeyringStore_DamagedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keyring.json")
	key := NewKey()
	whole, err := Keyring{1, []Key{key}}.encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"empty":      nil,
		"truncated":  whole[:len(whole)-8],
		"no keys":    []byte("{}"),
		"short key":  []byte(`{"version":1,"keys":["short"]}`),
		"two values": append(whole, whole...),
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			cfg := KeyringStoreConfig{Path: path, InitialKey: &key, Logger: slog.New(slog.DiscardHandler)}
			_, err := OpenKeyringStore(cfg)
			if err == nil || !strings.Contains(err.Error(), path+" is damaged") ||
				!strings.Contains(err.Error(), "--encrypt-file") || strings.Contains(err.Error(), key.Base64()) {
				t.Errorf("OpenKeyringStore() = %v, want an error with the path and the remedy, without the key", err)
			}
		})
	}
}

func TestKeyringStore_AcceptNewer(t *testing.T) {
	a, b := NewKey(), NewKey()
	s := openStore(t, filepath.Join(t.TempDir(), "keyring.json"), &a)
	for _, step := range []struct {
		name    string
		offered Keyring
		changed bool
		err     error
	}{
		{"version 0", Keyring{0, []Key{a, b}}, false, nil},
		{"newer", Keyring{2, []Key{b, a}}, true, nil},
		{"older", Keyring{1, []Key{a, b}}, false, nil},
		{"no shared key", Keyring{9, []Key{NewKey()}}, false, ErrNoSharedKey},
	} {
		encrypted, err := step.offered.Encrypt(nil)
		if err != nil {
			t.Fatal(err)
		}
		changed, err := s.AcceptNewer(encrypted)
		if changed != step.changed || !errors.Is(err, step.err) {
			t.Errorf("%s: AcceptNewer() = %v, %v, want %v, %v", step.name, changed, err, step.changed, step.err)
		}
		if step.changed {
			checkLive(t, s, b, a)
		}
	}
	checkLive(t, s, b, a)
}

// Reconcile reverts the changes of key queries, which any member can send.
func TestKeyringStore_Reconcile(t *testing.T) {
	a, b, c := NewKey(), NewKey(), NewKey()
	s := openStore(t, filepath.Join(t.TempDir(), "keyring.json"), &a)
	if _, err := s.Update(func(r Keyring) (Keyring, error) { return r.Add(b) }); err != nil {
		t.Fatal(err)
	}
	if s.Reconcile() {
		t.Error("Reconcile() = true for unchanged keys, want false")
	}
	for name, change := range map[string]func() error{
		"install": func() error { return s.live.AddKey(c.b[:]) },
		"use":     func() error { return s.live.UseKey(b.b[:]) },
		"remove":  func() error { return s.live.RemoveKey(s.live.GetKeys()[1]) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if !s.Reconcile() {
			t.Errorf("Reconcile() after %s = false, want true", name)
		}
		checkLive(t, s, a, b)
	}
}

// memberlist reads keys without a data race while Update changes them. The race
// detector checks this.
func TestKeyringStore_ChangesWhileInUse(t *testing.T) {
	a := NewKey()
	s := openStore(t, filepath.Join(t.TempDir(), "keyring.json"), &a)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for n := 0; ; n++ {
			for _, key := range s.live.GetKeys() {
				n += len(key)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	for range 20 {
		next := NewKey()
		for i, f := range []func(Keyring) (Keyring, error){
			func(r Keyring) (Keyring, error) { return r.Add(next) },
			func(r Keyring) (Keyring, error) { return r.Use(next) },
			func(r Keyring) (Keyring, error) { return r.Remove(r.Keys[1]) },
		} {
			if _, err := s.Update(f); err != nil {
				t.Fatalf("Update() of step %d = %v, want nil", i, err)
			}
		}
	}
	close(stop)
	wg.Wait()
}

func TestReadKeyFile(t *testing.T) {
	dir := t.TempDir()
	key := NewKey()
	path := filepath.Join(dir, "gossip.key")
	write := func(t *testing.T, content string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	write(t, key.Base64()+"\n", 0o644)
	var log strings.Builder
	if got, err := ReadKeyFile(path, slog.New(slog.NewTextHandler(&log, nil))); err != nil || got != key {
		t.Errorf("ReadKeyFile() = %v, %v, want %v", got, err, key)
	}
	if !strings.Contains(log.String(), "make it 0600") {
		t.Errorf("log = %q, want a warning about the mode", log.String())
	}
	for _, content := range []string{"", "x", strings.Repeat("A", maxKeyFile+1), key.Base64() + key.Base64()} {
		write(t, content, 0o600)
		_, err := ReadKeyFile(path, nil)
		prefix := "encrypt_file " + path
		if err == nil || !strings.HasPrefix(err.Error(), prefix+":") && !strings.HasPrefix(err.Error(), prefix+" has") {
			t.Errorf("ReadKeyFile() of %.20q = %v, want an error with the path", content, err)
		}
	}
	if _, err := ReadKeyFile(filepath.Join(dir, "none"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ReadKeyFile() without a file = %v, want ErrNotExist", err)
	}
}
