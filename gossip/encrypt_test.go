// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"path/filepath"
	"testing"
)

// keyed makes newNode's nodes encrypt gossip.
func keyed(t *testing.T, acceptPlain, sendPlain bool, keys ...Key) func(*Config) {
	t.Helper()
	ring := openKeyring(t, filepath.Join(t.TempDir(), "keyring.json"), &keys[0])
	for _, k := range keys[1:] {
		if _, err := ring.Update(func(r Keyring) (Keyring, error) { return r.Add(k) }); err != nil {
			t.Fatal(err)
		}
	}
	return func(c *Config) { c.Keyring, c.AcceptPlaintext, c.SendPlaintext = ring, acceptPlain, sendPlain }
}

// TestWhoUnderstandsWhom pairs members with and without keys. Two that are one step apart on the way from plain to encrypted
// gossip understand each other, at every step.
func TestWhoUnderstandsWhom(t *testing.T) {
	a, b := NewKey(), NewKey()
	plain := func(*Config) {}
	for _, tt := range []struct {
		what string
		x, y func(*Config)
		ok   bool
	}{
		{"one key", keyed(t, false, false, a), keyed(t, false, false, a), true},
		{"in the middle of a rotation", keyed(t, false, false, a, b), keyed(t, false, false, b, a), true},
		{"another key", keyed(t, false, false, a), keyed(t, false, false, b), false},
		{"none, against a key", plain, keyed(t, false, false, a), false},
		{"step 1 against none", keyed(t, true, true, a), plain, true},
		{"step 2 against step 1", keyed(t, true, false, a), keyed(t, true, true, a), true},
		{"step 3 against step 2", keyed(t, false, false, a), keyed(t, true, false, a), true},
		{"step 3 against none", keyed(t, false, false, a), plain, false},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			var net network
			x, y := newNode(t, &net, "x", nil, tt.x), newNode(t, &net, "y", nil, tt.y)
			err := x.Join(t.Context(), y.addr())
			if (err == nil) != tt.ok {
				t.Fatalf("Join() = %v", err)
			}
			if !tt.ok {
				<-y.ready
				if n := len(x.Members()) + len(y.Members()); n != 2 {
					t.Errorf("%d members, want themselves only", n)
				}
				return
			}
			x.await(t, "joined", has("y", y.cfg.Advertise.String(), StatusAlive))
			y.await(t, "joined", has("x", x.cfg.Advertise.String(), StatusAlive))
			y.stop()
			x.await(t, "left", has("y", y.cfg.Advertise.String(), StatusLeft)) // packets are understood too
		})
	}
}

// TestKeysSurviveAMove: the serf that takes another's place has the same keys.
func TestKeysSurviveAMove(t *testing.T) {
	t.Parallel()
	var net network
	k := NewKey()
	a, b := newNode(t, &net, "a", nil, keyed(t, false, false, k)), newNode(t, &net, "b", nil, keyed(t, false, false, k))
	if err := b.Join(t.Context(), a.addr()); err != nil {
		t.Fatal(err)
	}
	a.await(t, "joined", has("b", b.cfg.Advertise.String(), StatusAlive))
	b.kill(t)
	moved := newNode(t, &net, "b", nil, keyed(t, false, false, k))
	if err := moved.Join(t.Context(), a.addr()); err != nil {
		t.Fatal(err)
	}
	a.await(t, "moved", has("b", moved.cfg.Advertise.String(), StatusAlive))
}
