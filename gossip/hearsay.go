// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// A member of one group may report anything about the members of another. In a
// pool with groups, such a report is hearsay: it changes nothing. The member that
// it is about is queried instead, with one packet, and sends its own alive
// message. The transport authenticates the sender of a packet, so this answer is
// first-hand.
//
// An accusation (a message that a member is suspect or dead) becomes the
// suspicion of this member if the accused sends no packet within accusedTime.
// The other times of memberlist then apply.

const (
	// accusedTime is the time from the question to an accused member to its
	// suspicion.
	accusedTime = 2 * time.Second
	// queryInterval is the least time between two questions to one member.
	queryInterval = time.Second
	// queryAgain is the time after which a question without an answer is repeated. A
	// link that connects again drops packets.
	queryAgain = 3 * time.Second
	// unansweredTime is the time after which this member exchanges states with a
	// member that has not answered, and unansweredPerMember is its minimum per
	// member, up to maxUnansweredTime. When many datacenters start together, links
	// take long to connect, and exchanges would delay them more.
	unansweredTime      = 15 * time.Second
	unansweredPerMember = 500 * time.Millisecond
	maxUnansweredTime   = 50 * time.Second // before rumorTimeout
	// refuteDelay is the time in which memberlist refutes an accusation, before
	// this member sends its new alive message to the accuser.
	refuteDelay = 50 * time.Millisecond
	// maxRumors limits the rumors about the members of a group.
	maxRumors = 128
	// rumorTimeout is the time after which a rumor without a path to its member,
	// or without an answer, is dropped.
	rumorTimeout = time.Minute
	// maxIncarnationStep limits an incarnation above the seconds since the year
	// 2000. A member has a new incarnation when it sets tags and when it refutes
	// an accusation, both less than once a second. A peer can therefore not use
	// the incarnations up.
	maxIncarnationStep = 1 << 16
	// exchangePerMember is the time, per member, between two state exchanges with
	// members that do not answer questions, such as servers of an earlier version. An
	// exchange opens a session, and on a busy machine all answers are late. The time is
	// at least minExchangePause, and at most maxExchangePause, because a peer can
	// announce many members.
	exchangePerMember = 50 * time.Millisecond
	minExchangePause  = 500 * time.Millisecond
	maxExchangePause  = 10 * time.Second
	// ownAliveAge is the age at which the state of this member is read again if no
	// change is known. memberlist encodes the states of all members for it.
	ownAliveAge = 5 * time.Second
)

// hearsay decides which messages of a peer memberlist may process. Its zero
// value, without groupOf, accepts all. Its methods may be called from any
// goroutine.
type hearsay struct {
	pool    *Pool
	groupOf func(name string) string // nil: no groups

	wake chan struct{} // capacity 1

	mu        sync.Mutex
	contacts  map[string]*contact  // by the name of the member
	rumors    map[string]*rumor    // by the name of the member
	perGroup  map[string]int       // number of rumors
	answers   map[string]time.Time // times of alive messages to send, by the name of the receiver
	refuted   map[string]time.Time // time of the last accepted message about this member, by group
	exchanged time.Time            // start of the last state exchange
	outbox    []outgoing           // messages to send after the unlock
	suspects  []suspicion          // for memberlist

	reports reports

	own     memberState
	ownRead time.Time
	changed time.Time // from then on, own may differ from the state of memberlist
}

// outgoing is a message to a member.
type outgoing struct {
	to      string
	message []byte
}

// suspicion is a member that memberlist must suspect, and the accuser.
type suspicion struct {
	name        string
	incarnation uint32
	accuser     string
}

// contact is what is known about a member first-hand.
type contact struct {
	incarnation uint32    // of the last message that memberlist accepted
	highest     uint32    // incarnation
	suspected   bool      // accused since its last alive message
	seen        time.Time // last packet or stream
	queried     time.Time // last question
	reported    time.Time // last report that it is listed at another address
}

