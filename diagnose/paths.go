// SPDX-License-Identifier: MPL-2.0

package diagnose

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/server/status"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

const (
	// probeTimeout bounds a probe of a path, and each part of it.
	probeTimeout = 3 * time.Second
	// smallTimeout bounds the connection that finds a small MTU.
	smallTimeout = 1500 * time.Millisecond
	// listenerTimeout bounds the probe of a local listener.
	listenerTimeout = 2 * time.Second
	// maxProbes bounds the paths that are probed at once, and maxPaths all paths.
	maxProbes, maxPaths = 64, 128
)

// probe is a path with the result of its probe.
type probe struct {
	path  wanfed.Path
	rtt   time.Duration
	err   error // nil: the path works, at least for small packets
	small bool  // large packets are lost, and small ones pass
}

// mtu reports whether the MTU of the path is the cause of its failure.
func (p probe) mtu() bool { return p.small }

func (p probe) works() bool { return p.err == nil && !p.small }

// works reports whether one of the paths works.
func works(ps []probe) bool { return slices.ContainsFunc(ps, probe.works) }

// dialer returns a Dialer, or nil without a certificate.
func (r *run) dialer(timeout time.Duration) *wanfed.Dialer {
	if r.Identity == nil {
		return nil
	}
	d, err := wanfed.NewDialer(wanfed.DialerConfig{
		Identity: r.Identity, AddressBook: &wanfed.SharedAddressBook{}, AttemptTimeout: timeout,
	})
	if err != nil {
		panic(err) // the configuration is complete
	}
	return d
}

// knownPaths returns the paths to other datacenters: those of the status, or,
// without a status, those of the settings.
func (r *run) knownPaths(st api.Status) map[string][]wanfed.Path {
	paths, s, g := map[string][]wanfed.Path{}, r.Machine.Server, r.Machine.Gateway
	for _, d := range st.Datacenters {
		for _, p := range d.Paths {
			if r.includes(d.Name) {
				local := p.Via == federation.ViaLocalGateway
				paths[d.Name] = append(paths[d.Name], wanfed.Path{Addr: p.Address, Via: p.Via, Local: local})
			}
		}
	}
	if len(st.Datacenters) > 0 {
		return paths
	}
	dcs := slices.Clone(r.Datacenters)
	if s != nil && s.PrimaryDC != "" && s.PrimaryDC != s.DC && r.includes(s.PrimaryDC) {
		for _, addr := range s.PrimaryGateways {
			paths[s.PrimaryDC] = append(paths[s.PrimaryDC], wanfed.Path{Addr: addr, Via: federation.ViaConfigured})
		}
		dcs = append(dcs, s.PrimaryDC)
	}
	if g != nil && g.LAN != "" && listenable(g.LAN) != nil { // through a stopped gateway, nothing is reachable
		slices.Sort(dcs)
		for _, dc := range slices.Compact(dcs) {
			paths[dc] = append(paths[dc], wanfed.Path{Addr: g.LAN, Via: federation.ViaLocalGateway, Local: true})
		}
	}
	return paths
}

// probeAll probes all paths, by datacenter.
func (r *run) probeAll(ctx context.Context, paths map[string][]wanfed.Path) map[string][]probe {
	d := r.dialer(probeTimeout)
	if d == nil {
		r.add(rankPath, Warn, "paths", "not checked without a certificate of the federation",
			"name the settings with --config-file or --dir, or a certificate with --ca-file, --cert-file and --key-file")
		return nil
	}
	var all sync.WaitGroup
	slots, left := make(chan struct{}, maxProbes), maxPaths
	probes := map[string][]probe{}
	for _, dc := range slices.Sorted(maps.Keys(paths)) {
		if dc == r.Identity.Peer().DC {
			continue
		}
		ps := make([]probe, min(len(paths[dc]), left))
		if left -= len(ps); len(ps) == 0 {
			r.add(rankPath, Warn, "paths", fmt.Sprintf("only %d paths are checked, without those to %s", maxPaths, dc),
				"name the datacenters to check")
			break
		}
		probes[dc] = ps
		for i := range ps {
			all.Go(func() {
				slots <- struct{}{}
				ps[i] = r.probe(ctx, d, dc, paths[dc][i])
				<-slots
			})
		}
	}
	all.Wait()
	return probes
}

// probe probes one path with a small and a large record. If a record does not
// pass, it finds out whether smaller packets do.
func (r *run) probe(ctx context.Context, d *wanfed.Dialer, dc string, path wanfed.Path) (p probe) {
	send := func(size int) (time.Duration, error) {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		return d.Probe(ctx, dc, path, size)
	}
	p.path = path
	if p.rtt, p.err = send(0); p.err != nil {
		p.small = wanfed.ClassOf(p.err) == wanfed.FailureTimeout && r.smallPasses(ctx, dc, path.Addr)
		return p
	}
	if _, err := send(wanfed.MaxProbe); err != nil && wanfed.ClassOf(err) == wanfed.FailureTimeout {
		_, err = send(0)
		p.small = err == nil
	}
	return p
}

