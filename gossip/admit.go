// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"fmt"
	"hash/maphash"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"
)

// admit is memberlist's delegate of merges and of alive members: one refused member refuses a whole exchange. It stands in the
// place of serf's own, which decodes the tags of each member in each message: in a large pool nearly all are of members that are
// known, since news comes to everybody some thirty times.
type admit struct {
	p   *Pool
	adv netip.AddrPort

	places places

	mu       sync.Mutex
	admitted map[string]uint64 // by name, of what was admitted last: see sum
}

func newAdmit(p *Pool, adv netip.AddrPort) *admit {
	return &admit{p: p, adv: adv, admitted: map[string]uint64{}, places: places{group: p.cfg.GroupOf, members: p.Members}}
}

// maxAdmitted bounds what is known of admitted members: what comes beyond is asked about anew.
const maxAdmitted = 1 << 14

// seed makes sums that nobody outside of this process can foresee.
var seed = maphash.MakeSeed()

// sum stands for all that a member's admission depends on, besides its name.
func sum(n *memberlist.Node) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	left := byte(0)
	if n.State == memberlist.StateLeft {
		left = 1
	}
	head := [...]byte{byte(len(n.Addr)), byte(n.Port >> 8), byte(n.Port), left, n.PMin, n.PMax, n.PCur, n.DMin, n.DMax, n.DCur}
	h.Write(head[:])
	h.Write(n.Addr)
	h.Write(n.Meta)
	return h.Sum64()
}

// NotifyAlive is called for each message that a member is alive.
func (a *admit) NotifyAlive(n *memberlist.Node) error {
	if n.Name == a.p.cfg.Name {
		if ip, ok := netip.AddrFromSlice(n.Addr); ok {
			a.p.heard(a.adv, netip.AddrPortFrom(ip, n.Port))
		}
		return a.check(n)
	}
	if err := a.check(n); err != nil {
		return err
	}
	return a.places.take(n.Name, time.Now())
}

// NotifyMerge is called for each exchange of state.
func (a *admit) NotifyMerge(ns []*memberlist.Node) error {
	for _, n := range ns {
		if err := a.check(n); err != nil {
			return err
		}
	}
	return nil
}

// check asks Config.Admit about n, unless it has admitted n as it is.
func (a *admit) check(n *memberlist.Node) error {
	s := sum(n)
	a.mu.Lock()
	was, known := a.admitted[n.Name]
	a.mu.Unlock()
	if known && was == s {
		return nil
	}
	if err := a.ask(n); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.admitted) >= maxAdmitted {
		clear(a.admitted)
	}
	a.admitted[n.Name] = s
	return nil
}

func (a *admit) ask(n *memberlist.Node) error {
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
	if a.p.cfg.Admit == nil {
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
	return a.p.cfg.Admit(fromSerf(m))
}
