// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/wanfed/wanfed/tlsutil"
)

// packetConn is a connection that carries packets from a peer: an accepted one, or
// a dialed one of a link. Its reader waits only for bytes of the peer. It delivers a
// packet to memberlist, queues the packet for another server, or drops the packet.
type packetConn struct {
	t    *Tunnel
	c    net.Conn // *tls.Conn
	peer tlsutil.Peer
	from net.Addr // the peer, which is the sender of all packets but relayed ones
	br   *bufio.Reader

	link   *linkConn // receives the echoes and has the read deadlines; nil: an accepted connection
	relays bool      // ProtoRelay: the peer names the sender of a packet that it relays

	head    [frameHeadLen + echoLen]byte // of the current frame
	name    [MaxName]byte                // of the current frame
	inFrame bool                         // the read deadline belongs to the current frame
	seen    time.Time                    // last update of counters.lastReceived

	borrowed time.Time     // last packet over a dialed connection
	received atomic.Int64  // age of the tunnel at the last update of seen
	ended    chan struct{} // closed at the end of an accepted ProtoDuplex connection
}

// readBufferSize is the size of the buffer of a packetConn, in bytes. It is
// small because most connections of a large federation are idle.
const readBufferSize = 2 << 10

func (t *Tunnel) newPacketConn(c net.Conn, p tlsutil.Peer) *packetConn {
	return &packetConn{t: t, c: c, peer: p, from: nameAddr(p.Node + "." + p.DC),
		br: bufio.NewReaderSize(c, readBufferSize), ended: make(chan struct{})}
}

// servePackets reads the frames of a connection, or the packets of a
// ProtoConsulPacket connection, until the connection ends. It returns false,
// because it does not pass the connection on.
func (t *Tunnel) servePackets(ctx context.Context, c *tls.Conn, p tlsutil.Peer) bool {
	pc, alpn := t.newPacketConn(c, p), c.ConnectionState().NegotiatedProtocol
	next := pc.readFrame
	pc.relays = alpn == ProtoRelay
	if alpn == ProtoConsulPacket {
		next = pc.readConsulFrame
	}
	if alpn == ProtoDuplex {
		defer t.offer(pc)()
	}
	reason, err := pc.run(next)
	t.logEnd(ctx, c, p, alpn, reason, err)
	return false
}

// logEnd logs the end of an accepted connection or stream. If the peer caused
// the end by a fault, reason is the fault, and logEnd also counts it. Otherwise
// reason is nil.
func (t *Tunnel) logEnd(ctx context.Context, c net.Conn, p tlsutil.Peer, alpn string, reason *refusal, err error) {
	if reason != nil && ctx.Err() == nil {
		t.refusals.record(reason, c.RemoteAddr(), err, "peer", p, "alpn", alpn)
		return
	}
	t.log.Debug("connection ended", "peer", p, "alpn", alpn, "remote", c.RemoteAddr(), "err", err)
}

// run reads frames with next until the connection ends. It returns the error
// that ended the connection, and the fault of the peer, if any.
func (pc *packetConn) run(next func() (*refusal, error)) (*refusal, error) {
	for {
		if pc.br.Buffered() == 0 {
			pc.setReadDeadline(pc.t.limits.acceptedIdleTimeout)
			if _, err := pc.br.Peek(1); err != nil {
				return nil, err // between frames: not a fault of the peer
			}
			// A borrower of this connection sends few packets, and no echo requests.
			if now := time.Now(); pc.link == nil || now.Sub(pc.borrowed) < borrowMax {
				pc.markReceived(now)
			}
		}
		pc.inFrame = false
		if reason, err := next(); reason != nil || err != nil {
			return reason, err
		}
	}
}

func (pc *packetConn) setReadDeadline(d time.Duration) {
	if pc.link == nil {
		pc.c.SetReadDeadline(time.Now().Add(d))
	}
}

// markReceived records that the peer sends. It updates the shared counter at
// most once per second, because packets may arrive fast.
func (pc *packetConn) markReceived(now time.Time) {
	if now.Sub(pc.seen) >= time.Second {
		pc.seen = now
		pc.received.Store(int64(now.Sub(pc.t.began)))
		pc.count(PoolWAN).lastReceived.Store(now.UnixNano())
	}
}

// readFull fills b with bytes of the current frame. The whole frame must arrive
// within frameTimeout.
func (pc *packetConn) readFull(b []byte) (*refusal, error) {
	if pc.br.Buffered() < len(b) && !pc.inFrame {
		pc.inFrame = true
		pc.setReadDeadline(pc.t.limits.frameTimeout)
	}
	_, err := io.ReadFull(pc.br, b)
	switch {
	case err == nil:
		return nil, nil
	case isTimeout(err):
		return faultStalled, err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return faultTruncated, io.ErrUnexpectedEOF
	}
	return nil, err
}

