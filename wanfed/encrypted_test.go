// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"bytes"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/wanfed/wanfed/internal/testutil"
)

// TestTunnel_EncryptedGossip proves that the tunnel carries encrypted packets
// and streams unchanged, also over Consul's protocols, and during a change of
// the gossip key.
func TestTunnel_EncryptedGossip(t *testing.T) {
	t.Run("the tunnel's protocols", func(t *testing.T) {
		near := testEncryptedGossip(t, func(n *node) *node { return n.start(listen(t)) })
		if near.tun.speaksConsul("dc2") {
			t.Error("speaksConsul(dc2) = true, want false")
		}
	})
	t.Run("Consul's protocols", func(t *testing.T) {
		near := testEncryptedGossip(t, (*node).asConsul)
		if !near.tun.speaksConsul("dc2") {
			t.Error("speaksConsul(dc2) = false, want true")
		}
	})
}

// testEncryptedGossip connects a member of dc1 and a member of dc2, whose node
// startFar starts. It changes the key in three steps and sends messages at each
// step. It returns the node of dc1.
func testEncryptedGossip(t *testing.T, startFar func(*node) *node) *node {
	a := newAuthority(t)
	near := newNode(t, a, "srv1", "dc1").start(listen(t))
	far := startFar(newNode(t, a, "srv1", "dc2"))
	for _, pair := range [][2]*node{{near, far}, {far, near}} {
		from, to := pair[0], pair[1]
		gw := newFakeGateway(t, listen(t), to.dc, map[string]string{"srv1": to.addr})
		from.book.Store(&AddressBook{Paths: map[string][]Path{to.dc: {{Addr: gw.addr, Via: "remote gateway"}}}})
	}
	oldKey, newKey := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	sender, senderKeys, _ := encryptedMember(t, near, oldKey)
	receiver, receiverKeys, received := encryptedMember(t, far, oldKey)
	if _, err := sender.Join([]string{"srv1.dc2/192.0.2.2:1"}); err != nil {
		t.Fatalf("Join() = %v, want nil", err)
	}
	for i, step := range []func(*memberlist.Keyring) error{
		func(k *memberlist.Keyring) error { return k.AddKey(newKey) },
		func(k *memberlist.Keyring) error { return k.UseKey(newKey) },
		func(k *memberlist.Keyring) error { return k.RemoveKey(oldKey) },
	} {
		for _, keys := range []*memberlist.Keyring{senderKeys, receiverKeys} {
			if err := step(keys); err != nil {
				t.Fatal(err)
			}
		}
		testutil.Eventually(t, 10*time.Second,
			func() bool { return sender.NumMembers() == 2 && receiver.NumMembers() == 2 }, "two members on both sides")
		members := sender.Members()
		to := members[slices.IndexFunc(members, func(m *memberlist.Node) bool { return m.Name == "srv1.dc2" })]
		large := bytes.Repeat([]byte{byte('a' + i)}, 1<<20)
		if err := sender.SendReliable(to, large); err != nil { // over a stream
			t.Fatalf("SendReliable() = %v, want nil", err)
		}
		awaitMessage(t, received, large)
		if err := sender.SendBestEffort(to, large[:1000]); err != nil { // in a packet
			t.Fatalf("SendBestEffort() = %v, want nil", err)
		}
		awaitMessage(t, received, large[:1000])
	}
	const want = "srv1.dc1 srv1.dc2"
	if alive(sender) != want || alive(receiver) != want {
		t.Errorf("alive members = %q and %q, want %q for both", alive(sender), alive(receiver), want)
	}
	return near
}

func awaitMessage(t *testing.T, received <-chan []byte, want []byte) {
	t.Helper()
	select {
	case got := <-received:
		if !bytes.Equal(got, want) {
			t.Fatalf("received %d bytes, want the %d bytes that were sent", len(got), len(want))
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("received no message in 10 s, want %d bytes", len(want))
	}
}

// encryptedMember starts a memberlist on n. It returns the memberlist, its
// keyring, and the messages that it receives.
func encryptedMember(t *testing.T, n *node, key []byte) (*memberlist.Memberlist, *memberlist.Keyring, <-chan []byte) {
	t.Helper()
	ring, err := memberlist.NewKeyring(nil, key)
	if err != nil {
		t.Fatal(err)
	}
	received := messages(make(chan []byte, 8)) // has room for all messages of the test
	conf := memberlist.DefaultWANConfig()
	conf.Name, conf.RequireNodeNames = n.name+"."+n.dc, true
	conf.Transport, conf.Keyring, conf.Delegate = n.tun.Transport(PoolWAN), ring, received
	conf.LogOutput = io.Discard
	conf.GossipInterval, conf.PushPullInterval = 20*time.Millisecond, 200*time.Millisecond
	m, err := memberlist.Create(conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Shutdown() })
	return m, ring, received
}

// messages is a memberlist.Delegate that collects user messages.
type messages chan []byte

func (m messages) NotifyMsg(b []byte)                       { m <- bytes.Clone(b) }
func (messages) NodeMeta(int) []byte                        { return nil }
func (messages) GetBroadcasts(overhead, limit int) [][]byte { return nil }
func (messages) LocalState(bool) []byte                     { return nil }
func (messages) MergeRemoteState([]byte, bool)              {}