// rumor is news about a member that it has not confirmed yet.
type rumor struct {
	began   time.Time
	queried time.Time // zero: not yet
	accuser string    // "": the news is not an accusation
	addr    string    // host:port in the news
	member  bool      // the news is that the member is alive
	acked   bool      // the member responds to questions as to pings: an earlier version
}

func newHearsay(p *Pool) *hearsay {
	return &hearsay{
		pool: p, groupOf: p.cfg.GroupOf, wake: make(chan struct{}, 1),
		contacts: map[string]*contact{}, rumors: map[string]*rumor{}, perGroup: map[string]int{},
		answers: map[string]time.Time{}, refuted: map[string]time.Time{},
		reports: newReports(),
	}
}

func (h *hearsay) enabled() bool { return h != nil && h.groupOf != nil }

// believes reports whether sender is first-hand about the member name.
func (h *hearsay) believes(sender, name string) bool { return h.groupOf(sender) == h.groupOf(name) }

// plausible reports whether a member can have an incarnation.
func plausible(incarnation uint32, now time.Time) bool {
	since := now.Unix() - time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	return int64(incarnation) <= max(since, 0)+maxIncarnationStep
}

// news is an alive, suspect or dead message, or a member in a state.
type news struct {
	Incarnation uint32
	Node        string
	Addr        []byte
	Port        uint16
	Meta        []byte
	Vsn         []uint8
	State       memberlist.NodeStateType
}

// same reports whether n has the state of a member.
func (n news) same(s memberState) bool {
	return n.Incarnation == s.Incarnation && bytes.Equal(n.Meta, s.Meta) && bytes.Equal(n.Vsn, s.Vsn)
}

func (n news) addr() (netip.AddrPort, bool) {
	ip, ok := netip.AddrFromSlice(n.Addr)
	return netip.AddrPortFrom(ip.Unmap(), n.Port), ok
}

// accept reports whether memberlist may process n of sender. It queries the member
// if n is hearsay. It returns an error for news that no server sends.
func (h *hearsay) accept(sender string, n news, now time.Time) (bool, error) {
	if !h.enabled() {
		return true, nil
	}
	if !plausible(n.Incarnation, now) {
		return false, refuse(refusedForged, "%s reports the incarnation %d of %s", sender, n.Incarnation, n.Node)
	}
	listed, _ := h.pool.member(n.Node)
	defer h.flush()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case n.Node == h.pool.cfg.Name:
		return h.acceptAboutSelf(sender, n, now), nil
	case !h.believes(sender, n.Node):
		h.consider(sender, n, listed, now)
		return false, nil
	case n.State != memberlist.StateAlive:
		if c := h.contact(n.Node); n.Incarnation >= c.incarnation {
			c.accept(n.Incarnation)
			c.suspected = true
		}
		return true, nil
	}
	h.confirm(n, listed, now)
	return true, nil
}

// acceptAboutSelf is accept for news about this member. memberlist refutes them.
// A peer of another group can cause one new incarnation per second.
func (h *hearsay) acceptAboutSelf(sender string, n news, now time.Time) bool {
	group := h.groupOf(sender)
	if n.State == memberlist.StateAlive {
		addr, ok := n.addr()
		if !ok || addr != h.pool.inspector.advertise() || n.Incarnation < h.own.Incarnation || n.same(h.own) {
			return false
		}
	} else if n.Incarnation < h.own.Incarnation {
		h.answer(sender, now) // which the sender accepts without a refutation
		return false
	}
	h.changed = now.Add(refuteDelay)
	h.answer(sender, h.changed)
	if group == h.groupOf(n.Node) {
		return true
	}
	if now.Sub(h.refuted[group]) < queryInterval {
		return false
	}
	if len(h.refuted) >= maxMembers {
		clear(h.refuted)
	}
	h.refuted[group] = now
	return true
}

