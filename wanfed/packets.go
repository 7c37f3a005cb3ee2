// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
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
//
// What is read into buf is parsed there. Packets for memberlist, which keeps and changes them, leave it as copies: those that
// came one after the other in one piece of memory, a parcel.
type packetConn struct {
	t    *Tunnel
	c    net.Conn // *tls.Conn
	p    tlsutil.Peer
	from net.Addr

	buf     []byte // buf[r:w] was read and is not parsed yet
	r, w    int
	now     time.Time // of the last read
	limited bool      // the read deadline is that of the frame whose first bytes are buf[r:w]

	last   route
	parcel parcel
	counts [PoolLAN + 1]*counters // of p's datacenter, once needed
}

// route is what routeFor said for a pool and a target: the same again for as long as the connection lasts.
type route struct {
	pool    Pool // 0: none yet
	target  string
	verdict verdict
}

// Bounds of a packetConn's buffer, in bytes. A larger frame makes it as large as it needs, until it has been parsed. The buffer grows
// with what comes, and shrinks again while only echoes come: most links of a large federation are quiet.
const (
	minReadBuffer = 512
	maxReadBuffer = 32 << 10
)

func (t *Tunnel) newPacketConn(c net.Conn, p tlsutil.Peer) *packetConn {
	return &packetConn{t: t, c: c, p: p, from: c.RemoteAddr(), buf: make([]byte, minReadBuffer), now: time.Now()}
}

// servePackets reads the frames of a ProtoGossip connection until it ends.
func (t *Tunnel) servePackets(ctx context.Context, c *tls.Conn, p tlsutil.Peer) bool {
	pc := t.newPacketConn(c, p)
	why, err := pc.run(pc.frame)
	t.ended(ctx, c, p, ProtoGossip, why, err)
	return false
}

// serveConsulPackets reads the packets of a ProtoConsulPacket connection, all for this server's WAN pool.
func (t *Tunnel) serveConsulPackets(ctx context.Context, c *tls.Conn, p tlsutil.Peer) bool {
	pc := t.newPacketConn(c, p)
	why, err := pc.run(pc.consulFrame)
	t.ended(ctx, c, p, ProtoConsulPacket, why, err)
	return false
}

// ended counts and logs why a connection, or a stream, that others opened was closed.
func (t *Tunnel) ended(ctx context.Context, c net.Conn, p tlsutil.Peer, alpn string, why refusal, err error) {
	if why != "" && ctx.Err() == nil {
		t.faults.note(why, c.RemoteAddr(), err, "peer", p, "alpn", alpn)
		return
	}
	t.log.Debug("connection ended", "peer", p, "alpn", alpn, "remote", c.RemoteAddr(), "err", err)
}

// run reads until the connection ends, and says why it did. frame takes the frame that begins at r; size 0 means that it is not
// whole yet.
func (pc *packetConn) run(frame func() (size int, why refusal, err error)) (refusal, error) {
	for {
		size, why, err := frame()
		if size == 0 || why != "" || err != nil {
			pc.deliver()
		}
		if why != "" || err != nil {
			return why, err
		}
		if size > 0 {
			pc.r += size
			pc.limited = false
			continue
		}
		if why, err := pc.fill(); err != nil {
			return why, err
		}
	}
}

// fill reads once, for as long as a peer may be idle, or within the limit of the frame that has begun.
func (pc *packetConn) fill() (refusal, error) {
	begun := pc.w > pc.r
	pc.makeRoom()
	if !begun {
		pc.c.SetReadDeadline(pc.now.Add(pc.t.tm.peerIdle))
	} else if !pc.limited {
		pc.c.SetReadDeadline(pc.now.Add(pc.t.tm.body))
	}
	pc.limited = begun
	n, err := pc.c.Read(pc.buf[pc.w:])
	if pc.w += n; !begun && n < len(pc.buf)/4 {
		pc.shrink()
	}
	pc.now = time.Now()
	switch {
	case n > 0 || err == nil:
		return "", nil // an error comes again
	case !begun:
		return "", err // between frames: no fault
	case isTimeout(err):
		return faultStalled, err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return faultTruncated, io.ErrUnexpectedEOF
	}
	return "", err
}

