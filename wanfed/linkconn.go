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
	spare  []byte // buffers used in turn with the queue's
	out    []byte // Consul's framing of what was taken

	looking bool           // for a better way
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
			l.t.cfg.Dialer.Broke(lc.c, err)
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
	frames, _ := l.take(nil)
	now := time.Now()
	for len(frames) > 0 {
		f, err := decodeFrame(frames)
		if err != nil {
			return // cannot be: the queue made it
		}
		_ = l.t.send(f.pool, target{dc: l.to.dc, node: string(f.name)}, "", f.packet, now)
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
		read <- lc.read()
		lc.c.NetConn().Close() // ends a write that waits for a peer that is gone
	})
	stop := context.AfterFunc(ctx, func() { lc.c.SetWriteDeadline(time.Now().Add(stopGrace)) })
	defer stop()
	err, readErr := lc.writeLoop(ctx, read, func() { lc.look(lookCtx, &wg) })
	if readErr == nil {
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

// writeLoop returns err of the writer, or readErr of the reader, who ended first, or nil when the connection is not
// needed any more: for want of packets, or because next takes over. look looks for a better way.
func (lc *linkConn) writeLoop(ctx context.Context, read <-chan error, look func()) (err, readErr error) {
	tm := lc.l.t.tm
	tick, better := time.NewTicker(tm.echoEvery), time.NewTicker(tm.better)
	defer tick.Stop()
	defer better.Stop()
	changed := lc.l.t.book.Changed()
	look() // the book may have changed while this connection was dialed
	used := time.Now()
	if err := lc.flush(ctx, true); err != nil {
		return err, nil
	}
	for {
		select {
		case <-lc.l.wake:
			used = time.Now()
			err = lc.flush(ctx, false)
		case now := <-tick.C:
			switch {
			case now.Sub(used) >= tm.linkIdle:
				return nil, nil
			case lc.consul && now.Sub(lc.began) >= tm.consulAge:
				return lc.flush(ctx, false), nil
			}
			err = lc.flush(ctx, true)
		case <-changed:
			changed = lc.l.t.book.Changed()
			look()
		case <-better.C:
			look()
		case c := <-lc.found:
			if lc.looking = false; c != nil {
				lc.next = c
				return lc.flush(ctx, false), nil
			}
		case e := <-read:
			return nil, e
		case <-ctx.Done():
			return lc.flush(ctx, false), nil
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
func (lc *linkConn) flush(ctx context.Context, echo bool) error {
	frames, n := lc.l.take(lc.spare)
	counts := countFrames(frames)
	out := frames
	if lc.consul {
		lc.out = appendConsulFrames(lc.out[:0], frames)
		out = lc.out
	} else if echo {
		out = appendEcho(out, uint64(time.Since(lc.began)))
		frames = out
	}
	lc.spare = frames[:0]
	if err := lc.write(ctx, out); err != nil {
		lc.l.drop(dropWrite, counts)
		return err
	}
	if n > 0 {
		for pool, n := range counts {
			if n > 0 {
				lc.l.count[pool].sent.Add(uint64(n))
			}
		}
	}
	return nil
}

func (lc *linkConn) write(ctx context.Context, b []byte) error {
	for len(b) > 0 {
		chunk := b[:min(len(b), writeChunk)]
		lc.c.SetWriteDeadline(time.Now().Add(lc.l.t.tm.write))
		if ctx.Err() != nil { // checked after: pump's AfterFunc may have come before
			lc.c.SetWriteDeadline(time.Now().Add(stopGrace))
		}
		if _, err := lc.c.Write(chunk); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		b = b[len(chunk):]
	}
	return nil
}

// read takes the echoes until the connection ends, and says why it did.
func (lc *linkConn) read() error {
	if lc.consul {
		n, err := lc.c.Read(make([]byte, 1))
		if n > 0 {
			return errors.New("peer sent data where none may come")
		}
		return lc.ended(err)
	}
	br := bufio.NewReaderSize(lc.c, 512)
	var b [frameHeadLen + echoLen]byte
	for {
		lc.c.SetReadDeadline(time.Now().Add(lc.l.t.tm.silence))
		if _, err := io.ReadFull(br, b[:]); err != nil {
			if isTimeout(err) {
				return fmt.Errorf("%w for %v", errSilent, lc.l.t.tm.silence)
			}
			return lc.ended(err)
		}
		f, err := decodeFrame(b[:])
		if err != nil || f.pool != poolEcho {
			return fmt.Errorf("peer sent something else than an echo: %w", errors.Join(err, errFramePool))
		}
		age := time.Since(lc.began)
		sent := time.Duration(binary.BigEndian.Uint64(f.packet))
		if sent < 0 || sent > age {
			return errors.New("peer sent an echo of something else")
		}
		lc.l.up(lc.path, lc.began, age-sent)
	}
}
