// SPDX-License-Identifier: MPL-2.0

package state

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// line returns a line of a key file.
func line(id string, fill byte) string {
	return id + " " + base64.StdEncoding.EncodeToString([]byte(strings.Repeat(string(rune(fill)), keySize))) + "\n"
}

// keyFile writes a key file and returns its path.
func keyFile(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestGenerateKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	first, err := GenerateKey(path)
	if err != nil {
		t.Fatalf("GenerateKey() = %v, want nil", err)
	}
	digest := digestKey(t, path)
	second, err := GenerateKey(path)
	if err != nil || second == first {
		t.Fatalf("GenerateKey() = %q, %v, want another id than %q", second, err, first)
	}
	wantKeys(t, path, first, second)
	for range 2 { // idempotent with two keys in use, and the other way round
		if id, err := UseNewestKey(path); err != nil || id != second {
			t.Errorf("UseNewestKey() = %q, %v, want %q, nil", id, err, second)
		}
		wantKeys(t, path, second, first)
		second, first = first, second
	}
	if got := digestKey(t, path); got != digest {
		t.Error("DigestKey() has changed with a new key, want that of the first key")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the key file = %v, %v, want 0600", info.Mode(), err)
	}
	if content, err := os.ReadFile(path); err != nil || strings.Count(string(content), "# Keys that encrypt") != 1 ||
		!strings.HasPrefix(string(content), "# Keys that encrypt") {
		t.Errorf("the key file is %d bytes, %v, want one comment at its beginning", len(content), err)
	}
}

func digestKey(t *testing.T, path string) string {
	t.Helper()
	k, err := ReadKeys(path)
	if err != nil {
		t.Fatalf("ReadKeys() = %v, want nil", err)
	}
	return string(k.DigestKey())
}

// wantKeys compares the ids of the keys in a file.
func wantKeys(t *testing.T, path string, want ...string) {
	t.Helper()
	k, err := ReadKeys(path)
	if err != nil {
		t.Fatalf("ReadKeys() = %v, want nil", err)
	}
	var got []string
	for _, k := range k.keys {
		got = append(got, k.id)
	}
	if !slices.Equal(got, want) {
		t.Errorf("keys = %v, want %v", got, want)
	}
}

// TestRotation replaces the key of two daemons, one file after the other. After
// each step, each daemon reads what the other one has stored.
func TestRotation(t *testing.T) {
	s := newServer(t)
	var paths [2]string
	var stores [2]*Store
	for i := range paths {
		paths[i] = filepath.Join(t.TempDir(), "keys")
	}
	if _, err := GenerateKey(paths[0]); err != nil {
		t.Fatal(err)
	}
	copyKeys := func() {
		t.Helper()
		b, err := os.ReadFile(paths[0])
		if err == nil {
			err = os.WriteFile(paths[1], b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	copyKeys()
	for i := range stores {
		var err error
		if stores[i], err = NewStore(StoreConfig{Client: s, KeyFile: paths[i]}); err != nil {
			t.Fatal(err)
		}
	}
	serial, used := 0, map[string]bool{}
	exchange := func(step string) {
		t.Helper()
		for i := range stores {
			serial++
			data := fmt.Sprintf(`{"serial":%d,"lineage":"l"}`, serial)
			c := Claim{Task: "web", Instance: "d", Epoch: uint64(serial)}
			v, err := stores[i].Put(t.Context(), c, []byte(data), PutOptions{})
			if err != nil {
				t.Fatalf("%s: Put() = %v, want nil", step, err)
			}
			used[v.Key] = true
			if got, _, err := stores[1-i].Get(t.Context(), "web", 0); err != nil || string(got) != data {
				t.Errorf("%s: Get() by the other daemon = %s, %v, want %s", step, got, err, data)
			}
		}
	}
	exchange("one key")
	if _, err := GenerateKey(paths[0]); err != nil {
		t.Fatal(err)
	}
	exchange("new key in one file")
	copyKeys()
	exchange("new key in both files")
	if _, err := UseNewestKey(paths[0]); err != nil {
		t.Fatal(err)
	}
	exchange("new key used by one daemon")
	copyKeys()
	exchange("new key used by both daemons")
	if len(used) != 2 {
		t.Errorf("%d keys have encrypted, want 2", len(used))
	}
}

func TestReadKeys_Invalid(t *testing.T) {
	secret := strings.TrimPrefix(line("a", 'x'), "a ")
	for content, want := range map[string]string{
		"":                            "it has no key",
		"# a comment\n\n":             "it has no key",
		"a\n":                         "line 1: must be ID KEY",
		"\n" + secret:                 "line 2: must be ID KEY",
		"a b c\n":                     "line 1: must be ID KEY",
		"a/b " + secret:               "line 1: must be ID KEY",
		"a AAAA\n":                    "line 1: key a must be 32 bytes in base64",
		"a " + secret[:20] + "!\n":    "line 1: key a must be 32 bytes in base64",
		line("a", 'x') + line("a", 2): "line 2: key a is there twice",
	} {
		_, err := ReadKeys(keyFile(t, content))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), secret[:10]) {
			t.Errorf("ReadKeys(%q) = %v, want %q without a key", content, err, want)
		}
	}
	if _, err := ReadKeys(keyFile(t, "# x\n"+line("k.1-_", 'x')+"\n"+strings.TrimSpace(line("b", 'y')))); err != nil {
		t.Errorf("ReadKeys() = %v, want nil", err)
	}
}

func TestReadKeys_File(t *testing.T) {
	readable := keyFile(t, line("a", 'x'))
	if err := os.Chmod(readable, 0o640); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		readable:                         "chmod 0600 " + readable,
		t.TempDir():                      "is a directory; name a file",
		filepath.Join(t.TempDir(), "no"): "copy it from another daemon",
		keyFile(t, strings.Repeat("#", maxKeyFile+1)): "has more than",
	} {
		if _, err := ReadKeys(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ReadKeys() = %v, want %q", err, want)
		}
	}
	if _, err := GenerateKey(readable); err == nil {
		t.Error("GenerateKey() of a file that others can read = nil, want an error")
	}
}

func FuzzKeys(f *testing.F) {
	f.Add([]byte(line("a", 'x') + "# c\n" + line("b", 'y')))
	f.Add([]byte("a AAAA"))
	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := parseKeys(data)
		if (err == nil) != (k != nil && len(k.keys) > 0) {
			t.Errorf("parseKeys() = %v, %v, want keys or an error", k, err)
		}
	})
}
