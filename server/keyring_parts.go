// SPDX-License-Identifier: MPL-2.0

package server

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/gossip"
)

// status is what this server's status says of its keys.
func (k *keyring) status() api.GossipStatus {
	s := k.self()
	out := api.GossipStatus{
		Encrypted: len(s.Fingerprints) > 0, Keys: len(s.Fingerprints), Version: s.Version,
		AcceptsPlain: s.AcceptsPlain, SendsPlain: s.SendsPlain,
	}
	if out.Encrypted {
		out.Primary = s.Fingerprints[0]
	}
	return out
}

// detail is status in words.
func (k *keyring) detail() string {
	s := k.status()
	if !s.Encrypted {
		return "not encrypted"
	}
	text := fmt.Sprintf("encrypted with %s, version %d, %d keys", s.Primary, s.Version, s.Keys)
	if s.Keys == 1 {
		text = strings.TrimSuffix(text, "s")
	}
	if s.SendsPlain {
		text += "; what is sent is not encrypted yet"
	}
	if s.AcceptsPlain {
		text += "; plain gossip is accepted too"
	}
	return text
}

// buildKeys opens the keyring of the data dir, or begins one.
func (p *parts) buildKeys() (err error) {
	var first *gossip.Key
	if p.cfg.EncryptFile != "" {
		key, err := gossip.ReadKeyFile(p.cfg.EncryptFile, p.logger)
		if err != nil {
			return err
		}
		first = &key
	}
	p.keys, err = gossip.OpenKeyringStore(gossip.KeyringStoreConfig{Path: filepath.Join(p.cfg.DataDir, "keyring.json"), InitialKey: first, Logger: p.logger})
	return err
}

func (p *parts) buildKeyring() error {
	p.keyring = &keyring{
		cfg: p.cfg, keys: p.keys, lan: p.lan, wan: p.wan, peers: p.store.Peers, book: p.book, dialer: p.dialer, conns: p.calls, logger: p.logger,
		turn: make(chan struct{}, 1), told: map[string]string{},
	}
	return nil
}