// confirm records a first-hand alive message of a member.
func (h *hearsay) confirm(n news, listed Member, now time.Time) {
	c := h.contact(n.Node)
	newer := n.Incarnation > c.incarnation
	if newer || !listed.Alive() {
		c.accept(n.Incarnation)
		c.suspected = c.suspected && !newer
	}
	h.reports.dropMember(h.groupOf(n.Node), n.Node)
	if r := h.rumors[n.Node]; r != nil && (r.accuser == "" || newer) {
		h.drop(n.Node)
	}
	addr, ok := n.addr()
	if listed.Alive() && ok && listed.Addr != addr.String() && now.Sub(c.reported) >= queryInterval {
		c.reported = now
		h.report(listed, c.highest)
	}
	if !newer && listed.Name != "" {
		h.accuse(n.Node, listed, now)
	}
}

// accept records the incarnation of a message that memberlist accepts.
func (c *contact) accept(incarnation uint32) {
	c.incarnation, c.highest = incarnation, max(c.highest, incarnation)
}

// seen records a packet or stream of a member.
func (h *hearsay) seen(name string, now time.Time) {
	if !h.enabled() {
		return
	}
	listed, found := h.pool.member(name)
	if !found {
		return
	}
	defer h.flush()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.contact(name).seen = now
	if listed.Status != StatusLeft { // its last packets may be late
		h.accuse(name, listed, now)
	}
}

// accuse queries a member that responds, but is suspected or not listed as alive, to
// refute that.
func (h *hearsay) accuse(name string, listed Member, now time.Time) {
	c := h.contact(name)
	if !c.suspected && listed.Alive() || now.Sub(c.queried) < queryInterval {
		return
	}
	c.queried = now
	h.query(name, c, true)
}

// consider queries a member that hearsay is about. The caller holds h.mu.
func (h *hearsay) consider(sender string, n news, listed Member, now time.Time) {
	c := h.contacts[n.Node]
	alive := n.State == memberlist.StateAlive
	switch {
	case alive && c != nil && n.Incarnation <= c.incarnation && listed.Alive():
		return
	case !alive && (c == nil || !listed.Alive() || n.Incarnation < c.incarnation):
		return
	case !alive && c.suspected && now.Sub(c.seen) >= accusedTime:
		// Another accuser makes the time of the suspicion shorter.
		if len(h.suspects) < maxMembers {
			h.suspects = append(h.suspects, suspicion{n.Node, c.highest, sender})
			h.notify()
		}
		return
	}
	if alive && !h.believes(n.Node, h.pool.cfg.Name) {
		h.reports.keep(h.groupOf(n.Node), h.groupOf(sender), n, now)
	}
	r := h.rumor(n.Node, now)
	if r == nil {
		return
	}
	if alive {
		r.member = true
		if addr, ok := n.addr(); ok {
			r.addr = addr.String()
		}
	} else if r.accuser == "" {
		r.accuser = sender
	}
	h.notify()
}

// rumor returns the rumor about a member, and begins one if there is none. It
// returns nil if there are too many. The caller holds h.mu.
func (h *hearsay) rumor(name string, now time.Time) *rumor {
	r := h.rumors[name]
	if r == nil {
		group := h.groupOf(name)
		if h.perGroup[group] >= maxRumors || len(h.rumors) >= maxMembers {
			return nil
		}
		h.perGroup[group]++
		r = &rumor{began: now}
		h.rumors[name] = r
	}
	return r
}

// contact returns the contact of a member. The caller holds h.mu.
func (h *hearsay) contact(name string) *contact {
	c := h.contacts[name]
	if c == nil {
		if len(h.contacts) >= 2*maxMembers {
			clear(h.contacts)
		}
		c = &contact{}
		h.contacts[name] = c
	}
	return c
}

// drop removes a rumor. The caller holds h.mu.
func (h *hearsay) drop(name string) {
	delete(h.rumors, name)
	if group := h.groupOf(name); h.perGroup[group] > 1 {
		h.perGroup[group]--
	} else {
		delete(h.perGroup, group)
	}
}

