// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/youmark/pkcs8"
)

// typeEncryptedKey is the type of the PEM block of an encrypted private key (RFC
// 5958 section 3).
const typeEncryptedKey = "ENCRYPTED PRIVATE KEY"

// MinPassphrase is the minimum length, in bytes, of the passphrase of a new
// encrypted key.
const MinPassphrase = 12

// keyEncryption is the encryption of new keys: PBES2 (RFC 8018) with AES-256-CBC,
// and scrypt (RFC 7914) with 16 MiB. OpenSSL decrypts it with its defaults.
var keyEncryption = &pkcs8.Opts{
	Cipher:  pkcs8.AES256CBC,
	KDFOpts: pkcs8.ScryptOpts{SaltSize: 16, CostParameter: 1 << 14, BlockSize: 8, ParallelizationParameter: 1},
}

// KeyEncrypted reports whether the first private key of a PEM file is encrypted.
func KeyEncrypted(b []byte) bool { return encryptedBlock(b) != nil }

func encryptedBlock(b []byte) *pem.Block {
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case typeEncryptedKey:
			return block
		case "PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY":
			return nil
		}
	}
	return nil
}

// EncryptKey returns the private key of a PEM file, encrypted with a passphrase:
// a PKCS #8 EncryptedPrivateKeyInfo in PEM. A passphrase that is shorter than
// MinPassphrase is an error.
func EncryptKey(key, passphrase []byte) ([]byte, error) {
	if len(passphrase) < MinPassphrase {
		return nil, fmt.Errorf("the passphrase has %d bytes: must have at least %d", len(passphrase), MinPassphrase)
	}
	signer, err := ParseKey(key)
	if err != nil {
		return nil, fmt.Errorf("the key %w", err)
	}
	der, err := pkcs8.MarshalPrivateKey(signer, passphrase, keyEncryption)
	if err != nil {
		return nil, errors.New("the key cannot be encrypted") // err may contain the key
	}
	return pem.EncodeToMemory(&pem.Block{Type: typeEncryptedKey, Bytes: der}), nil
}

// DecryptKey returns the encrypted private key of a PEM file in PEM (PKCS #8),
// without encryption. Keys of EncryptKey and of OpenSSL can be decrypted: PBES2
// with PBKDF2 or scrypt, and AES.
func DecryptKey(b, passphrase []byte) ([]byte, error) {
	block := encryptedBlock(b)
	if block == nil {
		return nil, errors.New("is not encrypted")
	}
	if len(passphrase) == 0 {
		return nil, errors.New("is encrypted, and the passphrase is empty")
	}
	key, _, err := pkcs8.ParsePrivateKey(block.Bytes, passphrase)
	if err != nil {
		return nil, errors.New("cannot be decrypted: the passphrase is wrong, or the encryption is not PBES2 with AES")
	}
	signer, err := signerOf(key)
	if err != nil {
		return nil, err
	}
	return EncodeKey(signer)
}
