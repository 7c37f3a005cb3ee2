// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// linkConn is one connection of a link. The goroutine of the link writes
// packets and echo requests. A second goroutine reads the echoes.
type linkConn struct {
	l          *link
	c          *tls.Conn
	path       *pathConn
	consul     bool // ProtoConsulPacket: the peer sends nothing
	duplex     bool // ProtoDuplex: the peer may send packets
	noSources  bool // a local server of an older version, which has only ProtoGossip
	began      time.Time
	lastPacket time.Time // last write of packets
	lastEcho   time.Time // last echo request
	lastSearch time.Time // last search for a better path
	spare      []byte    // buffer that alternates with the buffer of the queue
	out        []byte    // packets in Consul's framing
	echo       echoState

	echoTimer  *time.Timer    // fires when the pending echo is late
	alerted    time.Time      // last notification of other links about a late echo
	goroutines sync.WaitGroup // the reader and the dial of a replacement
	dialing    bool           // a replacement is being dialed
	suspected  bool           // the replacement is dialed because of a late echo
	dialedC    chan *tls.Conn // size 1: the replacement, or nil if the dial failed
	successor  *tls.Conn      // the replacement that is used next
}

// writeChunk bounds the data that one write deadline covers, in bytes.
const writeChunk = 64 << 10

var (
	errEchoTimeout  = errors.New("peer stopped answering echoes")
	errClosedByPeer = errors.New("closed by the peer, or by a gateway on the path")
)

func readError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errClosedByPeer
	}
	return err
}

// use sends over c, and then over the replacement of each connection. It
// returns an error when a connection fails. It returns nil when a connection is
// idle or ctx ends. stable reports whether the last connection worked for at
// least limits.stableAfter.
func (l *link) use(ctx context.Context, c *tls.Conn) (stable bool, err error) {
	alpn := c.ConnectionState().NegotiatedProtocol
	remote := l.to.dc != l.t.self.DC
	// A frame of wanfed names its target, so one link, without a node, serves
	// all servers of a remote datacenter. A packet in Consul's framing has no
	// target, so each server needs its own link. A link of the wrong kind moves
	// its packets to links of the other kind and ends.
	if consul := alpn == ProtoConsulPacket; remote && consul == (l.to.node == "") {
		l.t.setConsul(l.to.dc, consul)
		l.requeue()
		closeConn(c)
		return true, nil
	}
	var lc *linkConn
	for next := c; next != nil; next = lc.successor {
		lc = &linkConn{
			l: l, c: next, path: pathConnOf(next), consul: alpn == ProtoConsulPacket, duplex: alpn == ProtoDuplex,
			noSources: !remote && alpn != ProtoRelay, began: time.Now(), dialedC: make(chan *tls.Conn, 1),
		}
		l.recordPath(lc.path, alpn)
		if lc.consul {
			l.recordUp(lc.path, lc.began, lc.path.handshakeRTT)
		}
		err = lc.run(ctx)
		stable = time.Since(lc.began) >= l.t.limits.stableAfter
		if err != nil {
			l.recordLoss()
		}
		// In TLS 1.3 a client receives the rejection of its certificate after the
		// handshake, as an alert.
		if _, isAlert := tlsutil.AlertOf(err); isAlert || errors.Is(err, errEchoTimeout) || isTimeout(err) {
			l.t.cfg.Dialer.ReportFailure(lc.c, err)
		}
	}
	if err == nil {
		l.recordPath(lc.path, alpn)
	}
	return stable, err
}

// requeue sends the queued packets again, over the links that the current
// protocol of the datacenter needs.
func (l *link) requeue() {
	b, now := l.take(nil), time.Now()
	for frames := b.frames(); len(frames) > 0; {
		f, err := decodeFrame(frames)
		if err != nil {
			return // impossible: the queue encoded the frame
		}
		_ = l.t.send(f.pool, target{dc: l.to.dc, node: string(f.name)}, "", f.packet, now)
		frames = frames[f.size:]
	}
}

