// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"
)

// admission checks members. It is memberlist's delegate for merges and alive
// messages, and replaces serf's delegate, which decodes the tags of each member
// in each message. Each update of a member arrives about thirty times, so
// nearly all messages are about known members. admission decodes the tags only
// after they have changed.
type admission struct {
	pool  *Pool
	quota memberQuota

	mu       sync.Mutex
	admitted map[string]uint64 // checksum of each admitted member, by name
}

func newAdmission(p *Pool) *admission {
	return &admission{
		pool: p, admitted: map[string]uint64{},
		quota: memberQuota{groupOf: p.cfg.GroupOf, members: p.Members},
	}
}

// maxAdmitted limits the size of admission.admitted. A full map is cleared, and
// all members are checked again.
const maxAdmitted = 1 << 14

// seed makes the checksums unpredictable to other processes.
var seed = maphash.MakeSeed()

// checksum covers all inputs of admission.admit except the name.
func checksum(n *memberlist.Node) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	left := byte(0)
	if n.State == memberlist.StateLeft {
		left = 1
	}
	header := [...]byte{
		byte(len(n.Addr)), byte(n.Port >> 8), byte(n.Port), left,
		n.PMin, n.PMax, n.PCur, n.DMin, n.DMax, n.DCur,
	}
	h.Write(header[:])
	h.Write(n.Addr)
	h.Write(n.Meta)
	return h.Sum64()
}

// NotifyAlive implements memberlist.AliveDelegate. It is called for each
// message that a member is alive.
func (a *admission) NotifyAlive(n *memberlist.Node) error {
	if err := a.check(n); err != nil || n.Name == a.pool.cfg.Name {
		return err
	}
	return a.quota.reserve(n.Name, time.Now())
}

// NotifyMerge implements memberlist.MergeDelegate. It is called for each state
// exchange. One rejected member fails the whole exchange, so it does not check
// the quota.
func (a *admission) NotifyMerge(ns []*memberlist.Node) error {
	for _, n := range ns {
		if err := a.check(n); err != nil {
			return err
		}
	}
	return nil
}

// check calls admit unless n was admitted and has not changed since.
func (a *admission) check(n *memberlist.Node) error {
	sum := checksum(n)
	a.mu.Lock()
	old, known := a.admitted[n.Name]
	a.mu.Unlock()
	if known && old == sum {
		return nil
	}
	if err := a.admit(n); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.admitted) >= maxAdmitted {
		clear(a.admitted)
	}
	a.admitted[n.Name] = sum
	return nil
}

// admit validates n and calls Config.Admit.
func (a *admission) admit(n *memberlist.Node) error {
	if len(n.Addr) != 4 && len(n.Addr) != 16 {
		return fmt.Errorf("member %s has an address of %d bytes, not 4 or 16", n.Name, len(n.Addr))
	}
	if len(n.Meta) > memberlist.MetaMaxSize {
		return fmt.Errorf("member %s has tags of %d bytes, more than %d", n.Name, len(n.Meta), memberlist.MetaMaxSize)
	}
	tags, err := parseTags(n.Meta)
	if err != nil {
		return fmt.Errorf("tags of member %s: %w", n.Name, err)
	}
	if a.pool.cfg.Admit == nil {
		return nil
	}
	m := serf.Member{
		Name: n.Name, Addr: n.Addr, Port: n.Port, Tags: tags,
		ProtocolMin: n.PMin, ProtocolMax: n.PMax, ProtocolCur: n.PCur,
		DelegateMin: n.DMin, DelegateMax: n.DMax, DelegateCur: n.DCur,
	}
	if n.State == memberlist.StateLeft {
		m.Status = serf.StatusLeft
	}
	return a.pool.cfg.Admit(fromSerf(m))
}

// tagMagic is the first byte of tags in msgpack. Metadata without that byte is
// the value of the tag "role".
const tagMagic = 255

// parseTags decodes a member's metadata in the format of serf.
func parseTags(meta []byte) (map[string]string, error) {
	if len(meta) == 0 || meta[0] != tagMagic {
		return map[string]string{"role": string(meta)}, nil
	}
	tags := map[string]string{}
	if err := codec.NewDecoder(bytes.NewReader(meta[1:]), &codec.MsgpackHandle{}).Decode(&tags); err != nil {
		return nil, fmt.Errorf("not a map of strings in msgpack: %w", err)
	}
	return tags, nil
}

// Limits of a pool with groups. A member may announce any other members, and
// each announced member costs memory and probes.
const (
	// maxPerGroup limits the names in a group. The name of a dead member counts
	// for three days.
	maxPerGroup = 128
	// maxMembers limits the names in all groups.
	maxMembers = 1 << 13
	// reservationTime is the time after which the name of an announced member
	// is released if the member is not in the pool.
	reservationTime = time.Minute
)

// memberQuota limits the members of each group.
type memberQuota struct {
	groupOf func(name string) string // nil: no limit
	members func() []Member          // current members of the pool

	mu     sync.Mutex
	groups map[string]map[string]time.Time // time of the reservation, by group and name
	names  int                             // in all groups
	swept  time.Time                       // time of the last sweep
}

// reserve reserves name. It returns an error if a limit is reached. It is cheap
// for a name that is already reserved.
func (q *memberQuota) reserve(name string, now time.Time) error {
	if q.groupOf == nil {
		return nil
	}
	group := q.groupOf(name)
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, reserved := q.groups[group][name]; reserved {
		return nil
	}
	full := func() bool { return len(q.groups[group]) >= maxPerGroup || q.names >= maxMembers }
	if full() && now.Sub(q.swept) >= time.Second {
		q.sweep(now)
	}
	if full() {
		return fmt.Errorf("too many members for %s: %s has %d, all groups have %d; a server may be inventing members",
			name, group, len(q.groups[group]), q.names)
	}
	if q.groups == nil {
		q.groups = map[string]map[string]time.Time{}
	}
	if q.groups[group] == nil {
		q.groups[group] = map[string]time.Time{}
	}
	q.groups[group][name] = now
	q.names++
	return nil
}

// sweep releases the names that are not in the pool. The caller holds q.mu.
func (q *memberQuota) sweep(now time.Time) {
	q.swept = now
	members := map[string]bool{}
	for _, m := range q.members() {
		members[m.Name] = true
	}
	for group, names := range q.groups {
		for name, reserved := range names {
			if !members[name] && now.Sub(reserved) >= reservationTime {
				delete(names, name)
				q.names--
			}
		}
		if len(names) == 0 {
			delete(q.groups, group)
		}
	}
}