// answer sends the alive message of this member to another member at a time. The
// caller holds h.mu.
func (h *hearsay) answer(to string, at time.Time) {
	if len(h.answers) < maxMembers {
		h.answers[to] = at
		h.notify()
	}
}

func (h *hearsay) notify() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

func (h *hearsay) hasPath(name string) bool {
	return h.pool.cfg.HasPath == nil || h.pool.cfg.HasPath(h.groupOf(name))
}

// query sends a question to a member, with the alive message of this member if it
// is known. An accused member refutes. The caller holds h.mu.
func (h *hearsay) query(name string, c *contact, accuse bool) {
	self := h.pool.cfg
	messages := [][]byte{encodeMessage(pingMsg, question{
		Node: name, SourceNode: self.Name, SourceAddr: self.Advertise.Addr().AsSlice(),
		SourcePort: self.Advertise.Port(), Query: true,
	})}
	if accuse {
		messages = append(messages, suspectMessage(name, c.highest, self.Name))
	}
	if own := h.own.alive(); own != nil {
		messages = append(messages, own)
	}
	h.outbox = append(h.outbox, outgoing{name, compoundMessage(messages)})
}

// report notifies a member that it is listed at another address. The caller holds
// h.mu.
func (h *hearsay) report(listed Member, incarnation uint32) {
	h.outbox = append(h.outbox, outgoing{listed.Name, encodeMessage(aliveMsg, aliveMessage{
		Incarnation: incarnation, Node: listed.Name, Addr: net.ParseIP(listed.Host), Port: listed.Port,
		Vsn: make([]byte, 6),
	})})
}

// flush sends the messages in the outbox. It does not block.
func (h *hearsay) flush() {
	h.mu.Lock()
	out := h.outbox
	h.outbox = nil
	h.mu.Unlock()
	for _, o := range out {
		addr := "" // of another group: the transport needs the name alone
		if m, found := h.pool.member(o.to); found {
			addr = m.Addr
		}
		h.pool.inspector.send(memberlist.Address{Name: o.to, Addr: addr}, o.message)
	}
}

// question is a ping with one more field. A server of an earlier version responds
// to it as to any ping.
type question struct {
	SeqNo      uint32 // 0, which pings of memberlist do not have
	Node       string
	SourceAddr []byte
	SourcePort uint16
	SourceNode string
	Query      bool
}

// acked records that sender has responded to a question as to a ping.
func (h *hearsay) acked(sender string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.rumors[sender]; r != nil {
		r.acked = true
		h.notify()
	}
}

// questioned answers the question of sender.
func (h *hearsay) questioned(sender string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, waits := h.answers[sender]; !waits {
		h.answer(sender, now)
	}
}

// reset removes what is known about members. The pool calls it after the end of
// a serf instance.
func (h *hearsay) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.contacts)
	clear(h.rumors)
	clear(h.perGroup)
	clear(h.answers)
	h.reports = newReports()
	h.own, h.suspects = memberState{}, nil
}

// aliveMessage, suspect and dead messages are those of memberlist.
type aliveMessage struct {
	Incarnation uint32
	Node        string
	Addr        []byte
	Port        uint16
	Meta        []byte
	Vsn         []uint8
}

func suspectMessage(name string, incarnation uint32, accuser string) []byte {
	return encodeMessage(suspectMsg, struct {
		Incarnation uint32
		Node, From  string
	}{incarnation, name, accuser})
}

// compoundMessage returns a list of up to 255 messages.
func compoundMessage(messages [][]byte) []byte {
	b := []byte{compoundMsg, byte(len(messages))}
	for _, m := range messages {
		b = binary.BigEndian.AppendUint16(b, uint16(len(m)))
	}
	return slices.Concat(b, slices.Concat(messages...))
}