// run writes queued packets and echo requests until the connection fails, is
// not needed any more, or ctx ends.
func (lc *linkConn) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer closePending(lc.dialedC)
	defer lc.goroutines.Wait()
	defer closeConn(lc.c) // ends the reader
	defer cancel()        // ends the dial of a replacement
	read := make(chan error, 1)
	lc.goroutines.Go(func() {
		err := lc.read()
		if errors.Is(err, errEchoTimeout) {
			lc.path.discardUnacked()
		}
		read <- err
		lc.c.NetConn().Close() // unblocks a write to a dead peer
	})
	stop := context.AfterFunc(ctx, func() { lc.c.SetWriteDeadline(time.Now().Add(closeGrace)) })
	defer stop()
	err, readErr := lc.writeLoop(ctx, read)
	if readErr == nil {
		if isTimeout(err) {
			lc.path.discardUnacked()
		}
		closeConn(lc.c)
		if e := <-read; err != nil && !errors.Is(e, errClosedByPeer) && !errors.Is(e, net.ErrClosed) {
			readErr = e // the cause of the failed write: an alert, or a timeout
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return cmp.Or(readErr, err)
}

// writeLoop writes until the writer or the reader fails, and returns the first
// error of the two. Both errors are nil if the connection is idle or has a
// successor.
func (lc *linkConn) writeLoop(ctx context.Context, read <-chan error) (err, readErr error) {
	t, lim := lc.l.t, lc.l.t.limits
	lc.echoTimer = time.NewTimer(time.Hour) // reset by each echo request
	defer lc.echoTimer.Stop()
	changed, recovered := t.book.Changed(), t.cfg.Dialer.paths.recovered.Wait(lc.l.to.dc)
	paths := lc.l.paths()
	late := t.late.links.Wait(lc.path.path.Addr)
	lc.migrate(ctx) // the address book may have changed since the dial began
	lc.lastPacket = time.Now()
	if err := lc.flush(ctx, lc.lastPacket, true); err != nil {
		return err, nil
	}
	tick := time.NewTimer(lc.untilTick(lc.lastPacket))
	defer tick.Stop()
	for {
		select {
		case <-lc.l.wake:
			runtime.Gosched() // other senders push first, and one write sends all packets
			lc.lastPacket = time.Now()
			err = lc.flush(ctx, lc.lastPacket, lc.lastPacket.Sub(lc.lastEcho) >= lim.echoInterval)
		case <-tick.C:
			now := time.Now()
			switch {
			case lc.isIdle(now):
				return nil, nil
			case lc.consul && now.Sub(lc.began) >= lim.consulMaxAge:
				return lc.flush(ctx, now, false), nil
			}
			if now.Sub(lc.lastSearch) >= lim.migrateInterval {
				lc.migrate(ctx)
			}
			if now.Sub(lc.lastPacket) >= lim.quietAfter {
				lc.spare, lc.out = nil, nil // free the memory of the last burst
			}
			if lc.untilEcho(now) <= 0 {
				err = lc.flush(ctx, now, true)
			}
			tick.Reset(lc.untilTick(now))
		case <-changed:
			changed = t.book.Changed()
			if now := lc.l.paths(); !slices.Equal(now, paths) { // most changes concern other datacenters
				paths = now
				lc.migrate(ctx)
			}
		case <-recovered:
			recovered = t.cfg.Dialer.paths.recovered.Wait(lc.l.to.dc)
			lc.migrate(ctx)
		case <-lc.echoTimer.C:
			lc.suspectPath(ctx, time.Now())
		case <-late: // an echo of another link over the same gateway
			late = t.late.links.Wait(lc.path.path.Addr)
			if now := time.Now(); !lc.consul && !lc.echo.isPending() && now.Sub(lc.lastEcho) >= lim.echoInterval {
				err = lc.flush(ctx, now, true)
			}
		case c := <-lc.dialedC:
			suspected := lc.suspected
			lc.dialing, lc.suspected, lc.successor = false, false, c
			switch {
			case c != nil && suspected:
				lc.path.discardUnacked()
				return errEchoTimeout, nil // the successor sends the queued packets
			case c != nil:
				return lc.flush(ctx, time.Now(), false), nil
			case suspected:
				lc.echoTimer.Reset(lim.echoInterval)
			}
		case e := <-read:
			return nil, e
		case <-ctx.Done():
			return lc.flush(ctx, time.Now(), false), nil
		}
		if err != nil {
			return err, nil
		}
	}
}

// untilTick returns the time until the next tick: until the next echo request
// without packets, or less if there are so many links that some of them must be
// closed.
func (lc *linkConn) untilTick(now time.Time) time.Duration {
	lim := lc.l.t.limits
	if lc.consul || lc.l.t.linkCount() > lim.maxIdleLinks {
		return lim.echoInterval
	}
	return min(lc.untilEcho(now), lim.linkIdleTimeout-now.Sub(lc.lastPacket))
}

// untilEcho returns the time until the next echo request without packets. It is
// due at a multiple of the interval on the wall clock, plus an offset that both
// datacenters of the link have in common. The links of all servers thus send
// these requests together: a server, or a gateway, wakes once for the requests
// of many peers, and not once for each of them.
//
// With more than echoesPerRound links the interval is longer, up to
// maxIdleEcho, and the links have different offsets.
func (lc *linkConn) untilEcho(now time.Time) time.Duration {
	interval, unit := lc.l.t.EchoInterval(), lc.l.t.limits.idleEchoInterval
	offset := time.Duration(lc.l.pair%uint32(interval/unit)) * unit
	last := lc.lastEcho.Add(-offset)
	phase := last.Sub(last.Truncate(interval)) // by the wall clock
	return interval - phase - now.Sub(lc.lastEcho)
}

// EchoInterval returns the time between two echo requests of a link that
// carries no packets: 5 s to 20 s, depending on the number of links. A peer with
// as many links sends its requests at the same interval.
func (t *Tunnel) EchoInterval() time.Duration {
	return time.Duration(t.echoRounds()) * t.limits.idleEchoInterval
}

// echoRounds returns the number of links in units of echoesPerRound, rounded up,
// up to maxIdleEcho/idleEchoInterval.
func (t *Tunnel) echoRounds() int {
	rounds := (t.linkCount() + t.limits.echoesPerRound - 1) / t.limits.echoesPerRound
	return min(max(1, rounds), int(t.limits.maxIdleEcho/t.limits.idleEchoInterval))
}

// isIdle reports whether the connection must be closed for lack of packets:
// after linkIdleTimeout, or earlier if many other links were used later.
// Connections to Consul servers are closed after idleAfter.
func (lc *linkConn) isIdle(now time.Time) bool {
	lim, unused := lc.l.t.limits, now.Sub(lc.lastPacket)
	switch {
	case unused >= lim.linkIdleTimeout, unused >= lim.idleAfter && lc.consul:
		return true
	case unused >= lim.idleAfter:
		return lc.l.t.linksUsedAfter(lc.l, lim.maxIdleLinks, now)
	}
	return unused >= lim.recentUse && lc.l.t.linksUsedAfter(lc.l, 2*lim.maxIdleLinks, now)
}

// migrate starts to dial the paths that are better than the path of this
// connection, if there are any. The connection stays in use until a new
// connection is ready.
func (lc *linkConn) migrate(ctx context.Context) {
	lc.lastSearch = time.Now()
	if lc.dialing {
		return
	}
	to, alpn := Target{DC: lc.l.to.dc, Node: lc.l.to.node}, lc.c.ConnectionState().NegotiatedProtocol
	lc.dialing = lc.l.t.dialBetter(ctx, &lc.goroutines, lc.c, to, alpn, lc.dialedC)
}

// suspectPath is called when echoTimer fires. If the echo is late, the path is
// dead or the peer is busy. suspectPath then dials another path, and this
// connection stays in use. The new connection replaces this connection only if
// the echo is still missing at the end of the dial. A connection without any
// echo is not replaced before echoTimeout, because a peer that never echoes
// would cause repeated dials.
//
// Once per outage, suspectPath also makes the Prober probe the path: the server
// at the end of this connection may have failed while the path works. It also
// makes the other links over the same first gateway send an echo request: see
// lateEchoes. A stalled gateway affects all of these links, and an idle link sends its
// next request only after Tunnel.EchoInterval.
func (lc *linkConn) suspectPath(ctx context.Context, now time.Time) {
	last, late := lc.echo.state()
	if !late {
		return
	}
	if !lc.alerted.After(last) {
		lc.alerted = now
		if lc.l.to.dc != lc.l.t.self.DC {
			lc.l.t.cfg.Dialer.paths.suspect(lc.l.to.dc, lc.path.path, now)
		}
		lc.l.t.late.notify(lc.path.path.Addr, lc.l.t.EchoInterval(), now)
	}
	to := Target{DC: lc.l.to.dc, Node: lc.l.to.node}
	paths := lc.l.t.cfg.Dialer.otherPaths(lc.c, to)
	if lc.dialing || len(paths) == 0 {
		return
	}
	if pause := lc.l.t.needless.pause(now); pause > 0 {
		lc.echoTimer.Reset(pause)
		return
	}
	lc.dialing, lc.suspected = true, true
	alpn := lc.c.ConnectionState().NegotiatedProtocol
	lc.goroutines.Go(func() {
		next := lc.l.t.dialReplacement(ctx, lc.c, to, paths, alpn, "connection without echoes is replaced")
		_, late := lc.echo.state()
		if !late || next != nil {
			lc.l.t.needless.record(!late, time.Now())
		}
		if next != nil && !late {
			closeConn(next)
			next = nil
		}
		lc.dialedC <- next
	})
}

// flush writes all queued packets. If echo is true, an echo request follows.
func (lc *linkConn) flush(ctx context.Context, now time.Time, echo bool) error {
	b := lc.l.take(lc.spare)
	out := b.frames()
	if lc.consul {
		lc.out = appendConsulFrames(lc.out[:0], out)
		out = lc.out
	} else {
		if lc.noSources && b.count[PoolWAN] > 0 {
			b.buf, b.head = withoutSources(out), 0
		}
		if echo {
			age := now.Sub(lc.began)
			lc.expectEcho(age, now)
			b.buf = appendEcho(b.buf, uint64(age))
		}
		out = b.frames()
	}
	lc.spare = b.buf[:0]
	if err := lc.write(ctx, now, out); err != nil {
		lc.l.drop(dropWrite, b.count)
		return err
	}
	for pool, n := range b.count {
		if n > 0 {
			lc.l.counters[pool].sent.Add(uint64(n))
		}
	}
	return nil
}

func (lc *linkConn) write(ctx context.Context, now time.Time, b []byte) error {
	for len(b) > 0 {
		chunk := b[:min(len(b), writeChunk)]
		lc.c.SetWriteDeadline(now.Add(lc.l.t.limits.writeTimeout))
		if ctx.Err() != nil { // the AfterFunc of run may have set its deadline before
			lc.c.SetWriteDeadline(time.Now().Add(closeGrace))
		}
		if _, err := lc.c.Write(chunk); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		if b = b[len(chunk):]; len(b) > 0 {
			now = time.Now()
		}
	}
	return nil
}

// echoState is the liveness of the peer of a linkConn. An echo request carries
// the age of the connection at the request, and the response repeats this age.
// The connection has a read deadline only while an echo is pending.
type echoState struct {
	mu           sync.Mutex
	lastRequest  time.Duration // age of the connection at the last request
	pending      bool          // the response to the last request is missing
	lastReceived time.Time     // last response; zero: never
}

// state returns the time of the last response. late reports whether an echo is
// pending from a peer that has echoed before.
func (e *echoState) state() (last time.Time, late bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lastReceived, e.pending && !e.lastReceived.IsZero()
}

// isPending reports whether an echo is pending.
func (e *echoState) isPending() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pending
}

