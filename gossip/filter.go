// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bytes"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"
)

// filter is serf's delegate of memberlist, reduced to the messages that servers
// use: join and leave intents, and the intents of a state exchange. User
// events, queries, relays, conflict messages and key requests do not reach
// serf. serf keeps them without a bound, and names metrics by their content.
type filter struct {
	memberlist.Delegate
	members  func() []serf.Member // of the serf instance
	isMember func(name string) bool
	refusals *refusals
	intents  rateLimit

	mu      sync.Mutex
	latest  uint64          // highest logical time that was accepted
	unknown map[string]bool // names without a member in the intents since cleared
	cleared time.Time
}

// Limits of intents.
const (
	// maxIntent limits the bytes of an intent. The longest name fits.
	maxIntent = 256
	// maxIntents limits the intents per second. serf queues new intents.
	maxIntents = 4096
	// maxUnknown limits the names without a member in intentTimeout. An intent
	// may arrive before the message that its member is alive.
	maxUnknown = 1024
	// intentTimeout is the time for which serf keeps the intent of a name
	// without a member.
	intentTimeout = time.Minute
	// maxClockStep limits the increase of the logical time by one message. A
	// peer cannot overflow the clock.
	maxClockStep = 1 << 32
)

// Types of serf's messages.
const (
	leaveType byte = iota
	joinType
	stateType
)

func (p *Pool) newFilter(s *serf.Serf, d memberlist.Delegate) *filter {
	return &filter{
		Delegate: d, members: s.Members, isMember: p.isMember, refusals: p.refusals,
		intents: rateLimit{perSecond: maxIntents}, unknown: map[string]bool{},
	}
}

// isMember reports whether the member list has name. The list may be a quarter
// of a second old.
func (p *Pool) isMember(name string) bool {
	_, found := p.member(name)
	return found
}

// member returns a member of the member list.
func (p *Pool) member(name string) (Member, bool) {
	members := p.Members()
	i, found := slices.BinarySearchFunc(members, Member{Name: name}, byName)
	if !found {
		return Member{}, false
	}
	return members[i], true
}

// NotifyMsg implements memberlist.Delegate.
func (f *filter) NotifyMsg(b []byte) {
	if err := f.checkIntent(b); err != nil {
		f.refusals.record(err)
		return
	}
	f.Delegate.NotifyMsg(b)
}

// checkIntent returns an error unless b is a join or leave message of serf
// within the limits.
func (f *filter) checkIntent(b []byte) error {
	var m struct {
		LTime uint64
		Node  string
		Prune bool
	}
	switch {
	case len(b) == 0 || b[0] != leaveType && b[0] != joinType:
		return refuse(refusedKind, "message of serf that is not an intent: % x", b[:min(len(b), 1)])
	case len(b) > maxIntent:
		return refuse(refusedLarge, "intent of %d bytes, more than %d", len(b), maxIntent)
	}
	if err := decodeBytes(b[1:], &m); err != nil {
		return refuse(refusedMalformed, "intent: %v", err)
	}
	if m.Prune {
		return refuse(refusedPrune, "leave intent that erases %q", m.Node)
	}
	now := time.Now()
	if !f.intents.allow(now) {
		return refuse(refusedRate, "more than %d intents per second", maxIntents)
	}
	return f.admit(m.Node, m.LTime, f.isMember(m.Node), now)
}

// admit returns an error unless an intent for a name is within the limits.
func (f *filter) admit(name string, ltime uint64, member bool, now time.Time) error {
	if len(name) > maxMemberName {
		return refuse(refusedNames, "intent for a name of %d bytes, more than %d", len(name), maxMemberName)
	}
	if err := f.advance(ltime); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.cleared) >= intentTimeout {
		clear(f.unknown)
		f.cleared = now
	}
	if !member && !f.unknown[name] {
		if len(f.unknown) >= maxUnknown {
			return refuse(refusedNames, "intents for more than %d names without a member", maxUnknown)
		}
		f.unknown[name] = true
	}
	return nil
}

// advance returns an error if the logical time of a peer is far in the future.
func (f *filter) advance(ltime uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ltime > f.latest+maxClockStep {
		return refuse(refusedClock, "logical time %d after %d", ltime, f.latest)
	}
	f.latest = max(f.latest, ltime)
	return nil
}

// exchangedState is the part of serf's state that servers use. serf's message
// has events too.
type exchangedState struct {
	LTime        uint64
	StatusLTimes map[string]uint64
	LeftMembers  []string
}

// MergeRemoteState implements memberlist.Delegate. serf receives the admitted
// part of the state.
func (f *filter) MergeRemoteState(b []byte, join bool) {
	state, err := f.checkState(b)
	if err != nil {
		f.refusals.record(err)
		return
	}
	out := bytes.NewBuffer([]byte{stateType})
	if err := codec.NewEncoder(out, &codec.MsgpackHandle{}).Encode(state); err != nil {
		f.refusals.record(err)
		return
	}
	f.Delegate.MergeRemoteState(out.Bytes(), join)
}

// checkState decodes a state and removes what is not within the limits. It
// records what it removes.
func (f *filter) checkState(b []byte) (exchangedState, error) {
	var in exchangedState
	if len(b) == 0 || b[0] != stateType {
		return in, refuse(refusedKind, "state that is not serf's")
	}
	if err := decodeBytes(b[1:], &in); err != nil {
		return in, refuse(refusedMalformed, "state of serf: %v", err)
	}
	if n := max(len(in.StatusLTimes), len(in.LeftMembers)); n > maxMembers {
		return in, refuse(refusedNames, "state of serf with %d members, more than %d", n, maxMembers)
	}
	members := map[string]bool{}
	for _, m := range f.members() {
		members[m.Name] = true
	}
	now := time.Now()
	out := exchangedState{StatusLTimes: map[string]uint64{}}
	if err := f.advance(in.LTime); err != nil {
		f.refusals.record(err)
	} else {
		out.LTime = in.LTime
	}
	for name, ltime := range in.StatusLTimes {
		if err := f.admit(name, ltime, members[name], now); err != nil {
			f.refusals.record(err)
			continue
		}
		out.StatusLTimes[name] = ltime
	}
	for _, name := range in.LeftMembers {
		if _, admitted := out.StatusLTimes[name]; admitted {
			out.LeftMembers = append(out.LeftMembers, name)
		}
	}
	return out, nil
}
