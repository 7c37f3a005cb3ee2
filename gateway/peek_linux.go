// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"io"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// peek is the first part of a hello.
type peek struct {
	parser HelloParser
	b      []byte
	share
}

// readHello reads until the ClientHello is complete or nothing more has come.
func (p *pair) readHello(w *worker) {
	for p.client.readable {
		var (
			in     []byte
			parser HelloParser
		)
		if p.peek != nil {
			in, parser = p.peek.b, p.peek.parser
		}
		room := w.buf[:MaxHelloSize-len(in)]
		n, errno := sysRecv(p.client.fd, room)
		switch {
		case errno == unix.EAGAIN:
			p.client.readable = false
			return
		case errno == unix.EINTR:
			continue
		case errno != 0:
			p.refuse(w, badHello(errno, false, 0))
			return
		case n == 0:
			p.refuse(w, badHello(io.EOF, false, 0))
			return
		case n < len(room) && !p.client.hungUp:
			p.client.readable = false // an event will say when there is more
		}
		if in == nil {
			in = room[:n]
		} else {
			in = append(in, room[:n]...)
		}
		rest, err := p.header(p.side, p.trip, in)
		var hello Hello
		if err == nil {
			in = rest
			hello, err = parser.Parse(in)
		}
		if err == nil {
			hello.EarlyData = hello.EarlyData || parser.end < len(in)
			p.route(w, hello, in)
			return
		}
		if err != ErrNeedMore {
			p.refuse(w, badHello(err, false, 0))
			return
		}
		if p.peek == nil {
			p.peek, in = &peek{}, slices.Clone(in) // the worker's buffer is for the next
		}
		p.peek.b, p.peek.parser = in, parser
		if !w.engine.hellos.grow(&p.peek.share, cap(in)+cap(parser.msg)) {
			p.refuse(w, errHelloMemory)
			return
		}
	}
}

// dropPeek forgets the first part of the hello.
func (p *pair) dropPeek(w *worker) {
	if p.peek != nil {
		w.engine.hellos.free(&p.peek.share)
		p.peek = nil
	}
}

// route looks up where the client wants to go.
func (p *pair) route(w *worker, hello Hello, peeked []byte) {
	w.waiting.remove(p)
	p.state = stateSearch
	w.now = time.Now()
	table := p.side.Table()
	to, refused := table.choose(hello)
	took := w.now.Sub(w.start) - p.began
	p.trip.helloCame(hello.SNI, took)
	p.side.noteHello(to, took)
	if refused != nil {
		p.refuse(w, refused)
	} else {
		w.search(p, table, to, hello, peeked)
	}
	// peeked may be in the worker's buffer: from here on it is not valid.
}