// expectEcho is called before an echo request is sent. It sets the read
// deadline: echoTimeout after the last response, but at least
// echoTimeout-echoInterval from now. The minimum gives the peer time for the
// first request after a pause.
func (lc *linkConn) expectEcho(age time.Duration, now time.Time) {
	lim, e := lc.l.t.limits, &lc.echo
	lc.lastEcho = now
	late := 2 * lc.l.t.cfg.Dialer.probeTimeout(lc.path)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastRequest = age
	if e.pending {
		return
	}
	e.pending = true
	lc.l.recordUnanswered(now)
	lc.echoTimer.Reset(late)
	last := e.lastReceived
	if last.IsZero() {
		last = lc.began
	}
	timeout := max(last.Add(lim.echoTimeout).Sub(now), lim.echoTimeout-lim.echoInterval)
	lc.c.SetReadDeadline(now.Add(timeout)) // with e.mu held, because recordEcho sets the deadline too
}

// recordEcho is called when the response to the request of the given age
// arrives.
func (lc *linkConn) recordEcho(age time.Duration, now time.Time) {
	e := &lc.echo
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastReceived = now
	var deadline, unanswered time.Time
	if e.pending = age < e.lastRequest; e.pending {
		deadline, unanswered = now.Add(lc.l.t.limits.echoTimeout), now
	} else {
		lc.echoTimer.Stop() // it would wake the link for nothing
	}
	lc.l.recordUnanswered(unanswered)
	lc.c.SetReadDeadline(deadline)
}

