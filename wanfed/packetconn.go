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

	"github.com/hashicorp/memberlist"

	"github.com/wanfed/wanfed/tlsutil"
)

// packetConn is an accepted packet connection. Its reader waits only for bytes
// of the peer. Packets are delivered, queued for a relay, or dropped.
type packetConn struct {
	t    *Tunnel
	c    net.Conn // *tls.Conn
	peer tlsutil.Peer
	from net.Addr
	br   *bufio.Reader

	head    [frameHeadLen + echoLen]byte // of the current frame
	name    [MaxName]byte                // of the current frame
	inFrame bool                         // the read deadline belongs to the current frame

	last   cachedAction
	counts [PoolLAN + 1]*counters // of the peer's datacenter; filled on first use
}

// cachedAction is the result of actionFor for a pool and a target. It holds for
// the life of a connection.
type cachedAction struct {
	pool   Pool // 0: none yet
	target string
	action action
}

// readBufferSize is the size of a packetConn's buffer, in bytes. It is small
// because most links of a large federation are idle.
const readBufferSize = 2 << 10

func (t *Tunnel) newPacketConn(c net.Conn, p tlsutil.Peer) *packetConn {
	return &packetConn{t: t, c: c, peer: p, from: c.RemoteAddr(), br: bufio.NewReaderSize(c, readBufferSize)}
}

// servePackets reads the frames of a ProtoGossip connection, or the packets of
// a ProtoConsulPacket connection, until the connection ends. Consul packets are
// for the WAN pool of this server.
func (t *Tunnel) servePackets(ctx context.Context, c *tls.Conn, p tlsutil.Peer) bool {
	pc, alpn := t.newPacketConn(c, p), c.ConnectionState().NegotiatedProtocol
	next := pc.readFrame
	if alpn == ProtoConsulPacket {
		next = pc.readConsulFrame
	}
	why, err := pc.run(next)
	t.logEnd(ctx, c, p, alpn, why, err)
	return false
}

// logEnd counts and logs the reason for which an accepted connection or stream
// was closed.
func (t *Tunnel) logEnd(ctx context.Context, c net.Conn, p tlsutil.Peer, alpn string, why refusal, err error) {
	if why != "" && ctx.Err() == nil {
		t.refusals.record(why, c.RemoteAddr(), err, "peer", p, "alpn", alpn)
		return
	}
	t.log.Debug("connection ended", "peer", p, "alpn", alpn, "remote", c.RemoteAddr(), "err", err)
}

// run reads frames with next until the connection ends, and returns the cause.
func (pc *packetConn) run(next func() (refusal, error)) (refusal, error) {
	for {
		if pc.br.Buffered() == 0 {
			pc.c.SetReadDeadline(time.Now().Add(pc.t.limits.acceptedIdleTimeout))
			if _, err := pc.br.Peek(1); err != nil {
				return "", err // between frames: not a fault of the peer
			}
		}
		pc.inFrame = false
		if why, err := next(); why != "" || err != nil {
			return why, err
		}
	}
}

// readFull fills b with bytes of the current frame. The whole frame must arrive
// within frameTimeout.
func (pc *packetConn) readFull(b []byte) (refusal, error) {
	if pc.br.Buffered() < len(b) && !pc.inFrame {
		pc.inFrame = true
		pc.c.SetReadDeadline(time.Now().Add(pc.t.limits.frameTimeout))
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

// readFrame reads a ProtoGossip frame and performs the action of actionFor.
func (pc *packetConn) readFrame() (refusal, error) {
	if why, err := pc.readFull(pc.head[:frameHeadLen]); err != nil {
		return why, err
	}
	h, err := parseFrameHead([frameHeadLen]byte(pc.head[:]))
	if err != nil {
		return faultFrame, err
	}
	if h.pool == poolEcho {
		return pc.echo()
	}
	name := pc.name[:h.name]
	if why, err := pc.readFull(name); err != nil {
		return why, err
	}
	if h.pool != pc.last.pool || string(name) != pc.last.target {
		if err := checkTargetName(name); err != nil {
			return faultFrame, err
		}
		pc.last = cachedAction{h.pool, string(name), actionFor(pc.t.self, pc.peer, h.pool, string(name))}
	}
	if pc.last.action == forbidden {
		return faultLAN, nil
	}
	packet, why, err := pc.readPacket(h.packet)
	switch {
	case err != nil:
		return why, err
	case pc.last.action == deliver:
		pc.deliver(h.pool, packet)
	default:
		pc.relay(h.pool, packet)
	}
	return "", nil
}

// echo reads the rest of an echo frame and sends the frame back.
func (pc *packetConn) echo() (refusal, error) {
	if why, err := pc.readFull(pc.head[frameHeadLen:]); err != nil {
		return why, err
	}
	pc.c.SetWriteDeadline(time.Now().Add(pc.t.limits.writeTimeout))
	if _, err := pc.c.Write(pc.head[:]); err != nil {
		if isTimeout(err) {
			return faultUnread, err
		}
		return "", err
	}
	return "", nil
}

// readConsulFrame reads a packet in Consul's framing.
func (pc *packetConn) readConsulFrame() (refusal, error) {
	if why, err := pc.readFull(pc.head[:lengthLen]); err != nil {
		return why, err
	}
	n, err := parseConsulLength([lengthLen]byte(pc.head[:]))
	if err != nil {
		return faultFrame, err
	}
	packet, why, err := pc.readPacket(n)
	if err == nil {
		pc.deliver(PoolWAN, packet)
	}
	return why, err
}

// readPacket reads a packet of n bytes. Its memory grows as the bytes arrive,
// so a peer cannot allocate memory by an announced length alone.
func (pc *packetConn) readPacket(n int) (packet []byte, why refusal, err error) {
	for len(packet) < n && err == nil {
		from := len(packet)
		to := min(n, max(2*from, readBufferSize))
		packet = append(make([]byte, 0, to), packet...)[:to]
		why, err = pc.readFull(packet[from:])
	}
	return packet, why, err
}

// deliver passes a packet to memberlist, which owns and may change it.
func (pc *packetConn) deliver(pool Pool, b []byte) {
	tr := pc.t.pool(pool)
	switch {
	case tr == nil:
		pc.count(pool).drop(dropNoPool, 1)
	case tr.receive(&memberlist.Packet{Buf: b, From: pc.from, Timestamp: time.Now()}):
		pc.count(pool).received.Add(1)
	default:
		pc.count(pool).drop(dropPoolFull, 1)
	}
}

// relay queues a packet for its target, if that is another server of this
// datacenter and the packet may be relayed.
func (pc *packetConn) relay(pool Pool, b []byte) {
	node := pc.last.target
	switch {
	case pc.last.action != relay:
		pc.count(pool).drop(dropMisrouted, 1)
	case pc.t.serverAddr(node) == "":
		pc.count(pool).drop(dropUnknownNode, 1)
	case pc.t.send(pool, target{dc: pc.t.self.DC, node: node}, "", b, time.Now()) == nil:
		pc.count(pool).relayed.Add(1)
	}
}

func (pc *packetConn) count(pool Pool) *counters {
	if pc.counts[pool] == nil {
		pc.counts[pool] = pc.t.traffic(pool, pc.peer.DC)
	}
	return pc.counts[pool]
}
