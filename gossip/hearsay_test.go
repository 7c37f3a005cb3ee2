// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/wanfed/wanfed/gossip/gossiptest"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/wanfed"
)

// federation is a WAN pool with groups. Its members are called <node>.<dc>.
type federation struct {
	t     *testing.T
	net   gossiptest.Network
	nodes map[string]*node
}

func withGroups(c *Config) {
	c.Kind = wanfed.PoolWAN
	c.GroupOf = func(name string) string { _, group, _ := strings.Cut(name, "."); return group }
}

// newFederation starts members that join the first one.
func newFederation(t *testing.T, names ...string) *federation {
	f := &federation{t: t, nodes: map[string]*node{}}
	for _, name := range names {
		f.add(name)
	}
	for _, name := range names[1:] {
		if err := f.nodes[name].Join(t.Context(), f.nodes[names[0]].addr()); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func (f *federation) add(name string) *node {
	n := newNode(f.t, &f.net, name, withGroups)
	f.nodes[name] = n
	return n
}

// differences returns the members that a node lists otherwise than they are.
func (f *federation) differences(at string) (out []string) {
	listed := f.nodes[at].Members()
	for _, m := range listed {
		n := f.nodes[m.Name]
		if n == nil {
			out = append(out, m.Name+" is invented")
		} else if err := has(m.Name, n.cfg.Advertise.String(), StatusAlive)([]Member{m}); err != nil ||
			!maps.Equal(m.Tags, n.currentTags()) {
			out = append(out, fmt.Sprintf("%+v differs", m))
		}
	}
	for name := range f.nodes {
		if !slices.ContainsFunc(listed, func(m Member) bool { return m.Name == name }) {
			out = append(out, name+" is missing")
		}
	}
	return out
}

// awaitCorrect waits until all nodes list the members as they are.
func (f *federation) awaitCorrect(limit time.Duration, when string) {
	f.t.Helper()
	start := time.Now()
	for name := range f.nodes {
		for len(f.differences(name)) > 0 {
			if time.Since(start) > limit {
				f.t.Fatalf("%s, after %v: members at %s: %s", when, limit, name, strings.Join(f.differences(name), "; "))
			}
			time.Sleep(10 * time.Millisecond) // in the time of synctest
			synctest.Wait()
		}
	}
}

func (f *federation) stop() {
	for _, n := range f.nodes {
		n.stop()
	}
	time.Sleep(time.Minute) // in the time of synctest: memberlist's probes and exchanges end
}

var forgedTags = encodeTags("of", "evil")

func forgedAlive(name string, incarnation uint32, last byte) []byte {
	return encodeMessage(aliveMsg, aliveMessage{incarnation, name, []byte{127, 0, 0, last}, 1, forgedTags,
		[]byte{1, 5, 2, 2, 5, 5}})
}

func forgedDead(name string, incarnation uint32, from string) []byte {
	return encodeMessage(deadMsg, struct {
		Incarnation uint32
		Node, From  string
	}{incarnation, name, from})
}

// forgeries are what a server of dc3 sends about members of other datacenters, by
// kind.
func forgeries() map[string]func(i int) []byte {
	victim := func(i int) string { return []string{"srv1.dc1", "srv1.dc2"}[i%2] }
	incarnation := func(i int) uint32 { return []uint32{2, 60000, math.MaxUint32}[i/2%3] }
	return map[string]func(i int) []byte{
		"tags": func(i int) []byte {
			return encodeMessage(aliveMsg, aliveMessage{incarnation(i), victim(i), []byte{127, 0, 0, 1}, uint16(1 + i%2*2),
				forgedTags, []byte{1, 5, 2, 2, 5, 5}})
		},
		"address": func(i int) []byte { return forgedAlive(victim(i), incarnation(i), 9) },
		"suspect": func(i int) []byte {
			return suspectMessage(victim(i), incarnation(i), []string{"srv1.dc3", "srv2.dc2", "srv1.dc2"}[i%3])
		},
		"dead": func(i int) []byte { return forgedDead(victim(i), incarnation(i), "srv1.dc3") },
		"left": func(i int) []byte { return forgedDead(victim(i), incarnation(i), victim(i)) },
		"leave and dead": func(i int) []byte {
			if i%2 == 0 {
				return encoded(leaveMessage{1<<20 + uint64(i), victim(i / 2), false}, userMsg, leaveType)
			}
			return forgedDead(victim(i/2), incarnation(i), victim(i/2))
		},
		"invented members":     func(i int) []byte { return forgedAlive(fmt.Sprintf("f%d.dc2", i%200), 1, 9) },
		"invented datacenters": func(i int) []byte { return forgedAlive(fmt.Sprintf("f%d.d%d", i%200, i%50), 1, 9) },
	}
}

// A server of dc3 sends news about members of dc1 and dc2 to a server of dc1, in
// packets, lists and states. No list changes, at no time.
func TestHearsay_Forged(t *testing.T) {
	for name, forged := range forgeries() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testutil.Bubble(t, func(t *testing.T) { testForged(t, forged) })
		})
	}
}

