// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

func openKeyring(t testing.TB, path string, first *Key) *KeyringStore {
	t.Helper()
	k, err := OpenKeyringStore(KeyringStoreConfig{Path: path, InitialKey: first, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// liveIs checks what memberlist uses.
func liveIs(t *testing.T, k *KeyringStore, want ...Key) {
	t.Helper()
	live := k.live.GetKeys()
	if len(live) != len(want) || !bytes.Equal(live[0], want[0].b[:]) {
		t.Fatalf("pools use %d keys, want %d, the first being the primary", len(live), len(want))
	}
	for _, key := range want {
		if !slices.ContainsFunc(live, func(b []byte) bool { return bytes.Equal(b, key.b[:]) }) {
			t.Fatalf("pools do not use key %s", key)
		}
	}
}

func TestKeyringOnDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keyring.json")
	if k := openKeyring(t, path, nil); k != nil {
		t.Fatal("a keyring out of nothing")
	}
	a, b, c := NewKey(), NewKey(), NewKey()
	k := openKeyring(t, path, &a)
	changed := k.Changed()
	for _, f := range []func(Keyring) (Keyring, error){
		func(r Keyring) (Keyring, error) { return r.Add(b) },
		func(r Keyring) (Keyring, error) { return r.Add(c) },
		func(r Keyring) (Keyring, error) { return r.Use(c) },
		func(r Keyring) (Keyring, error) { return r.Remove(a) }, // not the last in the list
	} {
		if _, err := k.Update(f); err != nil {
			t.Fatal(err)
		}
	}
	<-changed
	liveIs(t, k, c, b)
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode of the file: %v, %v", st.Mode(), err)
	}

	// The next start has what was, whatever is configured, and says so.
	var log strings.Builder
	again, err := OpenKeyringStore(KeyringStoreConfig{Path: path, InitialKey: &a, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	liveIs(t, again, c, b)
	if r := again.Current(); r.Version != 4 || r.Primary() != c {
		t.Errorf("after a restart: %v", r)
	}
	if !strings.Contains(log.String(), "is not the primary") || !strings.Contains(log.String(), "configured="+a.Fingerprint()) ||
		strings.Contains(log.String(), a.Base64()) {
		t.Errorf("log: %s", log.String())
	}
	if k := openKeyring(t, path, nil); k == nil {
		t.Error("without a configured key the ring on disk is not used")
	}
}

func TestKeyringRefusesWhatItCannotKeep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	a, b := NewKey(), NewKey()
	k := openKeyring(t, filepath.Join(dir, "keyring.json"), &a)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Update(func(r Keyring) (Keyring, error) { return r.Add(b) }); err == nil || !strings.Contains(err.Error(), "write keyring") {
		t.Errorf("Update without a disk: %v", err)
	}
	liveIs(t, k, a)
	if n := len(k.Current().Keys); n != 1 {
		t.Errorf("%d keys in the ring", n)
	}
}

func TestKeyringDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keyring.json")
	key := NewKey()
	whole, err := Keyring{1, []Key{key}}.encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, content := range [][]byte{nil, whole[:len(whole)-8], []byte("{}"), []byte(`{"version":1,"keys":["short"]}`), append(whole, whole...)} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := OpenKeyringStore(KeyringStoreConfig{Path: path, InitialKey: &key, Logger: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), path+" is damaged") || !strings.Contains(err.Error(), "--encrypt-file") ||
			strings.Contains(err.Error(), key.Base64()) {
			t.Errorf("%q: %v", content, err)
		}
	}
}

func TestKeyringOffer(t *testing.T) {
	dir := t.TempDir()
	a, b := NewKey(), NewKey()
	k := openKeyring(t, filepath.Join(dir, "keyring.json"), &a)
	offer := func(r Keyring) (bool, error) {
		t.Helper()
		sealed, err := r.Encrypt(nil)
		if err != nil {
			t.Fatal(err)
		}
		return k.AcceptNewer(sealed)
	}
	if changed, err := offer(Keyring{0, []Key{a, b}}); changed || err != nil {
		t.Errorf("a ring that nobody made: %v, %v", changed, err)
	}
	if changed, err := offer(Keyring{2, []Key{b, a}}); !changed || err != nil {
		t.Errorf("a newer ring: %v, %v", changed, err)
	}
	liveIs(t, k, b, a)
	if changed, err := offer(Keyring{1, []Key{a, b}}); changed || err != nil {
		t.Errorf("an older ring: %v, %v", changed, err)
	}
	if changed, err := offer(Keyring{9, []Key{NewKey()}}); changed || !errors.Is(err, ErrNoSharedKey) {
		t.Errorf("a stranger's ring: %v, %v", changed, err)
	}
	liveIs(t, k, b, a)
}

// TestKeyringRestore: serf's own queries about keys, sent by some member, do not last.
func TestKeyringRestore(t *testing.T) {
	a, b, c := NewKey(), NewKey(), NewKey()
	k := openKeyring(t, filepath.Join(t.TempDir(), "keyring.json"), &a)
	if _, err := k.Update(func(r Keyring) (Keyring, error) { return r.Add(b) }); err != nil {
		t.Fatal(err)
	}
	if k.Reconcile() {
		t.Error("restored what was right")
	}
	for what, meddle := range map[string]func() error{
		"install": func() error { return k.live.AddKey(c.b[:]) },
		"use":     func() error { return k.live.UseKey(b.b[:]) },
		"remove":  func() error { return k.live.RemoveKey(k.live.GetKeys()[1]) },
	} {
		if err := meddle(); err != nil {
			t.Fatal(err)
		}
		if !k.Reconcile() {
			t.Errorf("%s: not noticed", what)
		}
		liveIs(t, k, a, b)
	}
}

// TestKeyringChangesWhileInUse is for the race detector: memberlist reads keys while they change.
func TestKeyringChangesWhileInUse(t *testing.T) {
	a := NewKey()
	k := openKeyring(t, filepath.Join(t.TempDir(), "keyring.json"), &a)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for n := 0; ; n++ {
			for _, key := range k.live.GetKeys() {
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
			if _, err := k.Update(f); err != nil {
				t.Fatal(fmt.Errorf("step %d: %w", i, err))
			}
		}
	}
	close(stop)
	wg.Wait()
}

func TestReadKey(t *testing.T) {
	dir := t.TempDir()
	key := NewKey()
	path := filepath.Join(dir, "gossip.key")
	if err := os.WriteFile(path, []byte(key.Base64()+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	if got, err := ReadKeyFile(path, slog.New(slog.NewTextHandler(&log, nil))); err != nil || got != key {
		t.Errorf("ReadKey: %v, %v", got, err)
	}
	if !strings.Contains(log.String(), "make it 0600") {
		t.Errorf("nothing is said of a file that others can read: %s", log.String())
	}
	for _, content := range []string{"", "x", strings.Repeat("A", maxKeyFile+1), key.Base64() + key.Base64()} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadKeyFile(path, nil); err == nil || !strings.HasPrefix(err.Error(), "encrypt_file "+path+":") && !strings.HasPrefix(err.Error(), "encrypt_file "+path+" has") {
			t.Errorf("%.20q: %v", content, err)
		}
	}
	if _, err := ReadKeyFile(filepath.Join(dir, "none"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}
