// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
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
)

// linkConn is one connection of a link. Its writer is the link's goroutine.
type linkConn struct {
	l      *link
	c      *tls.Conn
	path   *pathConn
	consul bool // ProtoConsulPacket: nothing comes back
	began  time.Time
	used   time.Time // when a packet was last written
	spare  []byte    // buffers used in turn with the queue's
	out    []byte    // Consul's framing of what was taken
	echo   echo
	echoed time.Time // when an echo was last asked for

	late    *time.Timer    // for the echo that is awaited
	looking bool           // for a better way, or
	doubted bool           // for any other way
	told    time.Time      // when the other links over the same gateway were last told that an echo is late
	found   chan *tls.Conn // size 1: the result of looking, nil if there is none
	next    *tls.Conn      // the connection that takes over from this one
}

// writeChunk bounds what one write deadline covers, in bytes.
const writeChunk = 64 << 10

// errSilent says that the peer of a link stopped answering.
var errSilent = errors.New("peer stopped answering echoes")

// errHungUp says that the peer, or a gateway, closed a link's connection.
var errHungUp = errors.New("closed by the peer, or by a gateway on the way")

func (lc *linkConn) ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errHungUp
	}
	return err
}

// use sends over c until it fails (an error), is idle, or ctx ends (both nil). settled says that it worked for a while.
func (l *link) use(ctx context.Context, c *tls.Conn) (settled bool, err error) {
	proto := c.ConnectionState().NegotiatedProtocol
	remote := l.to.dc != l.t.own.DC
	switch {
	case proto == ProtoConsulPacket && l.to.node == "":
		// Consul's frames name no target: each server needs a link of its own.
		l.t.setConsul(l.to.dc, true)
		l.requeue()
		closeConn(c)
		return true, nil
	case proto == ProtoGossip && remote && l.to.node != "":
		l.t.setConsul(l.to.dc, false)
		l.requeue()
		closeConn(c)
		return true, nil
	}
	for next := c; next != nil; {
		lc := &linkConn{
			l: l, c: next, path: pathOf(next), consul: proto == ProtoConsulPacket, began: time.Now(), found: make(chan *tls.Conn, 1),
		}
		l.using(lc.path, proto)
		if lc.consul {
			l.up(lc.path, lc.began, lc.path.rtt)
		}
		err = lc.pump(ctx)
		settled = time.Since(lc.began) >= l.t.tm.settled
		if errors.Is(err, errSilent) || isTimeout(err) {
			l.t.cfg.Dialer.ReportFailure(lc.c, err)
		}
		next = lc.next
	}
	if err == nil {
		l.closed()
	}
	return settled, err
}

// requeue gives what is queued to the links that the datacenter's protocol now asks for.
func (l *link) requeue() {
	b, now := l.take(nil), time.Now()
	for frames := b.frames(); len(frames) > 0; {
		f, err := decodeFrame(frames)
		if err != nil {
			return // cannot be: the queue made it
		}
		_, _ = l.t.send(f.pool, target{dc: l.to.dc, node: string(f.name)}, "", f.packet, now)
		frames = frames[f.size:]
	}
}