func testForged(t *testing.T, forged func(int) []byte) {
	f := newFederation(t, "srv1.dc1", "srv2.dc1", "srv1.dc2", "srv1.dc3")
	defer f.stop()
	f.awaitCorrect(3*time.Second, "start")
	seen := map[string]bool{}
	at := f.net.Transport("srv1.dc1")
	for i := range 300 { // longer than the suspicion of 42 s
		message := forged(i)
		at.Deliver(message, "srv1.dc3")
		at.Deliver(compoundMessage([][]byte{{ackMsg, 0x80}, forged(i + 1), message}), "srv1.dc3")
		if i%10 == 0 {
			sendState(t, &f.net, "srv1.dc3", "srv1.dc1", stateOf(message))
		}
		time.Sleep(200*time.Millisecond + time.Duration(i%7)*time.Millisecond)
		synctest.Wait()
		for _, n := range []string{"srv1.dc1", "srv2.dc1", "srv1.dc2"} {
			for _, d := range f.differences(n) {
				seen[n+": "+d] = true
			}
		}
	}
	for _, d := range slices.Sorted(maps.Keys(seen)) {
		t.Errorf("members at %s", d)
	}
	for name, n := range f.nodes {
		if own, ok := n.inspector.readOwnState(nil); !ok || own.Incarnation > 60000+300 {
			t.Errorf("incarnation of %s = %d, %v, want at most 60300", name, own.Incarnation, ok)
		}
	}
}

// stateOf returns the state exchange with the content of a message, or nil.
func stateOf(message []byte) []byte {
	n := memberState{Vsn: []byte{1, 5, 2, 2, 5, 5}, Addr: []byte{127, 0, 0, 9}, Port: 1}
	var in news
	switch message[0] {
	case userMsg:
		var m leaveMessage
		if decodeBytes(message[2:], &m) != nil {
			return nil
		}
		return encodeState(nil, encodeMessage(stateType, exchangedState{LTime: m.LTime,
			StatusLTimes: map[string]uint64{m.Node: m.LTime}, LeftMembers: []string{m.Node}}), false)
	case aliveMsg:
		n.State = memberlist.StateAlive
	case suspectMsg:
		n.State = memberlist.StateSuspect
	case deadMsg:
		n.State = memberlist.StateLeft
	}
	if decode(message, &in) != nil {
		return nil
	}
	n.Name, n.Incarnation, n.Meta = in.Node, in.Incarnation, in.Meta
	if in.Addr != nil {
		n.Addr, n.Port = in.Addr, in.Port
	}
	return encodeState([]memberState{n}, nil, false)
}

