// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bytes"
	"compress/lzw"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/memberlist"

	"github.com/wanfed/wanfed/gossip/gossiptest"
	"github.com/wanfed/wanfed/internal/testutil"
)

// encoded returns the msgpack encoding of v after the bytes of prefix.
func encoded(v any, prefix ...byte) []byte {
	b := bytes.NewBuffer(prefix)
	if err := codec.NewEncoder(b, &codec.MsgpackHandle{}).Encode(v); err != nil {
		panic(err)
	}
	return b.Bytes()
}

type leaveMessage struct {
	LTime uint64
	Node  string
	Prune bool
}

type userEvent struct {
	LTime   uint64
	Name    string
	Payload []byte
}

func compressed(b []byte) []byte {
	var z bytes.Buffer
	w := lzw.NewWriter(&z, lzw.LSB, 8)
	w.Write(b)
	w.Close()
	return encoded(struct {
		Algo uint8
		Buf  []byte
	}{0, z.Bytes()}, compressMsg)
}

// sealed encrypts b as memberlist does.
func sealed(key []byte, version byte, b, additional []byte) []byte {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	out := append([]byte{version}, make([]byte, nonceSize)...)
	return gcm.Seal(out, out[1:], b, additional)
}

const (
	eventType    = 3 // of serf, a user event
	relayType    = 9
	conflictType = 6
)

// A peer sends messages that servers do not use, or that are too large. The
// member list stays, nothing is kept, and the reasons are counted.
func TestPool_RefusesInput(t *testing.T) {
	t.Parallel()
	var n gossiptest.Network
	a, b := newNode(t, &n, "a"), newNode(t, &n, "b")
	if err := a.Join(t.Context(), b.addr()); err != nil {
		t.Fatal(err)
	}
	bomb := compressed(encoded(userEvent{7, "x", make([]byte, 1<<20)}, userMsg, eventType))
	event := encoded(userEvent{7, "x", make([]byte, 100)}, userMsg, eventType)
	for _, test := range []struct {
		name, reason string
		packet       []byte
	}{
		{"bomb", refusedLarge, bomb},
		{"bomb in a list", refusedKind, compound([][]byte{bomb})},
		{"bomb in a bomb", refusedKind, compressed(bomb)},
		{"large packet", refusedLarge, make([]byte, maxPacket+1)},
		{"list in a list", refusedKind, compound([][]byte{compound([][]byte{{ackMsg}})})},
		{"truncated list", refusedMalformed, []byte{compoundMsg, 2, 0, 1, 0, 9, ackMsg}},
		{"empty compressed", refusedMalformed, compressed(nil)},
		{"user event", refusedKind, event},
		{"compressed user event", refusedKind, compressed(event)},
		{"query", refusedKind, []byte{userMsg, 4, 0x80}},
		{"response", refusedKind, []byte{userMsg, 5, 0x80}},
		{"conflict", refusedKind, []byte{userMsg, conflictType, 0x80}},
		{"relay", refusedKind, []byte{userMsg, relayType, 0x80}},
		{"key request", refusedKind, []byte{userMsg, 7, 0x80}},
		{"prune", refusedPrune, encoded(leaveMessage{9, "b", true}, userMsg, leaveType)},
		{"clock", refusedClock, encoded(leaveMessage{math.MaxUint64, "b", false}, userMsg, leaveType)},
		{"long name", refusedNames, encoded(leaveMessage{9, strings.Repeat("n", 200), false}, userMsg, leaveType)},
		{"long intent", refusedLarge, encoded(leaveMessage{9, strings.Repeat("n", 300), false}, userMsg, leaveType)},
		{"not msgpack", refusedMalformed, []byte{userMsg, joinType, 0xc1}},
	} {
		before := a.Refused()[test.reason]
		n.Transport("a").Deliver(test.packet, "c")
		a.awaitRefused(t, test.name, test.reason, before+1)
	}
	a.await(t, has("b", b.cfg.Advertise.String(), StatusAlive))
	b.stop() // its leave intent is not refused
	a.await(t, has("b", b.cfg.Advertise.String(), StatusLeft))
}

