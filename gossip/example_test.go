// SPDX-License-Identifier: MPL-2.0

package gossip_test

import (
	"fmt"

	"github.com/wanfed/wanfed/gossip"
)

// Rotate a gossip key: add the new key, use it, remove the old one.
func ExampleKeyring() {
	oldKey, newKey := gossip.NewKey(), gossip.NewKey()
	r := gossip.Keyring{Keys: []gossip.Key{oldKey}}
	for _, step := range []func(gossip.Keyring) (gossip.Keyring, error){
		func(r gossip.Keyring) (gossip.Keyring, error) { return r.Add(newKey) },
		func(r gossip.Keyring) (gossip.Keyring, error) { return r.Use(newKey) },
		func(r gossip.Keyring) (gossip.Keyring, error) { return r.Remove(oldKey) },
	} {
		var err error
		if r, err = step(r); err != nil {
			panic(err)
		}
	}
	fmt.Println(r.Version, len(r.Keys), r.Primary() == newKey)
	// Output: 3 1 true
}

// A server that shares a key can decrypt the keyring of another one.
func ExampleKeyring_Encrypt() {
	shared := gossip.NewKey()
	sender := gossip.Keyring{Version: 4, Keys: []gossip.Key{gossip.NewKey(), shared}}
	encrypted, err := sender.Encrypt(nil)
	if err != nil {
		panic(err)
	}
	receiver := gossip.Keyring{Keys: []gossip.Key{shared}}
	got, err := receiver.Decrypt(encrypted)
	if err != nil {
		panic(err)
	}
	fmt.Println(got.Version, got.Supersedes(receiver))
	// Output: 4 true
}