func sendState(t *testing.T, net *gossiptest.Network, from, to string, b []byte) {
	conn, err := net.Transport(from).DialAddressTimeout(memberlist.Address{Name: to}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write(b); err != nil {
		t.Fatal(err)
	}
	for buf := make([]byte, 4096); err == nil; {
		_, err = conn.Read(buf)
	}
}

// A datacenter that joins, and tags that change, are known everywhere within two
// seconds.
func TestHearsay_Convergence(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		names := []string{"srv1.dc1", "srv2.dc1"}
		for i := range 12 {
			names = append(names, fmt.Sprintf("srv1.dc%d", i+2))
		}
		f := newFederation(t, names...)
		defer f.stop()
		f.awaitCorrect(2*time.Second, "start")
		late := f.add("srv1.dc99")
		if err := late.Join(t.Context(), f.nodes["srv1.dc5"].addr()); err != nil {
			t.Fatal(err)
		}
		f.awaitCorrect(2*time.Second, "a datacenter joined")
		if err := late.SetTags(t.Context(), map[string]string{"of": "srv1.dc99", "gw": "127.0.0.1:1"}); err != nil {
			t.Logf("SetTags() = %v", err) // its broadcast may time out
		}
		f.awaitCorrect(3*time.Second, "tags changed")
	})
}

// A server that fails is listed as failed in the usual time, by all servers at
// about the same time. When a packet of it arrives again, the others list it as
// alive within two seconds.
func TestHearsay_Failure(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		f := newFederation(t, "srv1.dc1", "srv2.dc1", "srv1.dc2", "srv1.dc3", "srv1.dc4")
		defer f.stop()
		f.awaitCorrect(2*time.Second, "start")
		f.net.Cut("srv1.dc2", true)
		cut := time.Now()
		failed := map[string]time.Duration{}
		for len(failed) < 4 {
			if time.Since(cut) > 75*time.Second {
				t.Fatalf("75 s after the failure, %v list srv1.dc2 as failed, want all", failed)
			}
			time.Sleep(100 * time.Millisecond)
			for name, n := range f.nodes {
				if m, _ := n.member("srv1.dc2"); name != "srv1.dc2" && m.Status == StatusFailed && failed[name] == 0 {
					failed[name] = time.Since(cut)
				}
			}
		}
		if spread := slices.Max(slices.Collect(maps.Values(failed))) - slices.Min(slices.Collect(maps.Values(failed))); spread > 5*time.Second {
			t.Errorf("times to the detection = %v, want at most 5 s apart", failed)
		}
		f.net.Cut("srv1.dc2", false)
		for _, name := range []string{"srv1.dc1", "srv2.dc1", "srv1.dc3", "srv1.dc4"} {
			f.nodes["srv1.dc2"].inspector.send(memberlist.Address{Name: name}, []byte{ackMsg, 0x80})
		}
		time.Sleep(2 * time.Second)
		for _, name := range []string{"srv1.dc1", "srv2.dc1", "srv1.dc3", "srv1.dc4"} {
			if m, _ := f.nodes[name].member("srv1.dc2"); !m.Alive() {
				t.Errorf("2 s after a packet of srv1.dc2, %s lists it as %v, want alive", name, m.Status)
			}
		}
	})
}

// A server that leaves is listed as left by the servers of all datacenters.
func TestHearsay_Leave(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		f := newFederation(t, "srv1.dc1", "srv1.dc2", "srv1.dc3", "srv1.dc4", "srv1.dc5", "srv1.dc6", "srv1.dc7")
		defer f.stop()
		f.awaitCorrect(2*time.Second, "start")
		leaver := f.nodes["srv1.dc2"]
		start := time.Now()
		leaver.stop()
		if took := time.Since(start); took > 1500*time.Millisecond {
			t.Errorf("Run() needed %v to leave, want at most 1.5 s", took)
		}
		time.Sleep(time.Second)
		for name, n := range f.nodes {
			if m, _ := n.member("srv1.dc2"); n != leaver && m.Status != StatusLeft {
				t.Errorf("%s lists srv1.dc2 as %v, want left", name, m.Status)
			}
		}
		delete(f.nodes, "srv1.dc2")
		back := f.add("srv1.dc2")
		if err := back.Join(t.Context(), f.nodes["srv1.dc1"].addr()); err != nil {
			t.Fatal(err)
		}
		f.awaitCorrect(3*time.Second, "the server is back")
	})
}