// The same packets as those that took 45 MB each, and intents of names without
// a member, leave the memory as it was.
func TestPool_MemoryUnderAttack(t *testing.T) {
	var n gossiptest.Network
	a := newNode(t, &n, "a")
	send := func(b []byte) {
		n.Transport("a").Deliver(b, "c")
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse
	}
	before := heap()
	for i := range 20 {
		payload := make([]byte, 38<<20)
		copy(payload, fmt.Sprint(i))
		send(compressed(encoded(userEvent{7, "x", payload}, userMsg, eventType)))
	}
	for i := range 300 {
		var intents [][]byte
		for j := range 100 {
			intents = append(intents, encoded(leaveMessage{5, fmt.Sprintf("%0100d", i*100+j), false}, userMsg,
				leaveType))
			if len(compound(intents)) > maxPacket-200 {
				break
			}
		}
		send(compound(intents))
	}
	a.awaitRefused(t, "intents", refusedNames, 1)
	if after := heap(); after > before+8<<20 {
		t.Errorf("heap = %d MB after %v, %d MB before; want 8 MB more at most", after>>20, a.Refused(), before>>20)
	}
}

// state returns a state exchange of nodes members and serf's part user.
func state(nodes, announced int, name string, user []byte) []byte {
	b := encoded(struct {
		Nodes, UserStateLen int
		Join                bool
	}{announced, len(user), false}, pushPullMsg)
	for range nodes {
		b = append(b, encoded(struct {
			Name            string
			Addr, Meta, Vsn []byte
		}{name, []byte{127, 0, 0, 9}, make([]byte, 512), []byte{1, 5, 2, 2, 5, 5}})...)
	}
	return append(b, user...)
}

