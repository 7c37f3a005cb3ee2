// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// ProberConfig configures a Prober.
type ProberConfig struct {
	Dialer *Dialer // required; what probes find out is its evidence
	// Every is how long after the last success of a hop, by a dial, a probe or an echo on an open connection, it is probed. Up to a
	// fourth is added by chance. Default (0): 20 s.
	Interval time.Duration
	// Gap is the least time between the beginnings of two probes, over all datacenters. Default (0): 500 ms.
	Gap time.Duration
	// Timeout bounds one probe. Default (0): 5 s.
	Timeout time.Duration
	Logger  *slog.Logger // default: nothing is logged
}

// Prober finds out about hops that no connection uses: that one died before it is needed, and that one came back. It goes the
// whole way: TCP, TLS with the far datacenter's name, ALPN, and an echo at a server there. Servers that speak Consul's protocols
// cannot echo: with them a finished handshake counts.
//
// It costs at most one probe per Gap, whatever the number of datacenters, and maxProbes at a time; nothing when all hops are in
// use. With the defaults up to 40 hops are probed each Every; 1,000 datacenters of 4 hops take half an hour for a round. New hops
// go first in it, and every second probe is for hops that have just failed.
type Prober struct {
	cfg ProberConfig
	d   *Dialer
	log *slog.Logger
}

// maxProbes bounds how many probes run at once: silent hops each hold one for its Timeout.
const maxProbes = 4

// NewProber checks cfg. A Prober holds nothing that needs closing.
func NewProber(cfg ProberConfig) (*Prober, error) {
	if cfg.Dialer == nil {
		return nil, errors.New("prober: no Dialer")
	}
	if cfg.Interval < 0 || cfg.Gap < 0 || cfg.Timeout < 0 {
		return nil, errors.New("prober: Every, Gap and Timeout must not be negative")
	}
	cfg.Interval = cmp.Or(cfg.Interval, 20*time.Second)
	cfg.Gap = cmp.Or(cfg.Gap, 500*time.Millisecond)
	cfg.Timeout = cmp.Or(cfg.Timeout, 5*time.Second)
	return &Prober{cfg: cfg, d: cfg.Dialer, log: orDiscard(cfg.Logger)}, nil
}

// Run probes until ctx ends, and returns nil after the last probe. A change of the book, and a hop that fails, wake it. While it
// runs, a hop that failed stays behind the others until a probe, or a dial, has worked. Call it once.
func (p *Prober) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	p.d.paths.setHold(probedPenalty)
	defer p.d.paths.setHold(penalty)
	done := make(chan pathKey, maxProbes) // room for all that run
	busy := map[pathKey]bool{}
	favour := true
	for {
		changed := p.d.cfg.AddressBook.Changed()
		plan := p.next(busy, favour)
		if plan.found {
			busy[plan.key] = true
			favour = !plan.urgent
			wg.Go(func() {
				p.probe(ctx, plan.key.dc, plan.hop)
				done <- plan.key
			})
			if !sleep(ctx, p.cfg.Gap) {
				return nil
			}
			for len(done) > 0 {
				delete(busy, <-done)
			}
			continue
		}
		timer := time.NewTimer(cmp.Or(plan.wait, time.Hour))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case k := <-done:
			delete(busy, k)
		case <-changed:
		case <-p.d.paths.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// next is what to probe now, if there is room for another probe.
func (p *Prober) next(busy map[pathKey]bool, favour bool) probePlan {
	if len(busy) >= maxProbes {
		return probePlan{} // one that ends wakes Run
	}
	return p.d.paths.plan(p.cfg.Interval, busy, favour, time.Now())
}

// probe probes one hop and records what that told about it.
func (p *Prober) probe(ctx context.Context, dc string, hop Path) {
	pctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	path, rtt, err := p.d.probe(pctx, dc, hop)
	if ctx.Err() != nil {
		return
	}
	count := func(s *pathState) {
		s.Probes++
		s.probed, s.spread = time.Now(), rand.Float64()
	}
	if err == nil {
		p.d.paths.worked(dc, hop, path.addr, rtt, count)
		p.d.worked.note(dc)
		p.log.Debug("probe", "peer", "*."+dc, "gateway", hop.Addr, "remote", path.addr, "rtt", rtt)
		return
	}
	p.d.paths.failed(dc, hop, err, func(s *pathState) {
		count(s)
		s.fails++
		s.ProbeFailures++
		s.Probed = true
	})
	p.log.Debug("probe failed", "peer", "*."+dc, "gateway", hop.Addr, "err", err)
}

// probe goes to any server of dc through hop and back.
func (d *Dialer) probe(ctx context.Context, dc string, hop Path) (path *pathConn, rtt time.Duration, err error) {
	a := &attempt{
		d: d, dc: dc, sni: tlsutil.ServerName("", dc, d.cfg.Identity.Domain()), alpn: []string{ProtoGossip, ProtoConsulPacket},
	}
	c, err := a.through(ctx, hop)
	if err != nil {
		return nil, 0, err
	}
	defer closeConn(c)
	if path = pathOf(c); c.ConnectionState().NegotiatedProtocol != ProtoGossip {
		return path, path.roundTrip(), nil
	}
	stop := context.AfterFunc(ctx, func() { c.NetConn().Close() })
	defer stop()
	rtt, err = askEcho(c, rand.Uint64())
	if ctx.Err() != nil {
		err = fmt.Errorf("%w (%w)", errNoEcho, ctx.Err())
	}
	return path, rtt, err
}

// errNoEcho says that a path carried TLS, but that what is behind it did not answer.
var errNoEcho = errors.New("no echo from a server")

// askEcho sends an echo frame and waits until it comes back.
func askEcho(c *tls.Conn, n uint64) (time.Duration, error) {
	ask := appendEcho(nil, n)
	began := time.Now()
	if _, err := c.Write(ask); err != nil {
		return 0, fmt.Errorf("%w: write: %w", errNoEcho, err)
	}
	var got [frameHeadLen + echoLen]byte
	if _, err := io.ReadFull(c, got[:]); err != nil {
		return 0, fmt.Errorf("%w: read: %w", errNoEcho, err)
	}
	if string(got[:]) != string(ask) {
		return 0, fmt.Errorf("%w: something else came back", errNoEcho)
	}
	return time.Since(began), nil
}