// A server that was killed restarts at another address. The servers of all
// datacenters list the new address, although they may not forward it.
func TestHearsay_AddressChange(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		f := newFederation(t, "srv1.dc1", "srv1.dc2", "srv1.dc3", "srv1.dc4", "srv1.dc5")
		defer f.stop()
		f.awaitCorrect(2*time.Second, "start")
		f.nodes["srv1.dc2"].kill(t)
		moved := f.add("srv1.dc2")
		if err := moved.Join(t.Context(), f.nodes["srv1.dc1"].addr()); err != nil {
			t.Fatal(err)
		}
		f.awaitCorrect(15*time.Second, "the server has moved")
	})
}

// A server of the same datacenter does not receive the departure of the killed
// server from its earlier address.
func TestHearsay_AddressChangeLost(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		f := newFederation(t, "srv1.dc1", "srv1.dc2", "srv2.dc2", "srv3.dc2")
		defer f.stop()
		f.awaitCorrect(2*time.Second, "start")
		f.nodes["srv1.dc2"].kill(t)
		moved := f.add("srv1.dc2")
		f.net.Cut("srv2.dc2", true)
		if err := moved.Join(t.Context(), f.nodes["srv3.dc2"].addr()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(exchangeGrace + leavePropagateDelay + 500*time.Millisecond)
		f.net.Cut("srv2.dc2", false)
		f.awaitCorrect(15*time.Second, "the server has moved")
	})
}

// The tags of a server change while the path to its datacenter is down. After the
// outage, the others list them as soon as they query it.
func TestPool_Refresh(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		f := newFederation(t, "srv1.dc1", "srv1.dc2", "srv2.dc2")
		defer f.stop()
		f.awaitCorrect(2*time.Second, "start")
		changed := f.nodes["srv2.dc2"]
		f.net.Cut("srv1.dc1", true)
		_ = changed.SetTags(t.Context(), map[string]string{"id": "new"}) // its broadcast times out
		time.Sleep(5 * time.Second)                                      // the broadcasts of the tags end
		f.net.Cut("srv1.dc1", false)
		f.nodes["srv1.dc1"].Refresh("dc2")
		time.Sleep(100 * time.Millisecond)
		if m, _ := f.nodes["srv1.dc1"].member("srv2.dc2"); m.Tags["id"] != "new" {
			t.Errorf("srv1.dc1 lists srv2.dc2 with the tags %v 100 ms after the query, want the new ones", m.Tags)
		}
	})
}

// Packets to a server arrive through another server of its datacenter that does
// not name their senders. All their news are hearsay, but the server learns the
// members by state exchanges.
func TestHearsay_OldRelay(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		f := newFederation(t, "srv1.dc1", "srv2.dc1")
		defer f.stop()
		f.net.Relay("srv2.dc1", "srv1.dc1")
		for _, name := range []string{"srv1.dc2", "srv1.dc3"} {
			if err := f.add(name).Join(t.Context(), f.nodes["srv1.dc1"].addr()); err != nil {
				t.Fatal(err)
			}
		}
		f.awaitCorrect(20*time.Second, "start")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		f.awaitCorrect(0, "two minutes later")
	})
}

// A member of an earlier version responds to questions as to pings. The others
// exchange states with it at once.
func TestHearsay_OldMember(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		f := newFederation(t, "srv1.dc1", "srv1.dc2")
		defer f.stop()
		f.awaitCorrect(2*time.Second, "start")
		f.nodes["srv1.dc3"] = newNode(t, &f.net, "srv1.dc3", func(c *Config) { c.Kind = wanfed.PoolWAN })
		if err := f.nodes["srv1.dc3"].Join(t.Context(), f.nodes["srv1.dc1"].addr()); err != nil {
			t.Fatal(err)
		}
		f.awaitCorrect(4*time.Second, "a member of an earlier version joined")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		f.awaitCorrect(0, "two minutes later")
	})
}