// noProtocol is the alert of a server that has none of the offered protocols
// (RFC 7301 section 3.2).
const noProtocol = 120

// smallPasses reports whether a server of dc responds through addr if all
// packets are small. A ClientHello without a post-quantum key share has less
// than 500 bytes, and one with it more than 1,400. The offered protocol does not
// exist, so the response is a small alert instead of a certificate.
func (r *run) smallPasses(ctx context.Context, dc, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, smallTimeout)
	defer cancel()
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	defer raw.Close()
	cfg := &tls.Config{
		ServerName: tlsutil.ServerName("", dc, r.Identity.Domain()), NextProtos: []string{"wanfed/none"},
		CurvePreferences: []tls.CurveID{tls.X25519}, MinVersion: tls.VersionTLS13,
		InsecureSkipVerify: true, // the handshake cannot succeed, and a certificate would be large
	}
	alert, isAlert := tlsutil.AlertOf(tls.Client(raw, cfg).HandshakeContext(ctx))
	return isAlert && alert == noProtocol
}

// reportPaths adds a finding for each path, and one for each datacenter that no
// path reaches, unless the status contains it.
func (r *run) reportPaths(st api.Status, probes map[string][]probe) {
	known := map[string]api.DatacenterStatus{}
	for _, d := range st.Datacenters {
		known[d.Name] = d
	}
	for _, dc := range r.Datacenters {
		if _, ok := known[dc]; !ok && len(probes[dc]) == 0 && r.Identity != nil {
			r.add(rankDatacenter, Fail, "paths to "+dc, "no path is known", "check the name; if it has not joined yet, "+
				"set primary_gateways, or start the gateway of this machine")
		}
	}
	for dc, ps := range probes {
		r.reportMTU(dc, ps)
		d, listed := known[dc]
		result := Fail
		// The gateways of this datacenter, which only the server knows, may reach it.
		if !listed && r.Machine.Gateway == nil || r.Machine.isForeign() {
			result = Warn
		}
		unreachable := !works(ps) && !slices.ContainsFunc(ps, probe.mtu)
		if unreachable && (!listed || d.Health() != api.HealthUnreachable) {
			cause, remedy := r.outboundCause(dc, d.Primary, ps)
			if result == Warn {
				remedy = "repeat the command on the machine of a gateway or of a server that runs; " + remedy
			}
			r.add(rankDatacenter, result, "paths to "+dc, cause, remedy)
		}
		for _, p := range ps {
			r.reportPath(fmt.Sprintf("path to %s via %s", dc, p.path.Addr), p, works(ps), result)
		}
	}
}

// reportPath adds the finding of a path. otherWorks reports whether any path to the
// datacenter works, and failed is the result if none does.
func (r *run) reportPath(check string, p probe, otherWorks bool, failed Result) {
	switch {
	case p.works():
		r.add(rankPath, OK, check, fmt.Sprintf("TCP, TLS and echo, round trip %v", p.rtt.Round(100*time.Microsecond)), "")
	case p.small:
		r.add(rankPath, Fail, check, "only small packets pass", "")
	case !otherWorks:
		r.add(rankPath, failed, check, describe(p.err), "")
	case p.path.Local:
		r.add(rankPath, Warn, check, describe(p.err), "start the gateway, or read its log")
	default: // servers need no route to the gateways of other datacenters
		r.add(rankPath, OK, check, fmt.Sprintf("not reachable from here (%s), another path works", wanfed.ClassOf(p.err)), "")
	}
}

func (r *run) reportMTU(dc string, ps []probe) {
	i := slices.IndexFunc(ps, probe.mtu)
	if i < 0 {
		return
	}
	r.add(rankMTU, Fail, "path MTU to "+dc, fmt.Sprintf("large packets through %s are lost, and small ones pass: the path MTU is "+
		"smaller than the sender assumes", ps[i].path.Addr),
		"permit ICMP (fragmentation needed, packet too big) in the firewalls, or lower the MTU of the WAN interface")
}

// outboundCause returns the cause and the remedy in the words of the status.
func (r *run) outboundCause(dc string, primary bool, ps []probe) (cause, remedy string) {
	d := api.DatacenterStatus{Name: dc, Primary: primary || r.Machine.Server != nil && r.Machine.Server.PrimaryDC == dc}
	for _, p := range ps {
		d.Paths = append(d.Paths, api.PathStatus{
			Address: p.path.Addr, Via: p.path.Via, Health: string(wanfed.PathFailing),
			LastError: describe(p.err), Failure: string(wanfed.ClassOf(p.err)),
		})
	}
	return status.OutboundCause(r.Identity.Peer().DC, d)
}
