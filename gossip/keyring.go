// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
)

// keySize is the length of an AES-256 key in bytes.
const keySize = 32

// Key encrypts gossip. Printing, logging or marshalling a Key shows only its
// fingerprint. Only Base64 returns the key.
type Key struct{ b [keySize]byte }

// NewKey returns a random key.
func NewKey() (k Key) {
	rand.Read(k.b[:])
	return k
}

// ParseKey parses the standard base64 of 32 bytes, as printed by "wanfed
// keyring generate" and "consul keygen". The error never quotes s.
func ParseKey(s string) (k Key, err error) {
	const remedy = "create one with: wanfed keyring generate"
	b, err := base64.StdEncoding.Strict().DecodeString(strings.TrimSpace(s))
	switch {
	case err != nil:
		return k, errors.New("gossip key is not base64; " + remedy)
	case len(b) != keySize:
		return k, fmt.Errorf("gossip key has %d bytes, not %d; %s", len(b), keySize, remedy)
	}
	copy(k.b[:], b)
	return k, nil
}

// maxKeyFile limits the size of a key file in bytes.
const maxKeyFile = 4096

// ReadKeyFile reads a file with one key. It logs a warning if group or others
// can read the file, unless logger is nil.
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

// warnFileMode logs a warning if group or others can read a file with keys. It
// does nothing on Windows, which has no file modes.
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

// Fingerprint returns 16 hex digits of a hash of the key.
func (k Key) Fingerprint() string {
	sum := sha256.Sum256(append([]byte("wanfed gossip key\n"), k.b[:]...))
	return hex.EncodeToString(sum[:8])
}

// String implements fmt.Stringer. It returns the fingerprint.
func (k Key) String() string { return k.Fingerprint() }

// Format implements fmt.Formatter. Every verb prints the fingerprint.
func (k Key) Format(f fmt.State, _ rune) { fmt.Fprint(f, k.Fingerprint()) }

// MarshalText implements encoding.TextMarshaler. It returns the fingerprint.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.Fingerprint()), nil }

// MaxKeys limits the keys of a keyring. A rotation needs two.
const MaxKeys = 8

// Keyring is a list of gossip keys. It is immutable: its methods return changed
// copies.
type Keyring struct {
	// Version counts the changes by operators. A keyring with a higher version
	// replaces the keyring of another server. Version 0 means that the key
	// comes from this server's configuration. Such a keyring is not sent to
	// other servers.
	Version uint64
	// Keys decrypt gossip. The first one is the primary key, which encrypts all
	// outgoing gossip. Keys is never empty.
	Keys []Key
}

// Primary returns the key that encrypts gossip.
func (r Keyring) Primary() Key { return r.Keys[0] }

// Has reports whether k is in the keyring.
func (r Keyring) Has(k Key) bool { return slices.Contains(r.Keys, k) }

// Fingerprints returns the fingerprints of the keys, the primary first.
func (r Keyring) Fingerprints() []string {
	out := make([]string, len(r.Keys))
	for i, k := range r.Keys {
		out[i] = k.Fingerprint()
	}
	return out
}

// ErrKeyNotFound reports that a key is not in a keyring.
var ErrKeyNotFound = errors.New("key is not in the keyring")

// Find returns the key whose fingerprint or base64 form is s. If the keyring
// has no such key, the error is ErrKeyNotFound. No error quotes a key.
func (r Keyring) Find(s string) (Key, error) {
	for _, k := range r.Keys {
		if k.Fingerprint() == s || k.Base64() == s {
			return k, nil
		}
	}
	if isFingerprint(s) {
		return Key{}, fmt.Errorf("key %s: %w", s, ErrKeyNotFound)
	}
	k, err := ParseKey(s)
	if err != nil {
		return k, err
	}
	return k, fmt.Errorf("key %s: %w", k.Fingerprint(), ErrKeyNotFound)
}

// isFingerprint reports whether s has the form of a fingerprint. An error may
// quote such a string, because it is not a key.
func isFingerprint(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 8
}

// Add returns the keyring with k appended. It returns r if r has k.
func (r Keyring) Add(k Key) (Keyring, error) {
	if r.Has(k) {
		return r, nil
	}
	if len(r.Keys) >= MaxKeys {
		return r, fmt.Errorf("the keyring has %d keys, the maximum; remove unused keys: wanfed keyring remove", MaxKeys)
	}
	return Keyring{r.Version + 1, append(slices.Clone(r.Keys), k)}, nil
}

// Use returns the keyring with k as its primary key. It returns r if k already
// is the primary key.
func (r Keyring) Use(k Key) (Keyring, error) {
	switch {
	case !r.Has(k):
		return r, fmt.Errorf("key %s: %w; install it first: wanfed keyring install", k, ErrKeyNotFound)
	case r.Primary() == k:
		return r, nil
	}
	keys := []Key{k}
	for _, other := range r.Keys {
		if other != k {
			keys = append(keys, other)
		}
	}
	return Keyring{r.Version + 1, keys}, nil
}

// Remove returns the keyring without k. It returns r if r does not have k. The
// primary key cannot be removed.
func (r Keyring) Remove(k Key) (Keyring, error) {
	switch {
	case r.Primary() == k:
		return r, fmt.Errorf("key %s is the primary: gossip is encrypted with it; "+
			"make another key the primary first: wanfed keyring use", k)
	case !r.Has(k):
		return r, nil
	}
	keys := slices.DeleteFunc(slices.Clone(r.Keys), func(other Key) bool { return other == k })
	return Keyring{r.Version + 1, keys}, nil
}

