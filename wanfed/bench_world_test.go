// SPDX-License-Identifier: MPL-2.0

package wanfed_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
	"github.com/wanfed/wanfed/wanfed"
)

// Datacenters of the benchmarks, one for each kind of receiver.
const (
	dcTunnel = "dc2" // receives with a Tunnel
	dcPlain  = "dc3" // receives with plainPackets and plainStreams
	dcSink   = "dc4" // reads packets and sends echoes back, without a Tunnel
	dcHole   = "dc5" // accepts TLS and never reads
	dcRaw    = "dc6" // receives with rawBulk
)

// benchWorld is one sending server in dc1, one receiving server in each other
// datacenter, and one gateway to all receivers.
type benchWorld struct {
	tunnel  *wanfed.Tunnel         // of the sender
	send    *wanfed.Transport      // of the sender
	plain   *plainPool             // of the sender
	muxes   map[string]*wanfed.Mux // of the receivers, by datacenter
	receive *wanfed.Transport      // of the receiver in dcTunnel
	plainCh chan []byte            // packets that the receiver in dcPlain has read
	raw     *rawBulk               // from the sender to the receiver in dcRaw
	gateway *gatewayProcess
}

// newBenchWorld starts all servers and the gateway. queueBytes is the queue
// size of the sender's links; 0 means the default.
func newBenchWorld(tb testing.TB, queueBytes int) *benchWorld {
	tb.Helper()
	ca := tlstest.NewCA(tb)
	w := &benchWorld{muxes: map[string]*wanfed.Mux{}, plainCh: make(chan []byte), raw: newRawBulk()}
	servers := []tlsutil.Role{tlsutil.RoleServer}
	var routes []gateway.Route
	for dc, add := range map[string]func(*wanfed.Mux, *tlsutil.Identity, string){
		dcTunnel: func(m *wanfed.Mux, id *tlsutil.Identity, addr string) {
			_, w.receive = newTunnel(tb, id, m, addr, &wanfed.SharedAddressBook{}, 0)
		},
		dcPlain: func(m *wanfed.Mux, _ *tlsutil.Identity, _ string) {
			m.Handle(wanfed.ProtoConsulPacket, servers, false, plainPackets(w.plainCh))
			m.Handle(wanfed.ProtoConsulStream, servers, false, plainStreams)
		},
		dcSink: func(m *wanfed.Mux, _ *tlsutil.Identity, _ string) {
			m.Handle(wanfed.ProtoGossip, servers, false, sink)
			m.Handle(wanfed.ProtoConsulPacket, servers, false, plainStreams)
		},
		dcHole: func(m *wanfed.Mux, _ *tlsutil.Identity, _ string) {
			m.Handle(wanfed.ProtoGossip, servers, false, hole)
			m.Handle(wanfed.ProtoConsulPacket, servers, false, hole)
		},
		dcRaw: func(m *wanfed.Mux, _ *tlsutil.Identity, _ string) {
			m.Handle(wanfed.ProtoConsulPacket, servers, false, w.raw.sink)
		},
	} {
		mux, id, ln := newMux(tb, ca, dc)
		add(mux, id, ln.Addr().String())
		background(tb, func(ctx context.Context) error { return mux.Run(ctx, ln) })
		w.muxes[dc] = mux
		for _, name := range []string{"server.", "srv1.server."} {
			routes = append(routes,
				gateway.Route{Match: name + dc + "." + tlsutil.DefaultDomain, To: []string{ln.Addr().String()}})
		}
	}
	w.gateway = startGatewayProcess(tb, routes)
	gw := w.gateway.addr
	book := &wanfed.SharedAddressBook{}
	paths := map[string][]wanfed.Path{}
	for dc := range w.muxes {
		paths[dc] = []wanfed.Path{{Addr: gw, Via: "remote gateway"}}
	}
	book.Store(&wanfed.AddressBook{Paths: paths})
	mux, id, ln := newMux(tb, ca, "dc1")
	w.tunnel, w.send = newTunnel(tb, id, mux, ln.Addr().String(), book, queueBytes)
	background(tb, func(ctx context.Context) error { return mux.Run(ctx, ln) })
	w.plain = newPlainPool(id, gw)
	tb.Cleanup(w.plain.close)
	w.raw.dial(tb, id, gw)
	return w
}

