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
	"runtime"
	"slices"
	"sync"
	"time"
)

// linkConn is one connection of a link. The goroutine of the link writes. A
// second goroutine reads the echoes.
type linkConn struct {
	l        *link
	c        *tls.Conn
	path     *pathConn
	consul   bool // ProtoConsulPacket: the peer sends nothing
	began    time.Time
	lastSent time.Time // last packet
	spare    []byte    // buffer that alternates with the queue's
	out      []byte    // packets in Consul's framing
	echo     echoState
	lastEcho time.Time // last echo request

	echoTimer *time.Timer    // fires when the pending echo is late
	alerted   time.Time      // last time that other links were notified of a late echo
	dialing   bool           // a replacement is being dialed
	suspected bool           // the replacement is dialed because of a late echo
	dialedC   chan *tls.Conn // size 1: the replacement, nil if the dial failed
	successor *tls.Conn      // replaces this connection
}

// writeChunk bounds the data that one write deadline covers, in bytes.
const writeChunk = 64 << 10

var (
	errEchoTimeout  = errors.New("peer stopped answering echoes")
	errClosedByPeer = errors.New("closed by the peer, or by a gateway on the path")
)

func (lc *linkConn) endError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errClosedByPeer
	}
	return err
}

// use sends over c and over its replacements. It returns an error when a
// connection fails. It returns nil when a connection is idle or ctx ends.
// stable reports that the last connection worked for at least
// limits.stableAfter.
func (l *link) use(ctx context.Context, c *tls.Conn) (stable bool, err error) {
	alpn := c.ConnectionState().NegotiatedProtocol
	remote := l.to.dc != l.t.self.DC
	// A link to a datacenter serves all servers there, except with Consul's
	// framing. That framing does not contain a target, so each server needs its
	// own link.
	if consul := alpn == ProtoConsulPacket; remote && consul == (l.to.node == "") {
		l.t.setConsul(l.to.dc, consul)
		l.requeue()
		closeConn(c)
		return true, nil
	}
	for next := c; next != nil; {
		lc := &linkConn{
			l: l, c: next, path: pathConnOf(next), consul: alpn == ProtoConsulPacket,
			began: time.Now(), dialedC: make(chan *tls.Conn, 1),
		}
		l.recordPath(lc.path, alpn)
		if lc.consul {
			l.recordUp(lc.path, lc.began, lc.path.handshakeRTT)
		}
		err = lc.run(ctx)
		stable = time.Since(lc.began) >= l.t.limits.stableAfter
		if errors.Is(err, errEchoTimeout) || isTimeout(err) {
			l.t.cfg.Dialer.ReportFailure(lc.c, err)
		}
		next = lc.successor
	}
	if err == nil {
		l.recordClosed()
	}
	return stable, err
}

// requeue moves the queued packets to the links that the current protocol of
// the datacenter needs.
func (l *link) requeue() {
	b, now := l.take(nil), time.Now()
	for frames := b.frames(); len(frames) > 0; {
		f, err := decodeFrame(frames)
		if err != nil {
			return // impossible: the queue encoded it
		}
		_ = l.t.send(f.pool, target{dc: l.to.dc, node: string(f.name)}, "", f.packet, now)
		frames = frames[f.size:]
	}
}

