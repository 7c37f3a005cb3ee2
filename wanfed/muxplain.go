// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"net"
	"time"
)

// recordHandshake is the first byte of a TLS connection: the type of the record with the ClientHello (RFC 8446, 5.1).
const recordHandshake = 22

// peeked is a connection of which the first byte was read, and is read again. One goroutine at a time reads.
type peeked struct {
	net.Conn
	first byte
	left  bool // first is to be read yet
}

// peek reads the first byte, until limit. It says whether there is one: if not, the next Read says why.
func (p *peeked) peek(limit time.Time) bool {
	_ = p.Conn.SetReadDeadline(limit) // of a closed connection: Read says so
	var b [1]byte
	n, _ := p.Conn.Read(b[:])
	_ = p.Conn.SetReadDeadline(time.Time{})
	p.first, p.left = b[0], n == 1
	return p.left
}

func (p *peeked) Read(b []byte) (int, error) {
	if !p.left || len(b) == 0 {
		return p.Conn.Read(b)
	}
	b[0], p.left = p.first, false
	return 1, nil
}

// take hands a connection that is not TLS over to Accept, or closes it.
func (l *muxListener) take(ctx context.Context, c net.Conn) {
	l.m.forget(c) // before somebody else owns it
	select {
	case l.conns <- c:
		return
	case <-l.donec:
	case <-ctx.Done():
	}
	c.Close()
}