// pump writes what is queued, and asks for echoes, until the connection fails, is not needed, or ctx ends.
func (lc *linkConn) pump(ctx context.Context) error {
	lookCtx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer dropFound(lc.found)
	defer wg.Wait()
	defer closeConn(lc.c) // ends the reader
	defer cancel()        // ends looking for a better way
	read := make(chan error, 1)
	wg.Go(func() {
		err := lc.read()
		if errors.Is(err, errSilent) {
			lc.path.forget()
		}
		read <- err
		lc.c.NetConn().Close() // ends a write that waits for a peer that is gone
	})
	stop := context.AfterFunc(ctx, func() { lc.c.SetWriteDeadline(time.Now().Add(stopGrace)) })
	defer stop()
	err, readErr := lc.writeLoop(ctx, read, func() { lc.look(lookCtx, &wg) }, func() { lc.doubt(lookCtx, &wg) })
	if readErr == nil {
		if isTimeout(err) {
			lc.path.forget()
		}
		closeConn(lc.c)
		if e := <-read; err != nil && !errors.Is(e, errHungUp) && !errors.Is(e, net.ErrClosed) {
			readErr = e // why the write failed: an alert, or silence
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

// forget makes the kernel drop, on Close, what the peer has not acknowledged. Else it would go on trying to deliver it for
// minutes, and it would come when the path is back: stale.
func (p *pathConn) forget() {
	if c, ok := p.Conn.(interface{ SetLinger(sec int) error }); ok {
		_ = c.SetLinger(0)
	}
}

// writeLoop returns err of the writer, or readErr of the reader, who ended first, or nil when the connection is not
// needed any more: for want of packets, or because next takes over. look looks for a better way, doubt for any other.
func (lc *linkConn) writeLoop(ctx context.Context, read <-chan error, look, doubt func()) (err, readErr error) {
	tm := lc.l.t.tm
	lc.late = time.NewTimer(time.Hour) // asking for an echo sets it
	defer lc.late.Stop()
	tick, better := time.NewTicker(tm.echoEvery), time.NewTicker(tm.better)
	defer tick.Stop()
	defer better.Stop()
	changed, turned := lc.l.t.book.Changed(), lc.l.t.cfg.Dialer.paths.turnedAt(lc.l.to.dc)
	ways := lc.l.ways()
	silent := lc.l.t.silent.at(lc.path.hop.Addr)
	look() // the book may have changed while this connection was dialed
	lc.used = time.Now()
	if err := lc.flush(ctx, lc.used, true); err != nil {
		return err, nil
	}
	for {
		select {
		case <-lc.l.wake:
			runtime.Gosched() // whoever else is about to send does so before, and all goes out together
			lc.used = time.Now()
			err = lc.flush(ctx, lc.used, lc.used.Sub(lc.echoed) >= tm.echoEvery)
		case now := <-tick.C:
			unused := now.Sub(lc.used)
			switch {
			case lc.unneeded(now):
				return nil, nil
			case lc.consul && now.Sub(lc.began) >= tm.consulAge:
				return lc.flush(ctx, now, false), nil
			case unused >= tm.quiet && now.Sub(lc.echoed) < tm.quietEcho:
				lc.spare, lc.out = nil, nil // what a burst needed
				lc.path.cork.free()
				continue
			}
			err = lc.flush(ctx, now, true)
		case <-changed:
			changed = lc.l.t.book.Changed()
			if now := lc.l.ways(); !slices.Equal(now, ways) { // of a large book, most of it is about others
				ways = now
				look()
			}
		case <-turned:
			turned = lc.l.t.cfg.Dialer.paths.turnedAt(lc.l.to.dc)
			look()
		case <-better.C:
			look()
		case <-lc.late.C:
			lc.tell(time.Now())
			doubt()
		case <-silent:
			silent = lc.l.t.silent.at(lc.path.hop.Addr)
			if now := time.Now(); !lc.consul && now.Sub(lc.echoed) >= tm.echoEvery {
				err = lc.flush(ctx, now, true)
			}
		case c := <-lc.found:
			doubted := lc.doubted
			lc.looking, lc.doubted, lc.next = false, false, c
			switch {
			case c != nil && doubted:
				lc.path.forget()
				return errSilent, nil // what is queued goes over the next one
			case c != nil:
				return lc.flush(ctx, time.Now(), false), nil
			case doubted:
				lc.late.Reset(tm.echoEvery)
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

// look dials the hops that the book prefers to this connection's, if there are such, beside the connection, which goes on
// until one of them is ready to take over.
func (lc *linkConn) look(ctx context.Context, wg *sync.WaitGroup) {
	if lc.looking {
		return
	}
	to, proto := Target{DC: lc.l.to.dc, Node: lc.l.to.node}, lc.c.ConnectionState().NegotiatedProtocol
	lc.looking = lc.l.t.lookForBetter(ctx, wg, lc.c, to, proto, lc.found)
}

// flush writes all that is queued, and an echo frame behind it.
func (lc *linkConn) flush(ctx context.Context, now time.Time, echo bool) error {
	b := lc.l.take(lc.spare)
	out := b.frames()
	if lc.consul {
		lc.out = appendConsulFrames(lc.out[:0], out)
		out = lc.out
	} else if echo {
		asked := now.Sub(lc.began)
		lc.asks(asked, now)
		b.buf = appendEcho(b.buf, uint64(asked))
		out = b.frames()
	}
	lc.spare = b.buf[:0]
	if err := lc.write(ctx, now, out); err != nil {
		lc.l.drop(dropWrite, b.count)
		return err
	}
	for pool, n := range b.count {
		if n > 0 {
			lc.l.count[pool].sent.Add(uint64(n))
		}
	}
	return nil
}

func (lc *linkConn) write(ctx context.Context, now time.Time, b []byte) error {
	for len(b) > 0 {
		chunk := b[:min(len(b), writeChunk)]
		lc.c.SetWriteDeadline(now.Add(lc.l.t.tm.write))
		if ctx.Err() != nil { // checked after: pump's AfterFunc may have come before
			lc.c.SetWriteDeadline(time.Now().Add(stopGrace))
		}
		if err := lc.path.writeAtOnce(lc.c, chunk); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		if b = b[len(chunk):]; len(b) > 0 {
			now = time.Now()
		}
	}
	return nil
}
