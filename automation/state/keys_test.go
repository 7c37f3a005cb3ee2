// SPDX-License-Identifier: MPL-2.0

package state

import (
	"encoding/base64"
	"os"
	"path/filepath"
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

func TestGenerateKey_Rotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	first, err := GenerateKey(path)
	if err != nil {
		t.Fatalf("GenerateKey() = %v, want nil", err)
	}
	second, err := GenerateKey(path)
	if err != nil || second == first {
		t.Fatalf("GenerateKey() = %q, %v, want another id than %q", second, err, first)
	}
	k, err := ReadKeys(path)
	if err != nil || len(k.keys) != 2 || k.keys[0].id != second || k.keys[1].id != first {
		t.Errorf("ReadKeys() = %v, %v, want the keys %s and %s", k, err, second, first)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the key file = %v, %v, want 0600", info.Mode(), err)
	}
	if content, err := os.ReadFile(path); err != nil || strings.Count(string(content), "# Keys that encrypt") != 1 {
		t.Errorf("the key file is %d bytes, %v, want one comment at its beginning", len(content), err)
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
		t.TempDir():                      "must be a file",
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