// readFrame reads a frame and performs the action that actionFor returns. A peer
// that was dialed sends only echoes, except over ProtoDuplex.
func (pc *packetConn) readFrame() (*refusal, error) {
	if reason, err := pc.readFull(pc.head[:frameHeadLen]); err != nil {
		return reason, err
	}
	h, err := parseFrameHead([frameHeadLen]byte(pc.head[:]))
	if err != nil {
		return faultFrame, err
	}
	switch {
	case h.pool == poolEcho:
		return pc.readEcho()
	case pc.link != nil && !pc.link.duplex:
		return faultFrame, fmt.Errorf("peer sent a frame that is not an echo: %w: %d", errFramePool, h.pool)
	case h.pool == poolRelayed && !pc.relays:
		return faultFrame, fmt.Errorf("%w: %d", errFramePool, h.pool)
	}
	name := pc.name[:h.name]
	if reason, err := pc.readFull(name); err != nil {
		return reason, err
	}
	if err := checkTargetName(name); err != nil {
		return faultFrame, err
	}
	handling := actionFor(pc.t.self, pc.peer, h.pool.counted(), string(name))
	if handling == forbidden {
		return faultLAN, nil
	}
	packet, reason, err := pc.readPacket(h.packet)
	if pc.link != nil {
		pc.borrowed = time.Now()
	}
	from := pc.from
	if err == nil && h.pool == poolRelayed {
		from, packet, err = pc.splitRelayed(packet)
		reason = faultFrame
	}
	switch pool := h.pool.counted(); {
	case err != nil:
		return reason, err
	case handling == deliver:
		pc.deliver(pool, from, packet)
	case handling == relay:
		pc.relay(string(name), packet)
	default:
		pc.count(pool).drop(dropMisrouted, 1)
	}
	return nil, nil
}

// splitRelayed returns the sender and the packet of a relayed frame. A server
// relays only for senders of other datacenters.
func (pc *packetConn) splitRelayed(b []byte) (net.Addr, []byte, error) {
	source, packet, err := splitRelayed(b)
	if err != nil {
		return nil, nil, err
	}
	if _, dc, _ := strings.Cut(source, "."); dc == pc.t.self.DC {
		return nil, nil, fmt.Errorf("%w: source %s of a relayed packet is in this datacenter", errFrameName, source)
	}
	return nameAddr(source), slices.Clone(packet), nil
}

// readEcho reads the rest of an echo frame. It sends a request back, and passes a
// response to the link.
func (pc *packetConn) readEcho() (*refusal, error) {
	if reason, err := pc.readFull(pc.head[frameHeadLen:]); err != nil {
		return reason, err
	}
	if pc.link != nil {
		return nil, pc.link.echoed(time.Duration(binary.BigEndian.Uint64(pc.head[frameHeadLen:])))
	}
	pc.c.SetWriteDeadline(time.Now().Add(pc.t.limits.writeTimeout))
	if _, err := pc.c.Write(pc.head[:]); err != nil {
		if isTimeout(err) {
			return faultUnread, err
		}
		return nil, err
	}
	return nil, nil
}

// readConsulFrame reads a packet in Consul's framing. The packet is for the WAN
// pool of this server.
func (pc *packetConn) readConsulFrame() (*refusal, error) {
	if reason, err := pc.readFull(pc.head[:lengthLen]); err != nil {
		return reason, err
	}
	n, err := parseConsulLength([lengthLen]byte(pc.head[:]))
	if err != nil {
		return faultFrame, err
	}
	packet, reason, err := pc.readPacket(n)
	if err == nil {
		pc.deliver(PoolWAN, pc.from, packet)
	}
	return reason, err
}

// readPacket reads a packet of n bytes. The memory grows as the bytes arrive. A
// peer therefore cannot allocate memory by announcing a length.
func (pc *packetConn) readPacket(n int) (packet []byte, reason *refusal, err error) {
	for len(packet) < n && err == nil {
		from := len(packet)
		to := min(n, max(2*from, readBufferSize))
		packet = append(make([]byte, 0, to), packet...)[:to]
		reason, err = pc.readFull(packet[from:])
	}
	return packet, reason, err
}

// deliver passes a packet of a sender to memberlist, which then owns b.
func (pc *packetConn) deliver(pool Pool, from net.Addr, b []byte) {
	tr := pc.t.pool(pool)
	switch {
	case tr == nil:
		pc.count(pool).drop(dropNoPool, 1)
	case tr.receive(&memberlist.Packet{Buf: b, From: from, Timestamp: time.Now()}):
		pc.count(pool).received.Add(1)
	default:
		pc.count(pool).drop(dropPoolFull, 1)
	}
}

// relay queues a packet of the WAN pool for another server of this datacenter,
// with the name of the peer. It drops the packet if the server is unknown.
func (pc *packetConn) relay(node string, b []byte) {
	to := target{dc: pc.t.self.DC, node: node}
	if pc.t.serverAddr(node) == "" {
		pc.count(PoolWAN).drop(dropUnknownNode, 1)
	} else if pc.t.send(poolRelayed, to, "", relayedPacket(pc.from.String(), b), time.Now()) == nil {
		pc.count(PoolWAN).relayed.Add(1)
	}
}

// count returns the counters of pool and the peer's datacenter.
func (pc *packetConn) count(pool Pool) *counters { return pc.t.traffic(pool, pc.peer.DC) }
