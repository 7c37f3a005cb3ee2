// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/wanfed/wanfed/internal/atomicfile"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/tlsutil"
)

// CredentialName is the name of the systemd credential (systemd.exec(5)) with the
// passphrase of encrypted keys of CAs.
const CredentialName = "wanfed-ca-passphrase"

// Bounds of files, in bytes.
const (
	maxPassphrase = 4 << 10
	maxKeyFile    = 64 << 10
)

// Passphrase finds the passphrase of encrypted keys of CAs. It is the content of
// a file, without the end of line: of File, or otherwise of the systemd credential
// CredentialName.
type Passphrase struct{ File string }

// path returns the path of the file, or "" if no passphrase is configured.
func (p Passphrase) path() string {
	if p.File != "" {
		return p.File
	}
	if dir := os.Getenv("CREDENTIALS_DIRECTORY"); dir != "" {
		path := filepath.Join(dir, CredentialName)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// Known reports whether a passphrase is configured.
func (p Passphrase) Known() bool { return p.path() != "" }

// Read returns the passphrase.
func (p Passphrase) Read() ([]byte, error) {
	path := p.path()
	if path == "" {
		return nil, errors.New("no passphrase is known; set issuing_key_passphrase_file (--ca-passphrase-file), or the systemd " +
			"credential " + CredentialName)
	}
	read := settings.ReadFile // systemd has chosen the mode of a credential
	if p.File != "" {
		read = settings.ReadPrivateFile
	}
	b, err := read(path, maxPassphrase)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("passphrase file %s does not exist; restore it from its backup", path)
	}
	if err != nil {
		return nil, fmt.Errorf("passphrase file: %w", err)
	}
	if b = bytes.TrimRight(b, "\r\n"); len(b) == 0 {
		return nil, fmt.Errorf("passphrase file %s is empty; restore it from its backup", path)
	}
	return b, nil
}

// maxCachedKeys bounds the keys that CAKeys keeps decrypted.
const maxCachedKeys = 4

// CAKeys reads and writes private keys of CAs in PEM, which are encrypted if a
// passphrase is known. It keeps decrypted keys in memory, because a decryption
// takes some 60 ms. It is safe for concurrent use.
type CAKeys struct {
	passphrase Passphrase

	mu     sync.Mutex
	cached map[[sha256.Size]byte]crypto.Signer // by the digest of the file and the passphrase
}

// NewCAKeys returns the keys of a passphrase.
func NewCAKeys(p Passphrase) *CAKeys {
	return &CAKeys{passphrase: p, cached: map[[sha256.Size]byte]crypto.Signer{}}
}

// Decrypt returns the text of a key file, decrypted if it is encrypted. The error
// follows the name of the file.
func (k *CAKeys) Decrypt(text []byte) ([]byte, error) {
	if !tlsutil.KeyEncrypted(text) {
		return text, nil
	}
	passphrase, err := k.passphrase.Read()
	if err != nil {
		return nil, fmt.Errorf("is encrypted: %w", err)
	}
	return tlsutil.DecryptKey(text, passphrase)
}

// Parse returns the key of the text of a key file.
func (k *CAKeys) Parse(text []byte) (crypto.Signer, error) {
	if !tlsutil.KeyEncrypted(text) {
		return tlsutil.ParseKey(text)
	}
	passphrase, err := k.passphrase.Read()
	if err != nil {
		return nil, fmt.Errorf("is encrypted: %w", err)
	}
	id := sha256.Sum256(fmt.Appendf(nil, "%d\x00%s%s", len(passphrase), passphrase, text))
	k.mu.Lock()
	key := k.cached[id]
	k.mu.Unlock()
	if key != nil {
		return key, nil
	}
	plain, err := tlsutil.DecryptKey(text, passphrase)
	if err != nil {
		return nil, err
	}
	if key, err = tlsutil.ParseKey(plain); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.cached) >= maxCachedKeys {
		clear(k.cached)
	}
	k.cached[id] = key
	return key, nil
}

// Encrypt returns the text of a new key file for a key in PEM: encrypted if a
// passphrase is known, and otherwise the key itself.
func (k *CAKeys) Encrypt(key []byte) ([]byte, error) {
	if !k.passphrase.Known() {
		return key, nil
	}
	passphrase, err := k.passphrase.Read()
	if err != nil {
		return nil, err
	}
	return tlsutil.EncryptKey(key, passphrase)
}

// Protect encrypts the key files of the directory of an Authority that are not
// encrypted, if a passphrase is known. Without one, it logs a warning. It returns
// an error if a key file cannot be used.
func (a Authority) Protect(logger *slog.Logger) error {
	files, err := filepath.Glob(filepath.Join(a.Dir, "*-key.pem"))
	if err != nil {
		return fmt.Errorf("read the CA keys: %w", err)
	}
	keys := a.keys()
	for _, file := range files {
		text, err := settings.ReadFile(file, maxKeyFile)
		if err != nil {
			return fmt.Errorf("read the CA key: %w", err)
		}
		if _, err := keys.Parse(text); err != nil {
			return fmt.Errorf("CA key %s %w", file, err)
		}
		if tlsutil.KeyEncrypted(text) {
			continue
		}
		if !keys.passphrase.Known() {
			logger.Warn("CA key is not encrypted; set issuing_key_passphrase_file", "file", file)
			continue
		}
		if err := keys.replace(file, text); err != nil {
			return fmt.Errorf("encrypt the CA key %s: %w", file, err)
		}
		logger.Info("CA key encrypted", "file", file)
	}
	return nil
}

// replace replaces a key file by an encrypted one, which it decrypts before.
func (k *CAKeys) replace(file string, text []byte) error {
	encrypted, err := k.Encrypt(text)
	if err != nil {
		return err
	}
	if _, err := k.Parse(encrypted); err != nil {
		return err
	}
	return atomicfile.WriteFile(file, encrypted, 0o600)
}

func (a Authority) keys() *CAKeys { return cmp.Or(a.Keys, NewCAKeys(Passphrase{})) }
