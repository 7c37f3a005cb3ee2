// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/tlsutil"
)

// keyDir returns an authority with the keys of two CAs, which are not encrypted,
// and a file for their passphrase.
func keyDir(t *testing.T) (a Authority, passphrase string) {
	t.Helper()
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	root, err := tlsutil.CreateCA(tlsutil.CARequest{})
	if err != nil {
		t.Fatal(err)
	}
	ca, err := tlsutil.CreateCA(tlsutil.CARequest{DC: "dc1", Parent: root})
	if err != nil {
		t.Fatal(err)
	}
	a = Authority{Dir: t.TempDir(), DC: "dc1"}
	write(t, filepath.Join(a.Dir, RootCert), root.Cert)
	write(t, filepath.Join(a.Dir, RootKey), root.Key)
	write(t, filepath.Join(a.Dir, DatacenterCert), ca.Cert)
	write(t, filepath.Join(a.Dir, DatacenterKey), ca.Key)
	return a, filepath.Join(t.TempDir(), CredentialName)
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAuthority_Protect(t *testing.T) {
	a, file := keyDir(t)
	protect := func(passphrase Passphrase) (log string, err error) {
		var b bytes.Buffer
		a.Keys = NewCAKeys(passphrase)
		err = a.Protect(slog.New(slog.NewTextHandler(&b, nil)))
		return b.String(), err
	}
	signs := func(want string) {
		t.Helper()
		for _, role := range []string{RoleServer, RoleDatacenter} {
			switch _, _, err := a.Signer(role); {
			case want == "" && err != nil:
				t.Errorf("Signer(%s) = %v, want nil", role, err)
			case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
				t.Errorf("Signer(%s) = %v, want %q", role, err, want)
			}
			if err := a.CanSign(role); err != nil {
				t.Errorf("CanSign(%s) = %v, want nil: it decrypts nothing", role, err)
			}
		}
	}
	log, err := protect(Passphrase{})
	if strings.Count(log, "level=WARN msg=\"CA key is not encrypted; set issuing_key_passphrase_file\"") != 2 || err != nil {
		t.Errorf("Protect() without a passphrase = %v, log %q, want two warnings", err, log)
	}
	signs("")

	if _, err := protect(Passphrase{file}); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("Protect() with an absent passphrase file = %v, want an error", err)
	}
	write(t, file, []byte("short\n"))
	if _, err := protect(Passphrase{file}); err == nil || !strings.Contains(err.Error(), "at least 12") {
		t.Errorf("Protect() with a short passphrase = %v, want an error", err)
	}
	signs("") // the keys are as before

	write(t, file, []byte("correct horse battery\n"))
	log, err = protect(Passphrase{file})
	if strings.Count(log, "CA key encrypted") != 2 || err != nil {
		t.Errorf("Protect() = %v, log %q, want two encrypted keys", err, log)
	}
	for _, name := range []string{RootKey, DatacenterKey} {
		b, err := os.ReadFile(filepath.Join(a.Dir, name))
		if err != nil || !tlsutil.KeyEncrypted(b) {
			t.Errorf("%s = %s, %v, want an encrypted key", name, b, err)
		}
		if st, err := os.Stat(filepath.Join(a.Dir, name)); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("mode of %s = %v, %v, want 0600", name, st.Mode(), err)
		}
	}
	signs("")
	if log, err = protect(Passphrase{file}); log != "" || err != nil {
		t.Errorf("Protect() again = %v, log %q, want nothing", err, log)
	}

	if _, err := protect(Passphrase{}); err == nil || !strings.Contains(err.Error(), "is encrypted: no passphrase is known") {
		t.Errorf("Protect() of encrypted keys without a passphrase = %v, want an error", err)
	}
	signs("no passphrase is known")
	t.Setenv("CREDENTIALS_DIRECTORY", filepath.Dir(file))
	if log, err := protect(Passphrase{}); log != "" || err != nil {
		t.Errorf("Protect() with a credential = %v, log %q, want nothing", err, log)
	}
	signs("")

	wrong := filepath.Join(t.TempDir(), "wrong")
	write(t, wrong, []byte("another passphrase"))
	if _, err := protect(Passphrase{wrong}); err == nil || !strings.Contains(err.Error(), "the passphrase is wrong") {
		t.Errorf("Protect() with another passphrase = %v, want an error", err)
	}
	signs("the passphrase is wrong")
	if err := os.Chmod(wrong, 0o644); err != nil {
		t.Fatal(err)
	}
	signs("chmod 0600")
}

// TestCAKeys_NewPassphrase checks that a changed passphrase and a changed key are
// used at once.
func TestCAKeys_NewPassphrase(t *testing.T) {
	a, file := keyDir(t)
	keys := NewCAKeys(Passphrase{file})
	plain, err := os.ReadFile(filepath.Join(a.Dir, RootKey))
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, []byte("correct horse battery"))
	encrypted, err := keys.Encrypt(plain)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := keys.Parse(encrypted); err != nil {
			t.Errorf("Parse() = %v, want nil", err)
		}
	}
	write(t, file, []byte("another passphrase"))
	if _, err := keys.Parse(encrypted); err == nil {
		t.Error("Parse() after the passphrase has changed = nil, want an error")
	}
	for range maxCachedKeys + 1 {
		again, err := keys.Encrypt(plain)
		if err == nil {
			_, err = keys.Parse(again)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := len(keys.cached); n > maxCachedKeys {
		t.Errorf("%d cached keys, want at most %d", n, maxCachedKeys)
	}
}