func TestPool_RefusesState(t *testing.T) {
	t.Parallel()
	var n gossiptest.Network
	a := newNode(t, &n, "a")
	for _, test := range []struct {
		name, reason string
		stream       []byte
	}{
		{"bomb", refusedLarge, compressed(state(maxMembers, maxMembers, strings.Repeat("n", 127), nil))},
		{"bomb after a state", refusedMalformed, compressed(append(state(0, 0, "", nil), make([]byte, maxState)...))},
		{"bomb in a bomb", refusedKind, compressed(compressed(make([]byte, maxState)))},
		{"too many members", refusedNames, state(0, maxMembers+1, "", nil)},
		{"long name", refusedNames, state(1, 1, strings.Repeat("n", 200), nil)},
		{"large state of serf", refusedLarge, state(0, 0, "", make([]byte, maxUserState+1))},
		{"large", refusedLarge, state(maxMembers, maxMembers, strings.Repeat("n", 127), nil)},
		{"user message", refusedKind, encoded(struct{ UserMsgLen int }{1 << 20}, userMsg)},
		{"long ping", refusedMalformed, encoded(struct{ Node string }{strings.Repeat("n", maxReply)}, pingMsg)},
		{"unencrypted pool", refusedKind, []byte{encryptMsg, 0, 0, 0, 0}},
		{"clock", refusedClock, state(0, 0, "", encoded(exchangedState{LTime: math.MaxUint64}, stateType))},
		{"names", refusedNames, state(0, 0, "", encoded(manyNames(2*maxUnknown), stateType))},
		{"too many names", refusedNames, state(0, 0, "", encoded(manyNames(maxMembers+1), stateType))},
		{"other state", refusedKind, state(0, 0, "", []byte{eventType})},
	} {
		before := a.Refused()[test.reason]
		conn, err := n.Transport("a").DialAddressTimeout(memberlist.Address{Name: "a"}, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		go func() { _, _ = conn.Write(test.stream) }()
		go func() { _, _ = bytes.NewBuffer(nil).ReadFrom(conn) }()
		a.awaitRefused(t, test.name, test.reason, before+1)
		conn.Close()
	}
	// memberlist closes a stream after the refusal is counted.
	testutil.Eventually(t, 10*time.Second, func() bool { return a.inspector.pendingState.Load() == 0 },
		"pendingState = 0 after all streams")
}

// awaitRefused waits until the pool has refused at least n inputs for a reason.
func (n *node) awaitRefused(t *testing.T, input, reason string, count uint64) {
	t.Helper()
	testutil.Eventually(t, 10*time.Second, func() bool { return n.Refused()[reason] >= count },
		"%s: Refused()[%q] >= %d", input, reason, count)
}

func manyNames(n int) exchangedState {
	s := exchangedState{StatusLTimes: map[string]uint64{}}
	for i := range n {
		s.StatusLTimes[fmt.Sprint(i)] = 1
	}
	return s
}

// All accepted streams have one limit together.
func TestPool_RefusesConcurrentStates(t *testing.T) {
	t.Parallel()
	var n gossiptest.Network
	a := newNode(t, &n, "a")
	a.inspector.pendingState.Store(maxPendingState) // of other streams
	conn, err := n.Transport("a").DialAddressTimeout(memberlist.Address{Name: "a"}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() { _, _ = conn.Write(state(1, 1, "n", nil)) }()
	a.awaitRefused(t, "state", refusedBusy, 1)
	// The state of a member that this member dials has a limit of its own.
	b := newNode(t, &n, "b")
	if err := a.Join(t.Context(), b.addr()); err != nil {
		t.Errorf("Join() during the exchanges = %v, want nil", err)
	}
}

// The limits also apply to encrypted gossip. A peer with the key cannot crash
// memberlist by an empty message or by a wrong padding.
func TestInspector_Encrypted(t *testing.T) {
	key := bytes.Repeat([]byte{1}, 16)
	keyring, err := memberlist.NewKeyring(nil, key)
	if err != nil {
		t.Fatal(err)
	}
	in := newInspector(Config{}, keyring, nil)
	bomb := compressed(make([]byte, 1<<20))
	for _, test := range []struct {
		name, reason string
		packet       []byte
	}{
		{"message", "", sealed(key, 1, []byte{ackMsg, 0x80}, nil)},
		{"plain text, which memberlist refuses", "", []byte{ackMsg, 0x80}},
		{"bomb", refusedLarge, sealed(key, 1, bomb, nil)},
		{"bomb with a checksum", refusedLarge, sealed(key, 1, append([]byte{crcMsg, 0, 0, 0, 0}, bomb...), nil)},
		{"empty", refusedMalformed, sealed(key, 1, nil, nil)},
		{"padding", refusedMalformed, sealed(key, 0, bytes.Repeat([]byte{255}, 16), nil)},
	} {
		_, err := in.checkPacket(test.packet, "a")
		if got := reasonOf(err); got != test.reason {
			t.Errorf("%s: checkPacket() = %q, want %q", test.name, got, test.reason)
		}
	}
	stream := func(b []byte) []byte {
		head := binary.BigEndian.AppendUint32([]byte{encryptMsg}, uint32(len(b)+minSealed))
		return append(head, sealed(key, 1, b, head)...)
	}
	for _, test := range []struct {
		name, reason string
		stream       []byte
	}{
		{"state", "", stream(state(2, 2, "n", []byte{stateType}))},
		{"compressed state", "", stream(compressed(state(2, 2, "n", []byte{stateType})))},
		{"empty", refusedMalformed, stream(nil)},
		{"bomb", refusedLarge, stream(compressed(state(maxMembers, maxMembers, strings.Repeat("n", 127), nil)))},
		{"large", refusedLarge, []byte{encryptMsg, 0xff, 0, 0, 0}},
	} {
		c := &inspectedConn{Conn: readConn{Reader: bytes.NewReader(test.stream)}, in: in}
		if got := reasonOf(c.inspect()); got != test.reason {
			t.Errorf("%s: inspect() = %q, want %q", test.name, got, test.reason)
		}
		if !bytes.Equal(c.message.Bytes(), test.stream) && test.reason == "" {
			t.Errorf("%s: memberlist reads %d bytes, want the %d bytes of the peer",
				test.name, c.message.Len(), len(test.stream))
		}
	}
}