// A ping may request a response to its sender only, and an indirect ping must
// name the address of the member. A server dials the addresses in both.
func TestHearsay_PingAddresses(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		f := newFederation(t, "srv1.dc1", "srv2.dc1", "srv1.dc3")
		defer f.stop()
		f.awaitCorrect(2*time.Second, "start")
		target := netip.MustParseAddrPort(f.nodes["srv2.dc1"].cfg.Advertise.String())
		type request struct {
			Node, SourceNode string
			Target           []byte
			Port             uint16
			SourceAddr       []byte
			SourcePort       uint16
		}
		evil := []byte{127, 0, 0, 66}
		for name, tt := range map[string]struct {
			kind    byte
			r       request
			refused bool
		}{
			"ping":                {pingMsg, request{Node: "srv1.dc1", SourceNode: "srv1.dc3", SourceAddr: evil, SourcePort: 22}, false},
			"ping for another":    {pingMsg, request{Node: "srv1.dc1", SourceNode: "srv2.dc1", SourceAddr: evil, SourcePort: 22}, true},
			"ping for an unknown": {pingMsg, request{Node: "srv1.dc1", SourceNode: "srv9.dc1", SourceAddr: evil, SourcePort: 22}, true},
			"indirect": {indirectPingMsg, request{Node: "srv2.dc1", SourceNode: "srv1.dc3", Target: target.Addr().AsSlice(),
				Port: target.Port()}, false},
			"indirect elsewhere": {indirectPingMsg, request{Node: "srv2.dc1", SourceNode: "srv1.dc3", Target: evil, Port: 22}, true},
		} {
			before := f.nodes["srv1.dc1"].Refused()[refusedForged]
			f.net.Transport("srv1.dc1").Deliver(encodeMessage(tt.kind, tt.r), "srv1.dc3")
			synctest.Wait()
			if got := f.nodes["srv1.dc1"].Refused()[refusedForged] > before; got != tt.refused {
				t.Errorf("%s: refused %v, want %v", name, got, tt.refused)
			}
		}
	})
}

// A server of dc3 sends more packets than servers do. They are dropped. Servers of
// the datacenter itself have no limit.
func TestHearsay_PacketRate(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		f := newFederation(t, "srv1.dc1", "srv2.dc1", "srv1.dc3")
		defer f.stop()
		f.awaitCorrect(2*time.Second, "start")
		const extra = 100
		for _, sender := range []string{"srv1.dc3", "srv2.dc1"} {
			for i := range maxSenderPackets + extra {
				f.net.Transport("srv1.dc1").Deliver(encodeMessage(ackMsg, struct{ SeqNo uint32 }{uint32(1<<20 + i)}), sender)
			}
		}
		synctest.Wait()
		if got := f.nodes["srv1.dc1"].Refused()[refusedRate]; got < extra || got > extra+8 {
			t.Errorf("%d packets refused, want about %d: those of srv1.dc3 above the limit", got, extra)
		}
		time.Sleep(2 * time.Second)
		before := f.nodes["srv1.dc1"].Refused()[refusedRate]
		f.net.Transport("srv1.dc1").Deliver(encodeMessage(ackMsg, struct{ SeqNo uint32 }{1 << 21}), "srv1.dc3")
		synctest.Wait()
		if got := f.nodes["srv1.dc1"].Refused()[refusedRate]; got != before {
			t.Errorf("%d packets refused after a pause, want none", got-before)
		}
	})
}

