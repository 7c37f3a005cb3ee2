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

// A server that was killed and restarted at another address is still alive at
// the old address in the lists of the others. memberlist accepts a new address
// only for a member that left or is dead. Between datacenters, packets are
// addressed by name, so probes of the old address succeed and the member never
// becomes dead. Therefore the member leaves under its old address and then
// rejoins under its own address. Both steps take about a second. During that
// time its member list does not change.

const (
	// rejoinPause is the time after a rejoin during which reports of a stale
	// address are ignored, because gossip may still carry them.
	rejoinPause = 10 * time.Second
	// exchangeGrace is the time in which the state exchange that reported the
	// stale address also adds the members.
	exchangeGrace = 200 * time.Millisecond
	// maxContacts limits the members that a rejoin contacts. Gossip from these
	// members reaches all others.
	maxContacts = 8
)

// checkOwnAddr is called for each message that this member is alive at addr. If
// addr is not the advertised address, checkOwnAddr notifies Run. It must not
// block.
func (p *Pool) checkOwnAddr(adv, addr netip.AddrPort) {
	if adv != p.cfg.Advertise {
		return // from the instance that leaves under the old address
	}
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	if addr == netip.AddrPortFrom(adv.Addr().Unmap(), adv.Port()) {
		return
	}
	select {
	case p.staleAddr <- addr:
	default:
	}
}

// rejoin leaves the pool under the address stale and returns the serf instance
// that replaces s. It calls follow with the new instance's events.
func (p *Pool) rejoin(
	ctx context.Context, s instance, stale netip.AddrPort, follow func(<-chan serf.Event),
) (instance, error) {
	if time.Since(p.rejoined) < rejoinPause {
		return s, nil
	}
	if backoff.Sleep(ctx, exchangeGrace, nil); ctx.Err() != nil {
		return s, nil
	}
	contacts := p.contacts()
	if len(contacts) == 0 {
		return s, nil // the stale address will be reported again
	}
	p.cfg.Logger.Info("members list this server at another address: rejoining "+
		"(if another server runs there under this name, give it a name of its own)",
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
		_ = s.SetTags(tags) // an error only means that the broadcast timed out
	}
	return s, nil
}

// contacts returns the names and addresses of alive members.
func (p *Pool) contacts() []string {
	var out []string
	for _, m := range p.Members() {
		if m.Alive() && m.Name != p.cfg.Name && len(out) < maxContacts {
			out = append(out, m.Name+"/"+m.Addr)
		}
	}
	return out
}
