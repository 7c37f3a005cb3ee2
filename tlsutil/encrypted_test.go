// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var testPassphrase = []byte("correct horse battery")

func TestEncryptKey(t *testing.T) {
	ca, err := CreateCA(CARequest{})
	if err != nil {
		t.Fatal(err)
	}
	encrypted, err := EncryptKey(ca.Key, testPassphrase)
	if err != nil {
		t.Fatal(err)
	}
	if KeyEncrypted(ca.Key) || !KeyEncrypted(encrypted) || KeyEncrypted(ca.Cert) {
		t.Error("KeyEncrypted() is wrong for a key, an encrypted key or a certificate")
	}
	if got, err := DecryptKey(encrypted, testPassphrase); string(got) != string(ca.Key) || err != nil {
		t.Errorf("DecryptKey() = %q, %v, want the key", got, err)
	}
	for _, c := range []struct {
		b, passphrase []byte
		want          string
	}{
		{encrypted, []byte("another passphrase"), "the passphrase is wrong"},
		{encrypted, nil, "the passphrase is empty"},
		{ca.Key, testPassphrase, "is not encrypted"},
		{[]byte(strings.Replace(string(encrypted), "\nM", "\nN", 1)), testPassphrase, ""},
	} {
		if got, err := DecryptKey(c.b, c.passphrase); got != nil || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("DecryptKey() = %q, %v, want an error with %q", got, err, c.want)
		}
	}
	if _, err := EncryptKey(ca.Key, []byte("short")); err == nil {
		t.Error("EncryptKey() with a short passphrase = nil, want an error")
	}
	if _, err := EncryptKey(ca.Cert, testPassphrase); err == nil {
		t.Error("EncryptKey() of a certificate = nil, want an error")
	}
}

// TestEncryptKey_OpenSSL checks that OpenSSL and this package decrypt each other's
// keys.
func TestEncryptKey_OpenSSL(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("no openssl")
	}
	ca, err := CreateCA(CARequest{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	encrypted, err := EncryptKey(ca.Key, testPassphrase)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"ours": encrypted, "plain": ca.Key, "passphrase": testPassphrase} {
		if err := os.WriteFile(path(name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	openssl := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("openssl", args...).CombinedOutput(); err != nil {
			t.Fatalf("openssl %v = %v, want nil: %s", args, err, out)
		}
	}
	pass := "file:" + path("passphrase")
	openssl("pkcs8", "-in", path("ours"), "-passin", pass, "-topk8", "-nocrypt", "-out", path("decrypted"))
	if got, err := os.ReadFile(path("decrypted")); string(got) != string(ca.Key) || err != nil {
		t.Errorf("openssl has decrypted %q, %v, want the key", got, err)
	}
	for _, kdf := range [][]string{{"-scrypt"}, {"-v2", "aes-256-cbc"}, {"-v2", "aes-128-cbc", "-v2prf", "hmacWithSHA256"}} {
		openssl(append([]string{"pkcs8", "-topk8", "-in", path("plain"), "-passout", pass, "-out", path("theirs")}, kdf...)...)
		theirs, err := os.ReadFile(path("theirs"))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := DecryptKey(theirs, testPassphrase); string(got) != string(ca.Key) || err != nil {
			t.Errorf("DecryptKey() of openssl pkcs8 %v = %q, %v, want the key", kdf, got, err)
		}
	}
}
