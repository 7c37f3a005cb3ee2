// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
)

// Servers tell each other rings over their own TLS connections, which gossip does not need. Only who has a key of a ring
// already may learn it, or teach another: a ring travels sealed under one of its keys, for those that know it. A certificate
// alone is not enough, else keys would add nothing to certificates.

// Sealed is a ring that only who has a certain key can read.
type EncryptedKeyring struct {
	Fingerprint string // of the key
	Ciphertext  []byte // nonce, then AES-256-GCM of the ring
}

// maxBox bounds a Box, in bytes: a ring of MaxKeys is below 600.
const maxBox = 4096

// sealAAD ties a box to its purpose and form.
var sealAAD = []byte("wanfed keyring 1")

// Seal seals r for those who have one of the keys that fingerprints name and r has, once for each; for all of its keys when
// fingerprints is nil.
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
		out = append(out, EncryptedKeyring{k.Fingerprint(), aead.Seal(nonce, nonce, plain, sealAAD)})
	}
	return out, nil
}

// ErrNoSharedKey says that a ring is sealed under keys that this one has not.
var ErrNoSharedKey = errors.New("no gossip key is known to both")

// Open reads the first of sealed for which r has the key. The error is ErrNoSharedKey when it has none.
func (r Keyring) Decrypt(sealed []EncryptedKeyring) (Keyring, error) {
	for _, s := range sealed {
		for _, k := range r.Keys {
			if k.Fingerprint() != s.Fingerprint {
				continue
			}
			return k.open(s.Ciphertext)
		}
	}
	return Keyring{}, ErrNoSharedKey
}

func (k Key) open(box []byte) (Keyring, error) {
	aead, err := k.aead()
	if err != nil {
		return Keyring{}, err
	}
	if len(box) < aead.NonceSize() || len(box) > maxBox {
		return Keyring{}, fmt.Errorf("sealed keyring of %d bytes: not 12 to %d", len(box), maxBox)
	}
	plain, err := aead.Open(nil, box[:aead.NonceSize()], box[aead.NonceSize():], sealAAD)
	if err != nil {
		return Keyring{}, fmt.Errorf("sealed keyring was not sealed with key %s", k)
	}
	r, err := decodeRing(plain)
	if err != nil {
		return Keyring{}, fmt.Errorf("sealed keyring: %w", err)
	}
	return r, nil
}

// aead is a cipher whose key is derived, so that a gossip key seals nothing but gossip.
func (k Key) aead() (cipher.AEAD, error) {
	derived, err := hkdf.Key(sha256.New, k.b[:], nil, "wanfed keyring seal", KeySize)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
