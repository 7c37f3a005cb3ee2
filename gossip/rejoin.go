// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/wanfed/wanfed/internal/backoff"
)

// A killed server may restart at another address while other members still list
// it as alive at the old address. memberlist accepts a new address only for a
// member that left or is dead. Packets to another datacenter are addressed by
// name, so probes of the old address succeed, and the member does not become
// dead. Therefore the member announces its own departure from the old address.
// memberlist then refutes the announcement with the present address.
//
// A compromised server can cause such announcements with forged members, one
// per rejoinPause. They cost no memory, and this member keeps its list. In a pool
// with groups, the announcement goes only to the members that reported the
// address. A report from another group causes no call of NameTaken, which dials
// the address.

const (
	// rejoinPause is the time after a rejoin, or after a call of
	// Config.NameTaken, during which reports of a stale address are ignored,
	// because gossip may still carry them.
	rejoinPause = 10 * time.Second
	// exchangeGrace is the wait for the members in the state exchange that
	// reported the stale address.
	exchangeGrace = 200 * time.Millisecond
	// maxContacts limits the members that a rejoin contacts. Gossip from these
	// members reaches all others.
	maxContacts = 8
	// maxReports limits the members that a rejoin contacts in a pool with groups.
	maxReports = 64
)

// staleAddr is an address at which another member lists this member as alive.
type staleAddr struct {
	addr        netip.AddrPort
	incarnation uint32
	reporter    string // the member that reported it
}

// rejoin removes the address stale from the lists of other members. It does
// nothing if this is not possible yet.
func (p *Pool) rejoin(ctx context.Context, s instance, stale staleAddr) {
	groups := p.hearsay.enabled()
	if !groups && time.Since(p.rejoined) < rejoinPause || time.Since(p.reporters[stale.reporter]) < rejoinPause {
		return
	}
	local := !groups || p.hearsay.believes(stale.reporter, p.cfg.Name)
	if local && p.cfg.NameTaken != nil && time.Since(p.rejoined) >= rejoinPause && p.cfg.NameTaken(ctx, stale.addr) {
		p.rejoined = time.Now()
		return
	}
	if backoff.Sleep(ctx, exchangeGrace, nil); ctx.Err() != nil {
		return
	}
	var contacts []Member
	if groups {
		contacts, stale.incarnation = p.reports(stale)
	} else {
		contacts = p.contacts()
	}
	if len(contacts) == 0 {
		return // a member will report the stale address again
	}
	if local {
		p.rejoined = time.Now()
	}
	p.cfg.Logger.Info("rejoin: members list this server at another address",
		"addr", p.cfg.Advertise.String(), "stale_addr", stale.addr.String())
	departure, err := p.inspector.encrypt(deadMessage(p.cfg.Name, stale.incarnation))
	if err != nil {
		p.cfg.Logger.Warn("cannot rejoin", "err", err)
		return
	}
	var addrs []string
	for _, m := range contacts {
		// After an error, the member reports the stale address again.
		_, _ = p.cfg.Transport.WriteToAddress(departure, memberlist.Address{Addr: m.Addr, Name: m.Name})
		addrs = append(addrs, m.Name+"/"+m.Addr)
	}
	// One gossip round forwards the departure before the refutation follows.
	backoff.Sleep(ctx, s.cfg.MemberlistConfig.GossipInterval+leavePropagateDelay, nil)
	if !p.inspector.inject(ctx.Done(), departure, p.cfg.Advertise) {
		return
	}
	if _, err := s.Join(addrs, true); err != nil {
		p.cfg.Logger.Warn("cannot rejoin", "err", oneLine(err, addrs))
	}
}

// reports returns the members that have reported stale addresses, and the
// highest incarnation in these reports.
func (p *Pool) reports(stale staleAddr) (reporters []Member, incarnation uint32) {
	now := time.Now()
	for {
		m, found := p.member(stale.reporter)
		old := now.Sub(p.reporters[stale.reporter]) < rejoinPause
		if known := slices.ContainsFunc(reporters, func(r Member) bool { return r.Name == m.Name }); !known && found && !old {
			reporters = append(reporters, m)
		}
		if found && !old && plausible(stale.incarnation, now) {
			incarnation = max(incarnation, stale.incarnation)
		}
		select {
		case stale = <-p.inspector.stale:
			continue
		default:
		}
		if len(p.reporters) > maxMembers {
			clear(p.reporters)
		}
		for _, m := range reporters {
			p.reporters[m.Name] = now
		}
		return reporters, incarnation
	}
}

// contacts returns up to maxContacts alive members.
func (p *Pool) contacts() []Member {
	var out []Member
	for _, m := range p.Members() {
		if m.Alive() && m.Name != p.cfg.Name && len(out) < maxContacts {
			out = append(out, m)
		}
	}
	return out
}

// deadMessage encodes memberlist's message that a member has left.
func deadMessage(name string, incarnation uint32) []byte {
	return encodeMessage(deadMsg, struct {
		Incarnation uint32
		Node, From  string
	}{incarnation, name, name})
}
