// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"context"
	"maps"
	"net/netip"
	"time"

	"github.com/hashicorp/serf/serf"

	"github.com/wanfed/wanfed/internal/backoff"
)

// A killed server may restart at another address while other members still list
// it as alive at the old address. memberlist accepts a new address only for a
// member that left or is dead. Packets to another datacenter are addressed by
// name, so probes of the old address succeed, and the member does not become
// dead. Therefore the member leaves under its old address and then rejoins
// under its own address. Both steps take about a second. The member list does
// not change during that time.

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
)

// checkOwnAddr notifies Run if addr, at which another member lists this member
// as alive, is not the address of this member. advertise is the address of the
// serf instance that received the report. checkOwnAddr does not block.
func (p *Pool) checkOwnAddr(advertise, addr netip.AddrPort) {
	if advertise != p.cfg.Advertise {
		return // the instance leaves under a stale address
	}
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	if addr == netip.AddrPortFrom(advertise.Addr().Unmap(), advertise.Port()) {
		return
	}
	select {
	case p.staleAddr <- addr:
	default:
	}
}

// rejoin leaves the pool under the address stale. It replaces the serf instance
// s by a new one, calls follow with the events of the new instance, and returns
// it. It returns s if the rejoin is not possible yet.
func (p *Pool) rejoin(
	ctx context.Context, s instance, stale netip.AddrPort, follow func(<-chan serf.Event),
) (instance, error) {
	if time.Since(p.rejoined) < rejoinPause {
		return s, nil
	}
	if p.cfg.NameTaken != nil && p.cfg.NameTaken(ctx, stale) {
		p.rejoined = time.Now()
		return s, nil
	}
	if backoff.Sleep(ctx, exchangeGrace, nil); ctx.Err() != nil {
		return s, nil
	}
	contacts := p.contacts()
	if len(contacts) == 0 {
		return s, nil // a member will report the stale address again
	}
	p.cfg.Logger.Info("rejoin: members list this server at another address",
		"addr", p.cfg.Advertise.String(), "stale_addr", stale.String())
	if err := s.Shutdown(); err != nil {
		return instance{}, err
	}
	old, err := p.create(stale, nil)
	if err != nil {
		return instance{}, err
	}
	_, err = old.Join(contacts, true)
	if err == nil {
		err = old.leave()
	}
	if err != nil {
		p.cfg.Logger.Warn("cannot leave under the stale address", "err", oneLine(err, contacts))
	}
	if err := old.Shutdown(); err != nil {
		return instance{}, err
	}
	events := newEvents()
	if s, err = p.create(p.cfg.Advertise, events); err != nil {
		return instance{}, err
	}
	follow(events)
	if _, err := s.Join(contacts, true); err != nil {
		p.cfg.Logger.Warn("cannot rejoin", "err", oneLine(err, contacts))
	}
	p.rejoined = time.Now()
	p.serf.Store(s.Serf)
	p.setEvents(events)
	// SetTags may have changed the former instance during the rejoin.
	if tags := p.currentTags(); !maps.Equal(tags, s.LocalMember().Tags) {
		_ = s.SetTags(tags) // fails only if the broadcast times out, after the tags are set
	}
	return s, nil
}

// contacts returns the Join addresses of up to maxContacts alive members.
func (p *Pool) contacts() []string {
	var out []string
	for _, m := range p.Members() {
		if m.Alive() && m.Name != p.cfg.Name && len(out) < maxContacts {
			out = append(out, m.Name+"/"+m.Addr)
		}
	}
	return out
}
