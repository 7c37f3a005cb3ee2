// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
)

// A server that was killed and is started again at another address finds that the others have it alive at the old one.
// memberlist takes a new address only of a member that left or is dead; and where packets go by name, as between datacenters,
// the probes of the old one are answered, so that it never is. So the member leaves under its old address, and then comes
// back under its own. That takes about a second; its member list stays as it is meanwhile.

// quiet is how long after a move the old address is not listened to: others may still be telling it on.
const quiet = 10 * time.Second

// settle is how long the exchange that brought the news of the old address may take to bring the members too.
const settle = 200 * time.Millisecond

// maxKnown bounds the members that are contacted for a move. They tell the others.
const maxKnown = 8

// heard looks at news that this member is alive at addr: is that another address? It must not block.
func (p *Pool) heard(adv, addr netip.AddrPort) {
	if adv != p.cfg.Advertise {
		return
	}
	if addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()); addr == netip.AddrPortFrom(adv.Addr().Unmap(), adv.Port()) {
		return
	}
	select {
	case p.former <- addr:
	default:
	}
}

// move leaves the pool under the address former, and returns the serf that takes the place of s. follow follows its events.
func (p *Pool) move(ctx context.Context, s body, former netip.AddrPort, follow func(*feed)) (body, error) {
	if time.Since(p.moved) < quiet {
		return s, nil
	}
	timer := time.NewTimer(settle)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return s, nil
	}
	known := p.known()
	if len(known) == 0 {
		return s, nil // they will tell it again
	}
	p.cfg.Logger.Info("the pool has this member at another address: leaving there, coming back here (if another server runs there "+
		"under this name, give it one of its own)", "addr", p.cfg.Advertise.String(), "former", former.String())
	if err := s.Shutdown(); err != nil {
		return body{}, err
	}
	old, err := p.create(former, nil)
	if err != nil {
		return body{}, err
	}
	_, err = old.Join(known, true)
	if err == nil {
		err = old.farewell()
	}
	if err != nil {
		p.cfg.Logger.Warn("leaving under the former address", "err", oneLine(err, known))
	}
	if err := old.Shutdown(); err != nil {
		return body{}, err
	}
	f := newFeed()
	if s, err = p.create(p.cfg.Advertise, f.events); err != nil {
		return body{}, err
	}
	follow(f)
	if _, err := s.Join(known, true); err != nil {
		p.cfg.Logger.Warn("coming back", "err", oneLine(err, known))
	}
	p.moved = time.Now()
	p.serf.Store(s.Serf)
	p.begin(f)
	if tags := p.currentTags(); !maps.Equal(tags, s.LocalMember().Tags) { // set meanwhile, on the serf that was
		_ = s.SetTags(tags) // set all the same if its broadcast was not finished in time
	}
	return s, nil
}

// known lists alive members to contact, by name and address.
func (p *Pool) known() []string {
	var out []string
	for _, m := range p.Members() {
		if m.Alive() && m.Name != p.cfg.Name && len(out) < maxKnown {
			out = append(out, m.Name+"/"+m.Addr)
		}
	}
	return out
}

func (p *Pool) currentTags() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.tags)
}

// lent is the pool's transport as one of its serfs sees it: that ends without ending the transport, and tells its own address.
type lent struct {
	memberlist.NodeAwareTransport
	adv netip.AddrPort
}

func (l lent) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return l.adv.Addr().AsSlice(), int(l.adv.Port()), nil
}

func (lent) Shutdown() error { return nil }