// run writes queued packets and echo requests until the connection fails, is
// not needed any more, or ctx ends.
func (lc *linkConn) run(ctx context.Context) error {
	dialCtx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer closePending(lc.dialedC)
	defer wg.Wait()
	defer closeConn(lc.c) // ends the reader
	defer cancel()        // ends the dial of a replacement
	read := make(chan error, 1)
	wg.Go(func() {
		err := lc.read()
		if errors.Is(err, errEchoTimeout) {
			lc.path.discardUnacked()
		}
		read <- err
		lc.c.NetConn().Close() // unblocks a write to a dead peer
	})
	stop := context.AfterFunc(ctx, func() { lc.c.SetWriteDeadline(time.Now().Add(closeGrace)) })
	defer stop()
	err, readErr := lc.writeLoop(ctx, read, func() { lc.migrate(dialCtx, &wg) }, func() { lc.replaceSilent(dialCtx, &wg) })
	if readErr == nil {
		if isTimeout(err) {
			lc.path.discardUnacked()
		}
		closeConn(lc.c)
		if e := <-read; err != nil && !errors.Is(e, errClosedByPeer) && !errors.Is(e, net.ErrClosed) {
			readErr = e // the cause of the failed write: an alert, or a timeout
		}
	}
	if readErr != nil && ctx.Err() == nil {
		return readErr
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// writeLoop returns the error of the writer or of the reader, depending on
// which ended first. Both are nil if the connection is idle or was replaced.
// migrate dials a better path; replaceSilent dials any other path.
func (lc *linkConn) writeLoop(
	ctx context.Context, read <-chan error, migrate, replaceSilent func(),
) (err, readErr error) {
	t, lim := lc.l.t, lc.l.t.limits
	lc.echoTimer = time.NewTimer(time.Hour) // reset by each echo request
	defer lc.echoTimer.Stop()
	tick, better := time.NewTicker(lim.echoInterval), time.NewTicker(lim.migrateInterval)
	defer tick.Stop()
	defer better.Stop()
	changed, recovered := t.book.Changed(), t.cfg.Dialer.paths.recovered.Wait(lc.l.to.dc)
	paths := lc.l.paths()
	suspect := t.suspects.Wait(lc.path.path.Addr)
	migrate() // the address book may have changed since the dial began
	lc.lastSent = time.Now()
	if err := lc.flush(ctx, lc.lastSent, true); err != nil {
		return err, nil
	}
	for {
		select {
		case <-lc.l.wake:
			runtime.Gosched() // other senders push first, so that one write sends all packets
			lc.lastSent = time.Now()
			err = lc.flush(ctx, lc.lastSent, lc.lastSent.Sub(lc.lastEcho) >= lim.echoInterval)
		case now := <-tick.C:
			switch {
			case lc.isIdle(now):
				return nil, nil
			case lc.consul && now.Sub(lc.began) >= lim.consulMaxAge:
				return lc.flush(ctx, now, false), nil
			case now.Sub(lc.lastSent) >= lim.idleAfter && now.Sub(lc.lastEcho) < lim.idleEchoInterval:
				lc.spare, lc.out = nil, nil // free the memory of the last burst
				continue
			}
			err = lc.flush(ctx, now, true)
		case <-changed:
			changed = t.book.Changed()
			if now := lc.l.paths(); !slices.Equal(now, paths) { // most changes concern other datacenters
				paths = now
				migrate()
			}
		case <-recovered:
			recovered = t.cfg.Dialer.paths.recovered.Wait(lc.l.to.dc)
			migrate()
		case <-better.C:
			migrate()
		case <-lc.echoTimer.C:
			lc.alertLinks(time.Now())
			replaceSilent()
		case <-suspect:
			suspect = t.suspects.Wait(lc.path.path.Addr)
			if now := time.Now(); !lc.consul && now.Sub(lc.lastEcho) >= lim.echoInterval {
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

// isIdle reports whether the connection must be closed for lack of packets:
// after linkIdleTimeout, or earlier if many other links were used later.
// Consul's servers close idle connections early.
func (lc *linkConn) isIdle(now time.Time) bool {
	lim, unused := lc.l.t.limits, now.Sub(lc.lastSent)
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
func (lc *linkConn) migrate(ctx context.Context, wg *sync.WaitGroup) {
	if lc.dialing {
		return
	}
	to, alpn := Target{DC: lc.l.to.dc, Node: lc.l.to.node}, lc.c.ConnectionState().NegotiatedProtocol
	lc.dialing = lc.l.t.dialBetter(ctx, wg, lc.c, to, alpn, lc.dialedC)
}

// alertLinks makes the other links over the same first gateway send an echo
// request now, once per outage. A stalled gateway affects all of these links,
// and an idle link would send its next request only after idleEchoInterval.
func (lc *linkConn) alertLinks(now time.Time) {
	if !lc.echo.isLate() || lc.alerted.After(lc.echo.last()) {
		return
	}
	lc.alerted = now
	lc.l.t.suspects.Notify(lc.path.path.Addr)
}

// replaceSilent is called when an echo is late: the path is dead, or the peer
// is busy. It dials another path while the connection stays in use. It keeps
// the new connection only if the echo is still missing when the dial ends. A
// connection that never received an echo is not replaced before echoTimeout,
// because a peer that does not echo at all would cause repeated dials.
func (lc *linkConn) replaceSilent(ctx context.Context, wg *sync.WaitGroup) {
	if lc.dialing || !lc.echo.isLate() {
		return
	}
	to := Target{DC: lc.l.to.dc, Node: lc.l.to.node}
	paths := lc.l.t.cfg.Dialer.otherPaths(lc.c, to)
	if len(paths) == 0 {
		return
	}
	lc.dialing, lc.suspected = true, true
	alpn := lc.c.ConnectionState().NegotiatedProtocol
	wg.Go(func() {
		next := lc.l.t.dialReplacement(ctx, lc.c, to, paths, alpn, "connection without echoes is replaced")
		if next != nil && !lc.echo.isLate() {
			closeConn(next)
			next = nil
		}
		lc.dialedC <- next
	})
}

// flush writes everything that is queued, followed by an echo request if echo
// is true.
func (lc *linkConn) flush(ctx context.Context, now time.Time, echo bool) error {
	b := lc.l.take(lc.spare)
	out := b.frames()
	if lc.consul {
		lc.out = appendConsulFrames(lc.out[:0], out)
		out = lc.out
	} else if echo {
		sent := now.Sub(lc.began)
		lc.echoSent(sent, now)
		b.buf = appendEcho(b.buf, uint64(sent))
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
		if ctx.Err() != nil { // checked after setting: run's AfterFunc may have come first
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

// echoState is the liveness of a link connection's peer. The connection has a
// read deadline only while an echo is pending.
type echoState struct {
	mu           sync.Mutex
	lastSent     time.Duration // when the last request was sent, after the start of the connection
	pending      bool          // the response to the last request is missing
	lastReceived time.Time     // last response; zero: never
}

// isLate reports whether an echo is pending from a peer that has echoed before.
// It is called when echoTimer fires.
func (e *echoState) isLate() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pending && !e.lastReceived.IsZero()
}

func (e *echoState) last() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lastReceived
}

// echoSent is called before an echo request is sent. It sets the read deadline:
// echoTimeout after the last response, but at least echoTimeout-echoInterval
// from now. The minimum gives the peer time for the first request after a
// pause.
func (lc *linkConn) echoSent(sent time.Duration, now time.Time) {
	lim, e := lc.l.t.limits, &lc.echo
	lc.lastEcho = now
	late := 2 * lc.l.t.cfg.Dialer.probeTimeout(lc.path)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastSent = sent
	if e.pending {
		return
	}
	e.pending = true
	lc.echoTimer.Reset(late)
	limit := now.Add(lim.echoTimeout - lim.echoInterval)
	last := e.lastReceived
	if last.IsZero() {
		last = lc.began
	}
	if l := last.Add(lim.echoTimeout); l.After(limit) {
		limit = l
	}
	lc.c.SetReadDeadline(limit) // under the lock: it must not overwrite the deadline that echoReceived sets
}

// echoReceived is called when the response to the request sent at sent arrives.
func (lc *linkConn) echoReceived(sent time.Duration, now time.Time) {
	e := &lc.echo
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastReceived = now
	var limit time.Time
	if e.pending = sent < e.lastSent; e.pending {
		limit = now.Add(lc.l.t.limits.echoTimeout)
	}
	lc.c.SetReadDeadline(limit)
}

// read reads echoes until the connection ends, and returns the cause.
func (lc *linkConn) read() error {
	if lc.consul {
		n, err := lc.c.Read(make([]byte, 1))
		if n > 0 {
			return errors.New("peer sent data on a connection that carries none from it")
		}
		return lc.endError(err)
	}
	br := bufio.NewReaderSize(lc.c, 512)
	var b [frameHeadLen + echoLen]byte
	for {
		if _, err := io.ReadFull(br, b[:]); err != nil {
			if isTimeout(err) {
				return fmt.Errorf("%w for %v", errEchoTimeout, lc.l.t.limits.echoTimeout)
			}
			return lc.endError(err)
		}
		f, err := decodeFrame(b[:])
		if err != nil || f.pool != poolEcho {
			return fmt.Errorf("peer sent a frame that is not an echo: %w", errors.Join(err, errFramePool))
		}
		now := time.Now()
		age, sent := now.Sub(lc.began), time.Duration(binary.BigEndian.Uint64(f.packet))
		if sent < 0 || sent > age {
			return errors.New("peer sent an echo that was not requested")
		}
		lc.echoReceived(sent, now)
		lc.l.recordUp(lc.path, lc.began, age-sent)
		lc.l.t.cfg.Dialer.paths.recordSuccess(lc.path.dc, lc.path.path, "", age-sent, nil)
	}
}
