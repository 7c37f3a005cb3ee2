// SPDX-License-Identifier: MPL-2.0

package state

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/wanfed/wanfed/internal/atomicfile"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/resource"
)

const (
	// keySize is the size of a key, in bytes.
	keySize = 32
	// maxKeyFile bounds a key file, in bytes.
	maxKeyFile = 1 << 20
)

// keyComment is the beginning of a new key file.
const keyComment = `# Keys that encrypt the states of tasks. The first one encrypts, all of them decrypt.
# Every daemon and operator needs this file. Without it the states cannot be read.
# Keep old keys: a version of a state needs the key that has encrypted it.
`

// Keys are the keys of a key file. They are immutable.
type Keys struct{ keys []key } // at least one

// key encrypts and authenticates states.
type key struct {
	id   string
	aead cipher.AEAD
	mac  []byte // key of the digests
}

// ReadKeys reads a key file. Each line has the id of a key and its 32 bytes in
// base64. Empty lines, and lines that begin with "#", are ignored. The file must
// not be readable for other users. GenerateKey creates it.
func ReadKeys(path string) (*Keys, error) {
	k, _, err := readKeys(path)
	return k, err
}

// readKeys returns the keys of a file and its content.
func readKeys(path string) (*Keys, []byte, error) {
	data, err := settings.ReadPrivateFile(path, maxKeyFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, fmt.Errorf("read key file: %w: copy it from another daemon, or create the first one", err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read key file: %w", err)
	}
	k, err := parseKeys(data)
	if err != nil {
		return nil, nil, fmt.Errorf("read key file %s: %w", path, err)
	}
	return k, data, nil
}

var isKeyID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`).MatchString

// parseKeys parses a key file. Its errors have no part of a key.
func parseKeys(data []byte) (*Keys, error) {
	k := new(Keys)
	number := 0
	for line := range bytes.Lines(data) {
		number++
		fields := strings.Fields(string(line))
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 2 || !isKeyID(fields[0]) {
			return nil, fmt.Errorf("line %d: must be ID KEY, with an id of 1 to 64 letters, digits, dots, dashes and underscores",
				number)
		}
		secret, err := base64.StdEncoding.Strict().DecodeString(fields[1])
		if err != nil || len(secret) != keySize {
			return nil, fmt.Errorf("line %d: key %s must be %d bytes in base64", number, fields[0], keySize)
		}
		if _, ok := k.find(fields[0]); ok {
			return nil, fmt.Errorf("line %d: key %s is there twice: remove one line", number, fields[0])
		}
		parsed, err := newKey(fields[0], secret)
		if err != nil {
			return nil, err
		}
		k.keys = append(k.keys, parsed)
	}
	if len(k.keys) == 0 {
		return nil, errors.New("it has no key")
	}
	return k, nil
}

func newKey(id string, secret []byte) (key, error) {
	encrypt, err := hkdf.Key(sha256.New, secret, nil, "wanfed state encryption", keySize)
	if err != nil {
		return key{}, err
	}
	mac, err := hkdf.Key(sha256.New, secret, nil, "wanfed state digest", keySize)
	if err != nil {
		return key{}, err
	}
	block, err := aes.NewCipher(encrypt)
	if err != nil {
		return key{}, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return key{id: id, aead: aead, mac: mac}, err
}

// find returns the key with an id.
func (k *Keys) find(id string) (key, bool) {
	i := slices.IndexFunc(k.keys, func(k key) bool { return k.id == id })
	if i < 0 {
		return key{}, false
	}
	return k.keys[i], true
}

// digest returns the digest of a state.
func (k key) digest(data []byte) []byte {
	h := hmac.New(sha256.New, k.mac)
	h.Write(data)
	return h.Sum(nil)
}

// GenerateKey adds a new key to a key file, as the last one, and returns its id.
// It creates the file with mode 0600 if it does not exist. The only key of a new
// file encrypts. UseNewestKey makes a later one encrypt.
func GenerateKey(path string) (id string, err error) {
	_, old, err := readKeys(path)
	if errors.Is(err, os.ErrNotExist) {
		old, err = []byte(keyComment), nil
	}
	if err != nil {
		return "", err
	}
	secret := make([]byte, keySize)
	_, _ = rand.Read(secret) // never fails
	id = resource.NewUID()
	if !bytes.HasSuffix(old, []byte("\n")) {
		old = append(old, '\n')
	}
	return id, writeKeys(path, old, []byte(id+" "+base64.StdEncoding.EncodeToString(secret)+"\n"))
}

// UseNewestKey moves the last key of a key file before the others, so that it
// encrypts, and returns its id. All daemons must have the key before.
func UseNewestKey(path string) (id string, err error) {
	k, data, err := readKeys(path)
	if err != nil {
		return "", err
	}
	id = k.keys[len(k.keys)-1].id
	var first, newest, rest []byte // lines before the first key, of the newest key, and the others
	for line := range bytes.Lines(data) {
		fields := bytes.Fields(line)
		switch isKey := len(fields) > 0 && fields[0][0] != '#'; {
		case isKey && string(fields[0]) == id:
			newest = append(bytes.TrimRight(line, "\r\n"), '\n')
		case !isKey && rest == nil:
			first = append(first, line...)
		default:
			rest = append(rest, line...)
		}
	}
	return id, writeKeys(path, first, newest, rest)
}

func writeKeys(path string, parts ...[]byte) error {
	if err := atomicfile.WriteFile(path, slices.Concat(parts...), 0o600); err != nil {
		return fmt.Errorf("write key file: %w", err)
	}
	return nil
}