// write sends one packet through the tunnel.
func (w *benchWorld) write(tb testing.TB, packet []byte, to memberlist.Address) {
	if _, err := w.send.WriteToAddress(packet, to); err != nil {
		tb.Error(err)
	}
}

// awaitLink waits until the link to dc has a connection. The caller has written
// a packet to dc.
func (w *benchWorld) awaitLink(tb testing.TB, dc string) {
	tb.Helper()
	testutil.Eventually(tb, 10*time.Second, func() bool {
		return slices.ContainsFunc(w.tunnel.Stats().Links,
			func(l wanfed.LinkStatus) bool { return l.DC == dc && l.Path.Addr != "" })
	}, "a link to %s", dc)
}

// srv1 returns the memberlist address of the server of a datacenter. The tunnel
// ignores the IP address.
func srv1(dc string) memberlist.Address {
	return memberlist.Address{Name: "srv1." + dc, Addr: "10.0.0.1:8300"}
}

func newMux(tb testing.TB, ca *tlstest.CA, dc string) (*wanfed.Mux, *tlsutil.Identity, net.Listener) {
	tb.Helper()
	id := ca.Identity(tb, tlsutil.RoleServer, "srv1", dc)
	mux, err := wanfed.NewMux(wanfed.MuxConfig{Identity: id})
	if err != nil {
		tb.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return mux, id, ln
}

// newTunnel starts a tunnel and returns the tunnel and its WAN transport.
func newTunnel(
	tb testing.TB, id *tlsutil.Identity, mux *wanfed.Mux, addr string, book *wanfed.SharedAddressBook, queueBytes int,
) (*wanfed.Tunnel, *wanfed.Transport) {
	tb.Helper()
	dialer, err := wanfed.NewDialer(wanfed.DialerConfig{Identity: id, AddressBook: book})
	if err != nil {
		tb.Fatal(err)
	}
	tunnel, err := wanfed.NewTunnel(wanfed.TunnelConfig{
		Identity: id, Dialer: dialer, Mux: mux, Advertise: addr,
	})
	if err != nil {
		tb.Fatal(err)
	}
	if queueBytes > 0 {
		wanfed.SetQueueBytes(tunnel, queueBytes)
	}
	background(tb, tunnel.Run)
	return tunnel, tunnel.Transport(wanfed.PoolWAN)
}

// newGateway returns a gateway with one listener on loopback.
func newGateway(routes []gateway.Route) (*gateway.Proxy, *gateway.Listener, error) {
	table, err := gateway.NewTable(routes)
	if err != nil {
		return nil, nil, err
	}
	proxy, err := gateway.New(gateway.Config{Logger: slog.New(slog.DiscardHandler), Drain: -1})
	if err != nil {
		return nil, nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	wan := gateway.NewListener("wan", ln)
	wan.SetTable(table)
	return proxy, wan, nil
}

// background runs f until the benchmark ends, and waits for the return of f.
func background(tb testing.TB, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f(ctx); err != nil {
			tb.Error(err)
		}
	})
	tb.Cleanup(func() { cancel(); wg.Wait() })
}

// hole is a peer that accepts a connection and never reads.
func hole(ctx context.Context, c *tls.Conn, _ tlsutil.Peer) {
	<-ctx.Done()
	c.Close()
}

// sink reads the frames that SPEC.md specifies and sends echo frames back.
func sink(_ context.Context, c *tls.Conn, _ tlsutil.Peer) {
	defer c.Close()
	r := bufio.NewReaderSize(c, 32<<10)
	for {
		head, err := r.Peek(6)
		if err != nil {
			return
		}
		size := 4 + int(binary.BigEndian.Uint32(head))
		if head[4] == 0 {
			if _, err := io.CopyN(c, r, int64(size)); err != nil {
				return
			}
			continue
		}
		if _, err := r.Discard(size); err != nil {
			return
		}
	}
}
