// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"

	"github.com/hashicorp/memberlist"

	"github.com/wanfed/wanfed/internal/atomicfile"
	"github.com/wanfed/wanfed/internal/broadcast"
)

// KeyringStoreConfig configures a KeyringStore.
type KeyringStoreConfig struct {
	// Path is the file that stores the keyring. Its directory must exist.
	// Required.
	Path string
	// InitialKey is the key of a new keyring if the file does not exist.
	// Default: gossip is not encrypted if the file does not exist.
	InitialKey *Key
	Logger     *slog.Logger // required
}

// KeyringStore stores the keyring of one server on disk and applies the keyring
// to all pools of the server. All methods may be called from any goroutine. A
// KeyringStore need not be closed.
type KeyringStore struct {
	cfg     KeyringStoreConfig
	live    *memberlist.Keyring // used by the pools
	changed broadcast.Broadcast // notified after each change of keyring

	updating sync.Mutex // serializes changes; held while the file is written
	mu       sync.Mutex
	keyring  Keyring
}

// OpenKeyringStore reads the keyring from disk. If the file does not exist, it
// writes a keyring with InitialKey. If the file exists, InitialKey is not used,
// because the file contains later changes by operators. OpenKeyringStore
// returns nil if there is neither a file nor an InitialKey.
func OpenKeyringStore(cfg KeyringStoreConfig) (*KeyringStore, error) {
	if cfg.Path == "" || cfg.Logger == nil {
		return nil, errors.New("gossip: Path and Logger of KeyringStoreConfig are required")
	}
	s := &KeyringStore{cfg: cfg, live: &memberlist.Keyring{}}
	b, err := os.ReadFile(cfg.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if cfg.InitialKey == nil {
			return nil, nil
		}
		s.keyring = Keyring{Keys: []Key{*cfg.InitialKey}}
		if err := s.save(s.keyring); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, fmt.Errorf("read keyring: %w", err)
	default:
		if s.keyring, err = decodeKeyring(b); err != nil {
			return nil, fmt.Errorf("keyring file %s is damaged: %w; restore a copy, or remove the file and start with "+
				"--encrypt-file, which names a file with a key that the other servers have", cfg.Path, err)
		}
		warnFileMode(cfg.Path, cfg.Logger)
		if cfg.InitialKey != nil && s.keyring.Primary() != *cfg.InitialKey {
			cfg.Logger.Info("the key of encrypt_file is not the primary: "+
				"the keyring in the data directory is used, which contains later changes",
				"configured", cfg.InitialKey.Fingerprint(), "primary", s.keyring.Primary().Fingerprint())
		}
	}
	s.apply(s.keyring)
	s.log("gossip is encrypted", s.keyring)
	return s, nil
}

// log logs a message about the keyring r.
func (s *KeyringStore) log(msg string, r Keyring) {
	s.cfg.Logger.Info(msg, "primary", r.Primary().Fingerprint(), "keys", len(r.Keys), "version", r.Version)
}

// Current returns the current keyring.
func (s *KeyringStore) Current() Keyring {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keyring
}

// Changed returns a channel that is closed at the next change of Current. Call
// it before Current.
func (s *KeyringStore) Changed() <-chan struct{} { return s.changed.Wait() }

// Update replaces the keyring by the result of f, and returns the new keyring.
// It changes the file first, and then all pools. After an error of f or of the
// disk, the keyring is unchanged. If f returns the current keyring, Update does
// nothing.
func (s *KeyringStore) Update(f func(Keyring) (Keyring, error)) (Keyring, error) {
	s.updating.Lock()
	defer s.updating.Unlock()
	old := s.Current()
	r, err := f(old)
	if err != nil || r.Version == old.Version && slices.Equal(r.Keys, old.Keys) {
		return old, err
	}
	if err := s.save(r); err != nil {
		return old, err
	}
	s.apply(r)
	s.mu.Lock()
	s.keyring = r
	s.mu.Unlock()
	s.changed.Notify()
	s.log("gossip keyring changed", r)
	return r, nil
}

// AcceptNewer replaces the keyring by an encrypted keyring that supersedes it.
// changed reports whether the keyring was replaced. The error is ErrNoSharedKey
// if the current keyring cannot decrypt the encrypted keyring.
func (s *KeyringStore) AcceptNewer(encrypted []EncryptedKeyring) (changed bool, err error) {
	_, err = s.Update(func(current Keyring) (Keyring, error) {
		newer, err := current.Decrypt(encrypted)
		if err != nil || !newer.Supersedes(current) {
			return current, err
		}
		changed = true
		return newer, nil
	})
	return changed && err == nil, err
}

// Reconcile restores the keys of the pools if they differ from the keyring, and
// reports whether they differed. Any member can change them with a key query of
// serf. Servers of wanfed do not send key queries.
func (s *KeyringStore) Reconcile() bool {
	s.updating.Lock()
	defer s.updating.Unlock()
	r := s.Current()
	live := s.live.GetKeys()
	same := len(live) == len(r.Keys) && bytes.Equal(live[0], r.Keys[0].b[:])
	for _, key := range r.Keys {
		same = same && slices.ContainsFunc(live, func(b []byte) bool { return bytes.Equal(b, key.b[:]) })
	}
	if same {
		return false
	}
	s.apply(r)
	s.cfg.Logger.Warn("restored gossip keys that a member of the pool had changed without wanfed keyring")
	return true
}

// apply makes the pools use r.
//
// memberlist reads its list of keys without a lock, and RemoveKey moves the
// keys after the removed key in place. Therefore only the last key can be
// removed safely. apply removes keys from the end until no obsolete key is
// left, and then adds the current keys again. Packets that arrive within these
// microseconds may be dropped.
func (s *KeyringStore) apply(r Keyring) {
	add := func() {
		for _, key := range r.Keys {
			_ = s.live.AddKey(bytes.Clone(key.b[:])) // fails only for a wrong size
		}
	}
	add()
	_ = s.live.UseKey(bytes.Clone(r.Keys[0].b[:])) // the key was just added
	obsolete := func(b []byte) bool {
		return !slices.ContainsFunc(r.Keys, func(key Key) bool { return bytes.Equal(key.b[:], b) })
	}
	for live := s.live.GetKeys(); slices.ContainsFunc(live, obsolete); live = s.live.GetKeys() {
		_ = s.live.RemoveKey(live[len(live)-1]) // not the primary key, which is first
	}
	add()
}

// save writes the file.
func (s *KeyringStore) save(r Keyring) error {
	b, err := r.encode()
	if err == nil {
		err = atomicfile.WriteFile(s.cfg.Path, b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write keyring: %w", err)
	}
	return nil
}
