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
	// Path of the file that stores the keyring. Required. Its directory must
	// exist.
	Path string
	// InitialKey is the key of a new keyring if the file does not exist.
	// Default: gossip is not encrypted if the file does not exist.
	InitialKey *Key
	// Logger is required.
	Logger *slog.Logger
}

// KeyringStore stores the keyring of one server on disk and applies it to all of
// the server's pools. All methods may be called from any goroutine.
type KeyringStore struct {
	cfg     KeyringStoreConfig
	live    *memberlist.Keyring // used by the pools
	changed broadcast.Broadcast

	updating sync.Mutex // serializes changes; held while the file is written
	mu       sync.Mutex
	keyring  Keyring
}

// OpenKeyringStore reads the keyring from disk. If no file exists, it creates
// a keyring with the configured key and writes it. A file takes precedence over
// the configured key, because it contains later changes by operators. If there
// is neither a file nor a configured key, OpenKeyringStore returns nil, and
// gossip is not encrypted. The error for a damaged file names the remedy. A
// KeyringStore need not be closed.
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

// Update replaces the keyring with the result of f. It changes the disk first
// and then all pools at once. It returns the new keyring. After an error of f
// or of the disk, the keyring is unchanged. A result equal to the current
// keyring is not written.
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

// AcceptNewer replaces the keyring with the encrypted keyring if the latter
// supersedes it. changed reports whether the keyring was replaced. The error is
// ErrNoSharedKey if no key decrypts the encrypted keyring.
func (s *KeyringStore) AcceptNewer(encrypted []EncryptedKeyring) (changed bool, err error) {
	_, err = s.Update(func(r Keyring) (Keyring, error) {
		got, err := r.Decrypt(encrypted)
		if err != nil || !got.Supersedes(r) {
			return r, err
		}
		changed = true
		return got, nil
	})
	return changed && err == nil, err
}

// Reconcile restores the keys of the pools if another program has changed them.
// It reports whether the keys had changed. Serf executes key queries from any
// member, but wanfed servers do not send them.
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

// apply makes the pools use r. memberlist reads its list of keys without a lock,
// and RemoveKey moves the keys behind the removed one in place, so only the last
// key can be removed safely. Therefore apply removes all keys from the last to
// the first obsolete one, and then adds the current keys again. Packets that
// arrive within those microseconds may be dropped.
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
		_ = s.live.RemoveKey(live[len(live)-1]) // never the primary, which is first
	}
	add()
}

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
