// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"path/filepath"
	"testing"

	"github.com/wanfed/wanfed/gossip/gossiptest"
)

// withKeys returns an option of newNode that encrypts gossip.
func withKeys(t *testing.T, acceptPlaintext, sendPlaintext bool, keys ...Key) func(*Config) {
	t.Helper()
	store := openStore(t, filepath.Join(t.TempDir(), "keyring.json"), &keys[0])
	for _, k := range keys[1:] {
		if _, err := store.Update(func(r Keyring) (Keyring, error) { return r.Add(k) }); err != nil {
			t.Fatal(err)
		}
	}
	return func(c *Config) {
		c.Keyring, c.AcceptPlaintext, c.SendPlaintext = store, acceptPlaintext, sendPlaintext
	}
}

// Encryption of a pool is enabled in three steps. In step 1, members accept
// both forms and send plaintext. In step 2, they send encrypted gossip. In step
// 3, they no longer accept plaintext. Two members that are at most one step
// apart can exchange gossip.
func TestEncryption_MembersOneStepApart(t *testing.T) {
	a, b := NewKey(), NewKey()
	plain := func(*Config) {}
	for _, tt := range []struct {
		name string
		x, y func(*Config)
		ok   bool
	}{
		{"same key", withKeys(t, false, false, a), withKeys(t, false, false, a), true},
		{"during a rotation", withKeys(t, false, false, a, b), withKeys(t, false, false, b, a), true},
		{"different keys", withKeys(t, false, false, a), withKeys(t, false, false, b), false},
		{"no key and a key", plain, withKeys(t, false, false, a), false},
		{"step 1 and no key", withKeys(t, true, true, a), plain, true},
		{"step 2 and step 1", withKeys(t, true, false, a), withKeys(t, true, true, a), true},
		{"step 3 and step 2", withKeys(t, false, false, a), withKeys(t, true, false, a), true},
		{"step 3 and no key", withKeys(t, false, false, a), plain, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var net gossiptest.Network
			x, y := newNode(t, &net, "x", tt.x), newNode(t, &net, "y", tt.y)
			err := x.Join(t.Context(), y.addr())
			if (err == nil) != tt.ok {
				t.Fatalf("Join() = %v, want success %v", err, tt.ok)
			}
			if !tt.ok {
				<-y.ready
				if inX, inY := len(x.Members()), len(y.Members()); inX != 1 || inY != 1 {
					t.Errorf("Members() has %d members in x and %d in y, want 1 and 1", inX, inY)
				}
				return
			}
			x.await(t, has("y", y.cfg.Advertise.String(), StatusAlive))
			y.await(t, has("x", x.cfg.Advertise.String(), StatusAlive))
			y.stop() // the leave message is a packet, while Join uses a stream
			x.await(t, has("y", y.cfg.Advertise.String(), StatusLeft))
		})
	}
}

// A rejoin does not change the keys.
func TestEncryption_AfterRejoin(t *testing.T) {
	t.Parallel()
	var net gossiptest.Network
	k := NewKey()
	a := newNode(t, &net, "a", withKeys(t, false, false, k))
	b := newNode(t, &net, "b", withKeys(t, false, false, k))
	if err := b.Join(t.Context(), a.addr()); err != nil {
		t.Fatal(err)
	}
	a.await(t, has("b", b.cfg.Advertise.String(), StatusAlive))
	b.kill(t)
	moved := newNode(t, &net, "b", withKeys(t, false, false, k))
	if err := moved.Join(t.Context(), a.addr()); err != nil {
		t.Fatal(err)
	}
	a.await(t, has("b", moved.cfg.Advertise.String(), StatusAlive))
}
