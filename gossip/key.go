// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"strings"
)

// KeySize is the length of a gossip key in bytes: AES-256.
const KeySize = 32

// Key encrypts gossip. Printing, logging or marshalling a Key shows only its
// fingerprint. Base64 alone returns the key.
type Key struct{ b [KeySize]byte }

// NewKey returns a random key.
func NewKey() (k Key) {
	rand.Read(k.b[:])
	return k
}

// ParseKey parses the standard base64 of 32 bytes, as printed by "wanfed keyring
// generate" and "consul keygen". The error never quotes s.
func ParseKey(s string) (k Key, err error) {
	const remedy = "create one with: wanfed keyring generate"
	b, err := base64.StdEncoding.Strict().DecodeString(strings.TrimSpace(s))
	switch {
	case err != nil:
		return k, errors.New("gossip key is not base64; " + remedy)
	case len(b) != KeySize:
		return k, fmt.Errorf("gossip key has %d bytes, not %d; %s", len(b), KeySize, remedy)
	}
	copy(k.b[:], b)
	return k, nil
}

// maxKeyFile limits the size of a key file in bytes.
const maxKeyFile = 4096

// ReadKeyFile reads a file with one key. If logger is not nil, a file that group
// or others can read is logged.
func ReadKeyFile(path string, logger *slog.Logger) (Key, error) {
	f, err := os.Open(path)
	if err != nil {
		if pe, ok := errors.AsType[*fs.PathError](err); ok {
			err = pe.Err
		}
		return Key{}, fmt.Errorf("encrypt_file %s: %w", path, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return Key{}, fmt.Errorf("encrypt_file %s: %w", path, err)
	}
	if len(b) > maxKeyFile {
		return Key{}, fmt.Errorf("encrypt_file %s has more than %d bytes: a key is one line", path, maxKeyFile)
	}
	k, err := ParseKey(string(b))
	if err != nil {
		return k, fmt.Errorf("encrypt_file %s: %w", path, err)
	}
	if logger != nil {
		warnFileMode(path, logger)
	}
	return k, nil
}

// warnFileMode logs a file of keys that group or others can read. Windows has no
// such modes.
func warnFileMode(path string, logger *slog.Logger) {
	if runtime.GOOS == "windows" {
		return
	}
	if st, err := os.Stat(path); err == nil && st.Mode().Perm()&0o077 != 0 {
		logger.Warn("file with gossip keys can be read by group or others; make it 0600",
			"file", path, "mode", fmt.Sprintf("%04o", st.Mode().Perm()))
	}
}

// Base64 returns the key itself.
func (k Key) Base64() string { return base64.StdEncoding.EncodeToString(k.b[:]) }

// Fingerprint identifies the key without revealing it: 16 hex digits of a hash.
func (k Key) Fingerprint() string {
	sum := sha256.Sum256(append([]byte("wanfed gossip key\n"), k.b[:]...))
	return hex.EncodeToString(sum[:8])
}

// String returns the fingerprint.
func (k Key) String() string { return k.Fingerprint() }

// Format implements fmt.Formatter. No verb shows the key.
func (k Key) Format(f fmt.State, _ rune) { fmt.Fprint(f, k.Fingerprint()) }

// MarshalText implements encoding.TextMarshaler. It returns the fingerprint.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.Fingerprint()), nil }
