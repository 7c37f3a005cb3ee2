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

// Key encrypts gossip. However it is printed, logged or marshalled, only its fingerprint shows; Base64 alone gives it away.
type Key struct{ b [KeySize]byte }

// NewKey makes a random key.
func NewKey() (k Key) {
	rand.Read(k.b[:])
	return k
}

// ParseKey reads a key as Base64 writes it: standard base64 of 32 bytes, as "wanfed keyring generate" and Consul's keygen make
// it. The error never quotes s.
func ParseKey(s string) (k Key, err error) {
	const remedy = "make one with: wanfed keyring generate"
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

// maxKeyFile bounds a key's file, in bytes.
const maxKeyFile = 4096

// ReadKeyFile reads the one key that a file holds. A file that others may read is logged, if logger is not nil.
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
		warnMode(path, logger)
	}
	return k, nil
}

// warnMode logs a file with keys that others may read. Windows has no such modes.
func warnMode(path string, logger *slog.Logger) {
	if runtime.GOOS == "windows" {
		return
	}
	if st, err := os.Stat(path); err == nil && st.Mode().Perm()&0o077 != 0 {
		logger.Warn("file with gossip keys can be read by group or others; make it 0600",
			"file", path, "mode", fmt.Sprintf("%04o", st.Mode().Perm()))
	}
}

// Base64 is the key itself.
func (k Key) Base64() string { return base64.StdEncoding.EncodeToString(k.b[:]) }

// Fingerprint names a key without telling it: 16 hex digits of a hash.
func (k Key) Fingerprint() string {
	sum := sha256.Sum256(append([]byte("wanfed gossip key\n"), k.b[:]...))
	return hex.EncodeToString(sum[:8])
}

// String is the fingerprint.
func (k Key) String() string { return k.Fingerprint() }

// Format implements fmt.Formatter, so that no verb shows the key.
func (k Key) Format(f fmt.State, _ rune) { fmt.Fprint(f, k.Fingerprint()) }

// MarshalText implements encoding.TextMarshaler by the fingerprint.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.Fingerprint()), nil }
