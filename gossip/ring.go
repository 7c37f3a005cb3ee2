// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// MaxKeys bounds the keys of a ring. A rotation needs two.
const MaxKeys = 8

// Keyring is a set of gossip keys: an immutable value. Its methods make new ones.
type Keyring struct {
	// Version counts the changes that operators made. Between servers the higher one wins. 0: nobody made it in the
	// federation, it came from this server's own configuration, and it is never taught to others.
	Version uint64
	// Keys are what gossip is decrypted with. The first is the primary: what is sent is encrypted with it. Never empty.
	Keys []Key
}

// Primary is the key that gossip is encrypted with.
func (r Keyring) Primary() Key { return r.Keys[0] }

// Has says whether k is in the ring.
func (r Keyring) Has(k Key) bool { return slices.Contains(r.Keys, k) }

// Fingerprints names the keys, the primary first.
func (r Keyring) Fingerprints() []string {
	out := make([]string, len(r.Keys))
	for i, k := range r.Keys {
		out[i] = k.Fingerprint()
	}
	return out
}

// ErrKeyNotFound says that a key is not in a ring.
var ErrKeyNotFound = errors.New("key is not in the ring")

// Find returns the key of the ring that s means: by its fingerprint, or the key itself. The error, ErrKeyNotFound or what is
// wrong with s, does not quote s.
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

// isFingerprint says whether s looks like what Fingerprint returns. It is text that a user gave: a key must not pass.
func isFingerprint(s string) bool {
	if len(s) != 16 {
		return false
	}
	for _, c := range s {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// With returns the ring with k added as the last; the same ring if k is there.
func (r Keyring) Add(k Key) (Keyring, error) {
	if r.Has(k) {
		return r, nil
	}
	if len(r.Keys) >= MaxKeys {
		return r, fmt.Errorf("the ring has %d keys, and no room for more; remove those that are not used: wanfed keyring remove", MaxKeys)
	}
	return Keyring{r.Version + 1, append(slices.Clone(r.Keys), k)}, nil
}

// Use returns the ring with k as its primary; the same ring if it is.
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

// Without returns the ring without k; the same ring if it is not there. The primary cannot be removed.
func (r Keyring) Remove(k Key) (Keyring, error) {
	switch {
	case r.Primary() == k:
		return r, fmt.Errorf("key %s is the primary: gossip is encrypted with it, so it cannot be removed; "+
			"make another one the primary first: wanfed keyring use", k)
	case !r.Has(k):
		return r, nil
	}
	keys := slices.DeleteFunc(slices.Clone(r.Keys), func(other Key) bool { return other == k })
	return Keyring{r.Version + 1, keys}, nil
}

// Newer says whether r takes the place of old. Two rings of one version, which operators can make only while servers are cut
// off from each other, are told apart by their keys, everywhere alike.
func (r Keyring) Supersedes(old Keyring) bool {
	return KeyringSupersedes(r.Version, r.Fingerprints(), old.Version, old.Fingerprints())
}

// Later is Newer, of rings of which only versions and fingerprints are known.
func KeyringSupersedes(version uint64, fingerprints []string, oldVersion uint64, oldFingerprints []string) bool {
	if version != oldVersion {
		return version > oldVersion
	}
	return version > 0 && slices.Compare(fingerprints, oldFingerprints) > 0
}

// ringFile is a Keyring as it is stored, and sealed for other servers.
type ringFile struct {
	Version uint64   `json:"version"`
	Keys    []string `json:"keys"` // base64, primary first
}

func (r Keyring) encode() ([]byte, error) {
	f := ringFile{Version: r.Version}
	for _, k := range r.Keys {
		f.Keys = append(f.Keys, k.Base64())
	}
	b, err := json.MarshalIndent(f, "", "  ")
	return append(b, '\n'), err
}

// decodeRing reads what encode wrote. Its errors quote nothing of b.
func decodeRing(b []byte) (r Keyring, err error) {
	var f ringFile
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&f); err != nil || dec.More() {
		return r, errors.New("it is not the JSON of a ring")
	}
	if len(f.Keys) == 0 || len(f.Keys) > MaxKeys {
		return r, fmt.Errorf("it has %d keys, not 1 to %d", len(f.Keys), MaxKeys)
	}
	r.Version = f.Version
	for i, s := range f.Keys {
		k, err := ParseKey(s)
		if err != nil {
			return Keyring{}, fmt.Errorf("key %d: %w", i+1, err)
		}
		if r.Has(k) {
			return Keyring{}, fmt.Errorf("key %d is there twice", i+1)
		}
		r.Keys = append(r.Keys, k)
	}
	return r, nil
}