// shrink halves the buffer, which was empty before a read that needed little of it.
func (pc *packetConn) shrink() {
	if size := len(pc.buf) / 2; size >= minReadBuffer {
		to := make([]byte, size)
		pc.w = copy(to, pc.buf[pc.r:pc.w])
		pc.buf, pc.r = to, 0
		pc.parcel.packets = nil // all were delivered
	}
}

// makeRoom makes buf[w:] not empty: it moves what is not parsed to the beginning, into a larger buffer where that was full.
func (pc *packetConn) makeRoom() {
	size, full := len(pc.buf), pc.w == len(pc.buf)
	if full && size < maxReadBuffer || full && pc.r == 0 {
		size *= 2
	} else if size > maxReadBuffer && pc.w-pc.r < maxReadBuffer {
		size = maxReadBuffer
	}
	to := pc.buf
	if size != len(pc.buf) {
		to = make([]byte, size)
	}
	pc.w = copy(to, pc.buf[pc.r:pc.w])
	pc.buf, pc.r = to, 0
}

// frame takes a ProtoGossip frame and does with it what routeFor says.
func (pc *packetConn) frame() (size int, why refusal, err error) {
	b := pc.buf[pc.r:pc.w]
	if len(b) < frameHeadLen {
		return 0, "", nil
	}
	h, err := parseFrameHead([frameHeadLen]byte(b))
	if err != nil {
		return 0, faultFrame, err
	}
	if size = frameHeadLen + h.name + h.packet; len(b) < frameHeadLen+h.name {
		return 0, "", nil
	}
	if h.pool == poolEcho {
		return pc.echo(b, size)
	}
	if name := b[frameHeadLen : frameHeadLen+h.name]; h.pool != pc.last.pool || string(name) != pc.last.target {
		if err := checkTargetName(name); err != nil {
			return 0, faultFrame, err
		}
		pc.last = route{h.pool, string(name), routeFor(pc.t.own, pc.p, h.pool, string(name))}
	}
	switch v := pc.last.verdict; {
	case v == forbidden:
		return 0, faultLAN, nil
	case len(b) < size:
		return 0, "", nil
	case v == deliver:
		pc.add(h.pool, size, h.packet)
	default:
		pc.handOn(v, h.pool, pc.last.target, b[size-h.packet:size])
	}
	return size, "", nil
}

// echo sends the echo frame that b begins with back.
func (pc *packetConn) echo(b []byte, size int) (int, refusal, error) {
	if len(b) < size {
		return 0, "", nil
	}
	pc.deliver() // before what may wait
	pc.c.SetWriteDeadline(time.Now().Add(pc.t.tm.write))
	if _, err := pc.c.Write(b[:size]); err != nil {
		if isTimeout(err) {
			return 0, faultUnread, err
		}
		return 0, "", err
	}
	return size, "", nil
}

// consulFrame takes a packet in Consul's framing.
func (pc *packetConn) consulFrame() (size int, why refusal, err error) {
	b := pc.buf[pc.r:pc.w]
	if len(b) < lengthLen {
		return 0, "", nil
	}
	n, err := parseConsulLength([lengthLen]byte(b))
	if err != nil {
		return 0, faultFrame, err
	}
	if size = lengthLen + n; len(b) < size {
		return 0, "", nil
	}
	pc.add(PoolWAN, size, n)
	return size, "", nil
}

// handOn queues a packet for another server of this datacenter, if it may travel on and there is such a server.
func (pc *packetConn) handOn(v verdict, pool Pool, node string, b []byte) {
	count := pc.count(pool)
	switch {
	case v != relay:
		count.drop(dropMisrouted, 1)
	case pc.t.serverAddr(node) == "":
		count.drop(dropUnknownNode, 1)
	default:
		if _, err := pc.t.send(pool, target{dc: pc.t.own.DC, node: node}, "", b, pc.now); err == nil {
			count.relayed.Add(1)
		}
	}
}
