// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/tlsutil"
)

// oneWay is the one-way delay between two datacenters.
const oneWay = 40 * time.Millisecond

// gatewayDouble replaces a gateway process. It reads the ClientHello with the
// real parser and routes by its SNI, as a real gateway does. It uses the
// address book of a server of its datacenter, where a real gateway has a
// replica. After the ClientHello it joins the two connections inside the
// network. Forwarding then costs nothing, and thousands of gateways fit into
// one process.
type gatewayDouble struct {
	net        *network
	site       *site
	lan        string
	wg         sync.WaitGroup
	ctx        context.Context // lifetime of the gateway; network callbacks have no context
	cancel     context.CancelFunc
	nextServer atomic.Uint64

	mu  sync.Mutex
	wan string
	cut *atomic.Bool // cuts all connections over the current WAN address
}

func newGateway(n *network, s *site, lan, wan string) *gatewayDouble {
	g := &gatewayDouble{net: n, site: s, lan: lan}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	n.listen(lan, endpoint{accept: func(c *conn) { g.wg.Go(func() { g.forward(c, g.outward) }) }})
	g.move(wan)
	return g
}

// move gives the gateway another WAN address. Connections over the old address
// silently lose all data.
func (g *gatewayDouble) move(wan string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cut != nil {
		g.net.remove(g.wan)
		g.cut.Store(true)
	}
	g.wan, g.cut = wan, &atomic.Bool{}
	accept := func(c *conn) { g.wg.Go(func() { g.forward(c, g.inward) }) }
	g.net.listen(wan, endpoint{delay: oneWay, cut: g.cut, accept: accept})
}

func (g *gatewayDouble) close() {
	g.cancel()
	g.wg.Wait()
}

// helloTimeout is how long a client may take to send its ClientHello.
const helloTimeout = 5 * time.Second

// forward reads the ClientHello and joins c to the connection that route
// returns.
func (g *gatewayDouble) forward(c *conn, route func(context.Context, string) (*conn, error)) {
	c.SetReadDeadline(time.Now().Add(helloTimeout))
	var parser gateway.HelloParser
	var received []byte
	buf := make([]byte, 4096)
	for {
		n, err := c.Read(buf)
		if err != nil {
			c.Close()
			return
		}
		received = append(received, buf[:n]...)
		hello, err := parser.Parse(received)
		if errors.Is(err, gateway.ErrNeedMore) {
			continue
		}
		var upstream *conn
		if err == nil {
			ctx, cancel := context.WithTimeout(g.ctx, 10*time.Second)
			upstream, err = route(ctx, string(hello.SNI))
			cancel()
		}
		if err != nil {
			c.Close()
			return
		}
		c.SetReadDeadline(time.Time{})
		upstream.out.push(received)
		c.in.join(upstream.out)
		upstream.in.join(c.out)
		return
	}
}

// outward connects a server of the local datacenter to a gateway of another
// one.
func (g *gatewayDouble) outward(ctx context.Context, sni string) (*conn, error) {
	p, ok := tlsutil.ParseName(sni, tlsutil.DefaultDomain)
	if !ok {
		return nil, errNoRoute
	}
	g.mu.Lock()
	cut := g.cut
	g.mu.Unlock()
	book := g.site.servers[0].book.Load()
	for _, path := range book.Paths[p.DC] {
		if path.Addr == g.lan {
			continue
		}
		dialCtx, cancel := context.WithTimeout(ctx, 3*time.Second)
		c, err := g.net.dial(dialCtx, addrOf(g.lan), path.Addr, nil)
		cancel()
		if err == nil {
			return g.withCut(c, cut), nil
		}
	}
	return nil, errNoRoute
}

// withCut returns c with both directions cut by cut, which belongs to the WAN
// address that c uses.
func (g *gatewayDouble) withCut(c *conn, cut *atomic.Bool) *conn {
	out, in := newHalf(0, cut), newHalf(0, cut)
	out.join(c.out)
	c.in.join(in)
	return &conn{in: in, out: out, local: c.local, remote: c.remote}
}

// inward connects another datacenter to a server of the local one.
func (g *gatewayDouble) inward(ctx context.Context, sni string) (*conn, error) {
	p, ok := tlsutil.ParseName(sni, tlsutil.DefaultDomain)
	if !ok || p.DC != g.site.dc {
		return nil, errNoRoute
	}
	first := int(g.nextServer.Add(1))
	for i := range g.site.servers {
		s := g.site.servers[(first+i)%len(g.site.servers)]
		if p.Node == "" || p.Node == s.name {
			return g.net.dial(ctx, addrOf(g.lan), s.host.addr.String(), nil)
		}
	}
	return nil, errNoRoute
}

var errNoRoute = errors.New("no route")

func addrOf(s string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(s)) }
