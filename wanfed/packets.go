// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// packetConn is an accepted packet connection. Its reader never waits for anything but the peer's bytes: packets are
// delivered or queued, or dropped.
type packetConn struct {
	t       *Tunnel
	c       *tls.Conn
	p       tlsutil.Peer
	br      *bufio.Reader
	scratch []byte // a packet that is relayed or dropped
}

const packetReadBuffer = 32 << 10 // bytes; two full TLS records

func (t *Tunnel) newPacketConn(c *tls.Conn, p tlsutil.Peer) *packetConn {
	return &packetConn{t: t, c: c, p: p, br: bufio.NewReaderSize(c, packetReadBuffer)}
}

// servePackets reads the frames of a ProtoGossip connection until it ends.
func (t *Tunnel) servePackets(ctx context.Context, c *tls.Conn, p tlsutil.Peer) bool {
	pc := t.newPacketConn(c, p)
	for {
		why, err := pc.frame()
		if err != nil || why != "" {
			t.ended(ctx, c, p, ProtoGossip, why, err)
			return false
		}
	}
}

// serveConsulPackets reads the packets of a ProtoConsulPacket connection, all for this server's WAN pool.
func (t *Tunnel) serveConsulPackets(ctx context.Context, c *tls.Conn, p tlsutil.Peer) bool {
	pc := t.newPacketConn(c, p)
	for {
		why, err := pc.consulFrame()
		if err != nil || why != "" {
			t.ended(ctx, c, p, ProtoConsulPacket, why, err)
			return false
		}
	}
}

// ended counts and logs why a connection, or a stream, that others opened was closed.
func (t *Tunnel) ended(ctx context.Context, c net.Conn, p tlsutil.Peer, alpn string, why refusal, err error) {
	if why != "" && ctx.Err() == nil {
		t.faults.note(why, c.RemoteAddr(), err, "peer", p, "alpn", alpn)
		return
	}
	t.log.Debug("connection ended", "peer", p, "alpn", alpn, "remote", c.RemoteAddr(), "err", err)
}

// head waits for the first byte of the next frame for as long as a peer may be idle, then reads into b within the limit for
// a frame.
func (pc *packetConn) head(b []byte) (refusal, error) {
	if pc.br.Buffered() == 0 {
		pc.c.SetReadDeadline(time.Now().Add(pc.t.tm.peerIdle))
		if _, err := pc.br.Peek(1); err != nil {
			return "", err // between frames: no fault
		}
	}
	return pc.full(b)
}

// full reads all of b within the limit for a frame.
func (pc *packetConn) full(b []byte) (refusal, error) {
	if pc.br.Buffered() < len(b) {
		pc.c.SetReadDeadline(time.Now().Add(pc.t.tm.body))
	}
	_, err := io.ReadFull(pc.br, b)
	switch {
	case err == nil:
		return "", nil
	case isTimeout(err):
		return faultStalled, err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return faultTruncated, io.ErrUnexpectedEOF
	}
	return "", err
}

// frame reads one frame and does with it what routeFor says.
func (pc *packetConn) frame() (refusal, error) {
	var head [frameHeadLen]byte
	if why, err := pc.head(head[:]); err != nil {
		return why, err
	}
	h, err := parseFrameHead(head)
	if err != nil {
		return faultFrame, err
	}
	if h.pool == poolEcho {
		return pc.echo(head)
	}
	name, why, err := pc.name(h.name)
	if err != nil {
		return why, err
	}
	v := routeFor(pc.t.own, pc.p, h.pool, name)
	if v == forbidden {
		return faultLAN, nil
	}
	if v == deliver {
		b := make([]byte, h.packet) // memberlist keeps it
		if why, err := pc.full(b); err != nil {
			return why, err
		}
		pc.deliver(h.pool, b)
		return "", nil
	}
	if cap(pc.scratch) < h.packet {
		pc.scratch = make([]byte, h.packet)
	}
	b := pc.scratch[:h.packet]
	if why, err := pc.full(b); err != nil {
		return why, err
	}
	pc.handOn(v, h.pool, name, b)
	return "", nil
}

// name reads a target's name.
func (pc *packetConn) name(n int) (string, refusal, error) {
	var buf [MaxName]byte
	b := buf[:n]
	if why, err := pc.full(b); err != nil {
		return "", why, err
	}
	if string(b) == pc.t.own.Node {
		return pc.t.own.Node, "", nil
	}
	if err := checkTargetName(b); err != nil {
		return "", faultFrame, err
	}
	return string(b), "", nil
}

// echo sends an echo frame back.
func (pc *packetConn) echo(head [frameHeadLen]byte) (refusal, error) {
	var b [frameHeadLen + echoLen]byte
	copy(b[:], head[:])
	if why, err := pc.full(b[frameHeadLen:]); err != nil {
		return why, err
	}
	pc.c.SetWriteDeadline(time.Now().Add(pc.t.tm.write))
	if _, err := pc.c.Write(b[:]); err != nil {
		if isTimeout(err) {
			return faultUnread, err
		}
		return "", err
	}
	return "", nil
}

// deliver gives memberlist a packet and counts what became of it.
func (pc *packetConn) deliver(pool Pool, b []byte) {
	count, tr := pc.t.traffic(pool, pc.p.DC), pc.t.pool(pool)
	switch {
	case tr == nil:
		count.drop(dropNoPool, 1)
	case tr.receive(b, pc.c.RemoteAddr(), time.Now()):
		count.received.Add(1)
	default:
		count.drop(dropPoolFull, 1)
	}
}

// handOn queues a packet for another server of this datacenter, if it may travel on and there is such a server.
func (pc *packetConn) handOn(v verdict, pool Pool, node string, b []byte) {
	count := pc.t.traffic(pool, pc.p.DC)
	switch {
	case v != relay:
		count.drop(dropMisrouted, 1)
	case pc.t.serverAddr(node) == "":
		count.drop(dropUnknownNode, 1)
	case pc.t.send(pool, target{dc: pc.t.own.DC, node: node}, "", b, time.Now()) == nil:
		count.relayed.Add(1)
	}
}

// consulFrame reads one packet in Consul's framing.
func (pc *packetConn) consulFrame() (refusal, error) {
	var head [lengthLen]byte
	if why, err := pc.head(head[:]); err != nil {
		return why, err
	}
	n, err := parseConsulLength(head)
	if err != nil {
		return faultFrame, err
	}
	b := make([]byte, n)
	if why, err := pc.full(b); err != nil {
		return why, err
	}
	pc.deliver(PoolWAN, b)
	return "", nil
}
