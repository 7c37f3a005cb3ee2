// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/wanfed/wanfed/internal/testutil"
)

// TestTunnel_EncryptedGossip checks that the tunnel carries encrypted packets
// and streams unchanged, also over Consul's protocols, and while the key
// changes.
func TestTunnel_EncryptedGossip(t *testing.T) {
	for name, start := range map[string]func(*node) *node{
		"the tunnel's protocols": func(n *node) *node { return n.start(listen(t)) },
		"Consul's protocols":     (*node).asConsul,
	} {
		t.Run(name, func(t *testing.T) {
			a := newAuthority(t)
			near := newNode(t, a, "srv1", "dc1").start(listen(t))
			far := start(newNode(t, a, "srv1", "dc2"))
			for _, pair := range [][2]*node{{near, far}, {far, near}} {
				gw := newFakeGateway(t, listen(t), pair[1].dc, map[string]string{"srv1": pair[1].addr})
				pair[0].book.Store(&AddressBook{Paths: map[string][]Path{pair[1].dc: {{Addr: gw.addr, Via: "remote gateway"}}}})
			}
			keys := [][]byte{bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)}
			x, xKeys, _ := encryptedMember(t, near, keys[0])
			y, yKeys, got := encryptedMember(t, far, keys[0])
			if _, err := x.Join([]string{"srv1.dc2/192.0.2.2:1"}); err != nil {
				t.Fatal(err)
			}
			for i, step := range []func(*memberlist.Keyring) error{
				func(k *memberlist.Keyring) error { return k.AddKey(keys[1]) },
				func(k *memberlist.Keyring) error { return k.UseKey(keys[1]) },
				func(k *memberlist.Keyring) error { return k.RemoveKey(keys[0]) },
			} {
				for _, k := range []*memberlist.Keyring{xKeys, yKeys} {
					if err := step(k); err != nil {
						t.Fatal(err)
					}
				}
				testutil.Eventually(t, 10*time.Second, func() bool { return x.NumMembers() == 2 && y.NumMembers() == 2 },
					"two members on both sides")
				large := bytes.Repeat([]byte{byte('a' + i)}, 1<<20)
				to := x.Members()[0]
				if to.Name != "srv1.dc2" {
					to = x.Members()[1]
				}
				if err := x.SendReliable(to, large); err != nil { // a stream
					t.Fatal(err)
				}
				awaitMessage(t, got, large)
				if err := x.SendBestEffort(to, large[:1000]); err != nil { // a packet
					t.Fatal(err)
				}
				awaitMessage(t, got, large[:1000])
			}
			if alive(x) != "srv1.dc1 srv1.dc2" || alive(y) != "srv1.dc1 srv1.dc2" {
				t.Errorf("members: %s, %s", alive(x), alive(y))
			}
			if consul := near.tun.speaksConsul("dc2"); consul != (name == "Consul's protocols") {
				t.Errorf("speaksConsul(dc2) = %v, want the opposite", consul)
			}
		})
	}
}

func awaitMessage(t *testing.T, got <-chan []byte, want []byte) {
	t.Helper()
	select {
	case b := <-got:
		if !bytes.Equal(b, want) {
			t.Fatalf("received %d bytes, want the %d that were sent", len(b), len(want))
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("a message of %d bytes was not received", len(want))
	}
}

// encryptedMember starts a memberlist on n and returns the messages it
// receives.
func encryptedMember(t *testing.T, n *node, key []byte) (*memberlist.Memberlist, *memberlist.Keyring, <-chan []byte) {
	t.Helper()
	ring, err := memberlist.NewKeyring(nil, key)
	if err != nil {
		t.Fatal(err)
	}
	got := messages(make(chan []byte, 8)) // more than the test sends
	conf := memberlist.DefaultWANConfig()
	conf.Name, conf.RequireNodeNames = n.name+"."+n.dc, true
	conf.Transport, conf.Keyring, conf.Delegate = n.tun.Transport(PoolWAN), ring, got
	conf.LogOutput = io.Discard
	conf.GossipInterval, conf.PushPullInterval = 20*time.Millisecond, 200*time.Millisecond
	m, err := memberlist.Create(conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Shutdown() })
	return m, ring, got
}

// messages is a memberlist.Delegate that collects user messages.
type messages chan []byte

func (m messages) NotifyMsg(b []byte)                       { m <- bytes.Clone(b) }
func (messages) NodeMeta(int) []byte                        { return nil }
func (messages) GetBroadcasts(overhead, limit int) [][]byte { return nil }
func (messages) LocalState(bool) []byte                     { return nil }
func (messages) MergeRemoteState([]byte, bool)              {}
