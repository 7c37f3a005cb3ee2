// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A direction is copied in pieces, so that the counters move while it is open. A piece that takes less than pieceTime makes
// the next one larger.
const (
	minPiece  = 32 << 10
	maxPiece  = 16 << 20
	pieceTime = 100 * time.Millisecond
)

// relay moves bytes both ways until both directions have ended. An end of data in one direction is passed on and leaves the
// other open; a failure ends both. Between two bare *net.TCPConn the kernel moves the bytes (splice). The caller closes both
// connections, which also ends a relay early. It returns what failed.
func relay(client, upstream net.Conn, up, down tally) (err error) {
	var back error
	var wg sync.WaitGroup
	var clientEnded, upstreamEnded atomic.Bool
	wg.Go(func() { back = oneWay(client, upstream, down, &clientEnded, &upstreamEnded) })
	err = oneWay(upstream, client, up, &upstreamEnded, &clientEnded)
	wg.Wait()
	return errors.Join(err, back)
}

// oneWay moves bytes from src to dst until src ends, and notes that. If it fails after dst had said its end, that is an end like
// others: who closes at once after the last word, as most do, answers what comes then, a TLS close_notify mostly, with a reset.
func oneWay(dst, src net.Conn, count tally, dstEnded, srcEnded *atomic.Bool) error {
	err := copyAll(dst, src, count)
	if err == nil {
		srcEnded.Store(true) // before dst hears of it, and answers
		err = closeWrite(dst)
	}
	if err != nil && dstEnded.Load() {
		dst.Close()
		src.Close()
		return nil
	}
	if err != nil {
		abort(dst)
		abort(src)
	}
	return err
}

// copyAll copies until src ends. A LimitedReader right around src does not keep TCPConn.ReadFrom from splicing.
func copyAll(dst, src net.Conn, count tally) error {
	piece := io.LimitedReader{R: src}
	for size := int64(minPiece); ; {
		piece.N = size
		begin := time.Now()
		n, err := io.Copy(dst, &piece)
		count.Add(uint64(n))
		if err != nil || n < size {
			return err
		}
		if time.Since(begin) < pieceTime {
			size = min(size*4, maxPiece)
		} else {
			size = max(size/4, minPiece)
		}
	}
}

func closeWrite(c net.Conn) error {
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return c.Close()
}

// abort closes c so that its peer learns that data is missing: by a reset, not by an end of data.
func abort(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
	c.Close()
}