// Supersedes reports whether r replaces old: its version is higher. While
// servers are partitioned, operators can create two keyrings with the same
// version. In that case Supersedes compares the fingerprints, so all servers
// keep the same keyring.
func (r Keyring) Supersedes(old Keyring) bool {
	return KeyringSupersedes(r.Version, r.Fingerprints(), old.Version, old.Fingerprints())
}

// KeyringSupersedes is Supersedes for two keyrings whose keys are not known.
func KeyringSupersedes(
	version uint64, fingerprints []string, oldVersion uint64, oldFingerprints []string,
) bool {
	if version != oldVersion {
		return version > oldVersion
	}
	return version > 0 && slices.Compare(fingerprints, oldFingerprints) > 0
}

// keyringJSON is the format of the keyring file, and of the plaintext of an
// EncryptedKeyring.
type keyringJSON struct {
	Version uint64   `json:"version"`
	Keys    []string `json:"keys"` // base64, primary first
}

func (r Keyring) encode() ([]byte, error) {
	f := keyringJSON{Version: r.Version}
	for _, k := range r.Keys {
		f.Keys = append(f.Keys, k.Base64())
	}
	b, err := json.MarshalIndent(f, "", "  ")
	return append(b, '\n'), err
}

// decodeKeyring decodes the result of encode. Its errors do not quote b.
func decodeKeyring(b []byte) (r Keyring, err error) {
	var f keyringJSON
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&f); err != nil || dec.More() {
		return r, errors.New("not the JSON of a keyring")
	}
	if len(f.Keys) == 0 || len(f.Keys) > MaxKeys {
		return r, fmt.Errorf("keyring has %d keys, not 1 to %d", len(f.Keys), MaxKeys)
	}
	r.Version = f.Version
	for i, s := range f.Keys {
		k, err := ParseKey(s)
		if err != nil {
			return Keyring{}, fmt.Errorf("key %d: %w", i+1, err)
		}
		if r.Has(k) {
			return Keyring{}, fmt.Errorf("key %d is a duplicate", i+1)
		}
		r.Keys = append(r.Keys, k)
	}
	return r, nil
}

// EncryptedKeyring is a keyring that is encrypted with one gossip key. Servers
// exchange keyrings in this form. A peer that has a certificate but no gossip
// key can neither read nor change the keyring.
type EncryptedKeyring struct {
	Fingerprint string // of the key that decrypts the keyring
	Ciphertext  []byte // nonce, then AES-256-GCM of the keyring
}

// maxCiphertext limits a Ciphertext in bytes. A keyring of MaxKeys keys has
// less than 600 bytes.
const maxCiphertext = 4096

// cipherAAD binds a ciphertext to its purpose and format.
var cipherAAD = []byte("wanfed keyring 1")

// Encrypt encrypts r once with each of its keys. If fingerprints is not nil,
// Encrypt uses only the keys that fingerprints lists.
func (r Keyring) Encrypt(fingerprints []string) ([]EncryptedKeyring, error) {
	plain, err := r.encode()
	if err != nil {
		return nil, err
	}
	var out []EncryptedKeyring
	for _, k := range r.Keys {
		if fingerprints != nil && !slices.Contains(fingerprints, k.Fingerprint()) {
			continue
		}
		aead, err := k.aead()
		if err != nil {
			return nil, err
		}
		nonce := make([]byte, aead.NonceSize())
		rand.Read(nonce)
		out = append(out, EncryptedKeyring{k.Fingerprint(), aead.Seal(nonce, nonce, plain, cipherAAD)})
	}
	return out, nil
}

// ErrNoSharedKey reports that a keyring is encrypted with unknown keys only.
var ErrNoSharedKey = errors.New("servers share no gossip key")

// Decrypt decrypts the first element of encrypted whose key is in r. If r has
// none of the keys, it returns ErrNoSharedKey.
func (r Keyring) Decrypt(encrypted []EncryptedKeyring) (Keyring, error) {
	for _, e := range encrypted {
		for _, k := range r.Keys {
			if k.Fingerprint() == e.Fingerprint {
				return k.decrypt(e.Ciphertext)
			}
		}
	}
	return Keyring{}, ErrNoSharedKey
}

// decrypt decrypts a Ciphertext.
func (k Key) decrypt(b []byte) (Keyring, error) {
	aead, err := k.aead()
	if err != nil {
		return Keyring{}, err
	}
	if len(b) < aead.NonceSize() || len(b) > maxCiphertext {
		return Keyring{}, fmt.Errorf("encrypted keyring has %d bytes, not %d to %d",
			len(b), aead.NonceSize(), maxCiphertext)
	}
	plain, err := aead.Open(nil, b[:aead.NonceSize()], b[aead.NonceSize():], cipherAAD)
	if err != nil {
		return Keyring{}, fmt.Errorf("encrypted keyring was not encrypted with key %s", k)
	}
	r, err := decodeKeyring(plain)
	if err != nil {
		return Keyring{}, fmt.Errorf("encrypted keyring: %w", err)
	}
	return r, nil
}

// aead returns a cipher whose key is derived from k. The key k itself encrypts
// only gossip.
func (k Key) aead() (cipher.AEAD, error) {
	derived, err := hkdf.Key(sha256.New, k.b[:], nil, "wanfed keyring seal", keySize)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