// read reads echoes, and packets over ProtoDuplex, until the connection ends. It
// returns the cause.
func (lc *linkConn) read() error {
	if lc.consul {
		n, err := lc.c.Read(make([]byte, 1))
		if n > 0 {
			return errors.New("peer sent data on a connection on which only the client sends")
		}
		return readError(err)
	}
	peer, err := tlsutil.PeerFromCert(lc.c.ConnectionState().PeerCertificates[0], lc.l.t.cfg.Identity.Domain())
	if err != nil {
		return err // impossible: the handshake has verified it
	}
	pc := lc.l.t.newPacketConn(lc.c, peer)
	pc.link = lc
	fault, err := pc.run(pc.readFrame)
	switch {
	case err == nil:
		return errors.New(fault.text)
	case isTimeout(err):
		return fmt.Errorf("%w for %v", errEchoTimeout, lc.l.t.limits.echoTimeout)
	}
	return readError(err)
}

// echoed records the response to the echo request of the given age.
func (lc *linkConn) echoed(requested time.Duration) error {
	now := time.Now()
	age := now.Sub(lc.began)
	if requested < 0 || requested > age {
		return errors.New("peer sent an echo that was not requested")
	}
	rtt := age - requested
	lc.recordEcho(requested, now)
	lc.l.recordUp(lc.path, lc.began, rtt)
	lc.l.t.cfg.Dialer.paths.recordSuccess(lc.path.dc, lc.path.path, "", rtt, nil)
	return nil
}
