// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/hashicorp/memberlist"
)

// KeyringStoreConfig configures a Keyring.
type KeyringStoreConfig struct {
	// Path of the file that keeps the ring. Required; its folder must exist.
	Path string
	// First is the key to begin with when there is no file; nil: then gossip is not encrypted.
	InitialKey *Key
	// Logger. Required.
	Logger *slog.Logger
}

// Keyring is the ring of gossip keys of one server: kept on disk, and used by all of its pools. All methods may be called
// from any goroutine.
type KeyringStore struct {
	cfg  KeyringStoreConfig
	live *memberlist.Keyring // what pools use

	set     sync.Mutex // one change at a time; held while the file is written
	mu      sync.Mutex
	ring    Keyring
	changed chan struct{} // closed and replaced after ring changed
}

// OpenKeyringStore reads the ring from disk, or begins one with the configured key and writes it. What is on disk wins: it has
// the changes that operators made since. It returns nil when there is neither: gossip is not encrypted. A damaged file is
// an error that says what to do. There is nothing to close.
func OpenKeyringStore(cfg KeyringStoreConfig) (*KeyringStore, error) {
	if cfg.Path == "" || cfg.Logger == nil {
		return nil, errors.New("gossip: Path and Logger of KeyringConfig are required")
	}
	k := &KeyringStore{cfg: cfg, live: &memberlist.Keyring{}, changed: make(chan struct{})}
	b, err := os.ReadFile(cfg.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if cfg.InitialKey == nil {
			return nil, nil
		}
		k.ring = Keyring{Keys: []Key{*cfg.InitialKey}}
		if err := k.save(k.ring); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, fmt.Errorf("read keyring: %w", err)
	default:
		if k.ring, err = decodeRing(b); err != nil {
			return nil, fmt.Errorf("keyring file %s is damaged: %w; put back a copy of it, or remove it and start with --encrypt-file, "+
				"which names a file with a key that the other servers have", cfg.Path, err)
		}
		warnMode(cfg.Path, cfg.Logger)
		if cfg.InitialKey != nil && k.ring.Primary() != *cfg.InitialKey {
			cfg.Logger.Info("the key of encrypt_file is not the primary: the keyring in the data dir is used, which has the changes "+
				"made since", "configured", cfg.InitialKey.Fingerprint(), "primary", k.ring.Primary().Fingerprint())
		}
	}
	k.apply(k.ring)
	cfg.Logger.Info("gossip is encrypted", "primary", k.ring.Primary().Fingerprint(), "keys", len(k.ring.Keys), "version", k.ring.Version)
	return k, nil
}

// Keyring returns the present ring.
func (k *KeyringStore) Current() Keyring {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ring
}

// Changed returns a channel that is closed at the next change of Keyring. Take it before Keyring.
func (k *KeyringStore) Changed() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.changed
}

// Update replaces the ring by what f makes of it: on disk first, then in all pools, at once. It returns the new ring; f's
// error, or that of the disk, leaves everything as it was. A ring that f returns as it was is not written.
func (k *KeyringStore) Update(f func(Keyring) (Keyring, error)) (Keyring, error) {
	k.set.Lock()
	defer k.set.Unlock()
	old := k.Current()
	r, err := f(old)
	if err != nil || r.Version == old.Version && slices.Equal(r.Keys, old.Keys) {
		return old, err
	}
	if err := k.save(r); err != nil {
		return old, err
	}
	k.apply(r)
	k.mu.Lock()
	k.ring = r
	close(k.changed)
	k.changed = make(chan struct{})
	k.mu.Unlock()
	k.cfg.Logger.Info("gossip keyring changed", "primary", r.Primary().Fingerprint(), "keys", len(r.Keys), "version", r.Version)
	return r, nil
}

// Offer takes the ring that sealed holds if it is newer. changed says whether it was. The error is ErrNoSharedKey when it
// cannot be opened.
func (k *KeyringStore) AcceptNewer(sealed []EncryptedKeyring) (changed bool, err error) {
	_, err = k.Update(func(r Keyring) (Keyring, error) {
		got, err := r.Decrypt(sealed)
		if err != nil || !got.Supersedes(r) {
			return r, err
		}
		changed = true
		return got, nil
	})
	return changed && err == nil, err
}

// Restore puts the pools' keys right if somebody else changed them: serf obeys queries about keys, which no server of ours
// sends. It says whether it had to.
func (k *KeyringStore) Reconcile() bool {
	k.set.Lock()
	defer k.set.Unlock()
	r := k.Current()
	live := k.live.GetKeys()
	same := len(live) == len(r.Keys) && bytes.Equal(live[0], r.Keys[0].b[:])
	for _, key := range r.Keys {
		same = same && slices.ContainsFunc(live, func(b []byte) bool { return bytes.Equal(b, key.b[:]) })
	}
	if same {
		return false
	}
	k.apply(r)
	k.cfg.Logger.Warn("gossip keys were changed by a member of the pool, not by wanfed keyring: put back")
	return true
}

// apply makes the pools use r. memberlist reads the list of keys without a lock, and RemoveKey moves what stands behind the
// key in place; only the last one can be removed safely. So all keys from the first that goes are removed, last first, and
// those that stay come back at once: for some microseconds gossip under one of them is dropped, as a lost packet is.
func (k *KeyringStore) apply(r Keyring) {
	for _, key := range r.Keys {
		_ = k.live.AddKey(bytes.Clone(key.b[:])) // its only error is a wrong size
	}
	_ = k.live.UseKey(bytes.Clone(r.Keys[0].b[:])) // it was just added
	gone := func(b []byte) bool {
		return !slices.ContainsFunc(r.Keys, func(key Key) bool { return bytes.Equal(key.b[:], b) })
	}
	for live := k.live.GetKeys(); slices.ContainsFunc(live, gone); live = k.live.GetKeys() {
		_ = k.live.RemoveKey(live[len(live)-1]) // never the primary, which is first and stays
	}
	for _, key := range r.Keys {
		_ = k.live.AddKey(bytes.Clone(key.b[:]))
	}
}

// save replaces the file in one step, with mode 0600.
func (k *KeyringStore) save(r Keyring) error {
	b, err := r.encode()
	if err == nil {
		err = replaceFile(k.cfg.Path, b)
	}
	if err != nil {
		return fmt.Errorf("write keyring: %w", err)
	}
	return nil
}

// replaceFile writes to another name first. That one is always the same, so that a crash leaves no more than one copy of keys.
func replaceFile(path string, b []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	_ = dir.Sync() // not every system can sync a folder; the file itself is safe
	return dir.Close()
}
