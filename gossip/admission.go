// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"
)

// admission is memberlist's delegate for merges and alive messages. It replaces
// serf's own delegate, which decodes the tags of each member in each message.
// In a large pool nearly all messages are about known members, because each
// update arrives about thirty times. One rejected member fails a whole state
// exchange.
type admission struct {
	pool  *Pool
	adv   netip.AddrPort
	quota memberQuota

	mu       sync.Mutex
	admitted map[string]uint64 // by name: checksum of the member as admitted
}

func newAdmission(p *Pool, adv netip.AddrPort) *admission {
	return &admission{
		pool: p, adv: adv, admitted: map[string]uint64{},
		quota: memberQuota{groupOf: p.cfg.GroupOf, members: p.Members},
	}
}

// maxAdmitted limits the members in admission.admitted. When the map is full,
// it is cleared, and all members are checked again.
const maxAdmitted = 1 << 14

// seed makes the checksums unpredictable to other processes.
var seed = maphash.MakeSeed()

// checksum covers everything that the admission of a member depends on, except
// its name.
func checksum(n *memberlist.Node) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	left := byte(0)
	if n.State == memberlist.StateLeft {
		left = 1
	}
	head := [...]byte{
		byte(len(n.Addr)), byte(n.Port >> 8), byte(n.Port), left,
		n.PMin, n.PMax, n.PCur, n.DMin, n.DMax, n.DCur,
	}
	h.Write(head[:])
	h.Write(n.Addr)
	h.Write(n.Meta)
	return h.Sum64()
}

// NotifyAlive implements memberlist.AliveDelegate. It is called for each message
// that a member is alive.
func (a *admission) NotifyAlive(n *memberlist.Node) error {
	if n.Name == a.pool.cfg.Name {
		if ip, ok := netip.AddrFromSlice(n.Addr); ok {
			a.pool.checkOwnAddr(a.adv, netip.AddrPortFrom(ip, n.Port))
		}
		return a.check(n)
	}
	if err := a.check(n); err != nil {
		return err
	}
	return a.quota.reserve(n.Name, time.Now())
}

// NotifyMerge implements memberlist.MergeDelegate. It is called for each
// exchange of state.
func (a *admission) NotifyMerge(ns []*memberlist.Node) error {
	for _, n := range ns {
		if err := a.check(n); err != nil {
			return err
		}
	}
	return nil
}

// check applies Config.Admit to n unless n was admitted unchanged before.
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

// tagMagic is the first byte of encoded tags. Metadata without it is the tag
// "role".
const tagMagic = 255

// parseTags decodes a member's metadata as serf does: a msgpack map of strings.
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

// Limits of a pool with groups. Any member may announce others, and each costs
// memory and probes here.
const (
	// maxPerGroup limits the names of a group. The names of dead members count
	// for three days.
	maxPerGroup = 128
	maxMembers  = 1 << 14
	// reservationTime is the time for which a name is reserved before a member
	// with that name exists.
	reservationTime = time.Minute
)

// memberQuota limits the members of each group.
type memberQuota struct {
	groupOf func(name string) string // nil: no limit
	members func() []Member

	mu     sync.Mutex
	groups map[string]map[string]time.Time // group, name: time of reservation
	names  int
	swept  time.Time
}

// reserve returns an error if the limit is reached. It is cheap for a name that
// is already reserved.
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
	if q.fullLocked(group) && now.Sub(q.swept) >= time.Second {
		q.swept = now
		q.sweepLocked(now)
	}
	if q.fullLocked(group) {
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

func (q *memberQuota) fullLocked(group string) bool {
	return len(q.groups[group]) >= maxPerGroup || q.names >= maxMembers
}

// sweepLocked removes the names that are not members any more.
func (q *memberQuota) sweepLocked(now time.Time) {
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