// A server of dc3 opens more streams than servers do. They are closed. Servers of
// the datacenter itself have no limit.
func TestHearsay_StreamRate(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		f := newFederation(t, "srv1.dc1", "srv2.dc1", "srv1.dc3")
		defer f.stop()
		f.awaitCorrect(2*time.Second, "start")
		time.Sleep(2 * time.Second)
		const extra = 10
		open := func(sender string) (closed bool) {
			t.Helper()
			addr := memberlist.Address{Addr: f.net.Transport("srv1.dc1").Addr.Addr, Name: "srv1.dc1"}
			c, err := f.net.Transport(sender).DialAddressTimeout(addr, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			synctest.Wait()
			c.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, err = c.Read(make([]byte, 1))
			return !os.IsTimeout(err)
		}
		for sender, want := range map[string]int{"srv1.dc3": extra, "srv2.dc1": 0} {
			before, closed := f.nodes["srv1.dc1"].Refused()[refusedRate], 0
			for range maxSenderStreams + extra {
				if open(sender) {
					closed++
				}
			}
			if refused := f.nodes["srv1.dc1"].Refused()[refusedRate] - before; closed != want || refused != uint64(want) {
				t.Errorf("%d streams of %s were closed and %d refused, want %d", closed, sender, refused, want)
			}
		}
		time.Sleep(2 * time.Second)
		if open("srv1.dc3") {
			t.Error("a stream of srv1.dc3 after a pause was closed, want it open")
		}
	})
}

// dc3Conn is a stream of a server of dc3.
type dc3Conn struct{ readConn }

func (dc3Conn) RemoteAddr() net.Addr { return gossiptest.Addr("srv1.dc3") }

func FuzzHearsay(f *testing.F) {
	for _, message := range forgeries() {
		f.Add(message(0))
		f.Add(stateOf(message(0)))
	}
	f.Add(encodeMessage(pingMsg, question{Node: "srv1.dc1", SourceNode: "srv1.dc3", Query: true}))
	var network gossiptest.Network
	transport := network.Add("srv1.dc1")
	cfg := Config{Name: "srv1.dc1", Transport: transport, Advertise: netip.MustParseAddrPort(transport.Addr.Addr),
		Logger: slog.New(slog.DiscardHandler)}
	withGroups(&cfg)
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		rest, _ := p.inspector.checkPacket(b, "srv1.dc3")
		for _, name := range []string{"srv1.dc2", "srv2.dc1"} {
			if _, found := p.hearsay.contacts[name]; found {
				t.Errorf("%s has a contact after % x, of which memberlist receives % x; want none", name, b, rest)
			}
		}
		c := &inspectedConn{Conn: dc3Conn{readConn{Reader: bytes.NewReader(b)}}, in: p.inspector, accepted: true}
		_ = c.inspect()
	})
}

// TestRumor_Due checks when a rumor is looked at again.
func TestRumor_Due(t *testing.T) {
	now := time.Now()
	at := func(d time.Duration) time.Time { return now.Add(d) }
	const unanswered, pathTick = 15 * time.Second, time.Second
	for _, test := range []struct {
		name    string
		rumor   rumor
		queried time.Time // of the contact
		want    time.Duration
	}{
		{"without a path", rumor{began: now}, time.Time{}, pathTick},
		{"member queried already", rumor{began: now}, now, queryInterval},
		{"accused", rumor{began: now, queried: now, accuser: "srv1.dc2"}, now, accusedTime},
		{"no answer yet", rumor{began: now, queried: now}, now, queryAgain},
		{"exchange soon", rumor{began: at(-14 * time.Second), queried: at(-14 * time.Second)}, now, time.Second},
		{"waits for an exchange", rumor{began: at(-20 * time.Second), queried: at(-20 * time.Second)}, now, pathTick},
		{"near its end", rumor{began: at(time.Second/2 - rumorTimeout)}, time.Time{}, time.Second / 2},
	} {
		got := test.rumor.due(&contact{queried: test.queried}, unanswered, pathTick, now).Sub(now)
		if got != test.want {
			t.Errorf("%s: due in %v, want %v", test.name, got, test.want)
		}
	}
}

func TestExchangePause(t *testing.T) {
	for members, want := range map[int]time.Duration{3: minExchangePause, 100: 5 * time.Second, maxMembers: maxExchangePause} {
		if got := exchangePause(members); got != want {
			t.Errorf("exchangePause(%d) = %v, want %v", members, got, want)
		}
	}
}
