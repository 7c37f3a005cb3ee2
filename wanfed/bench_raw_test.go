// SPDX-License-Identifier: MPL-2.0

package wanfed_test

import (
	"context"
	"crypto/tls"
	"testing"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// rawBulk measures the upper bound of one connection on this machine. It sends
// bytes without packets, in TLS records of the largest size, through the same
// gateway as the packets.
type rawBulk struct {
	c        *tls.Conn
	received chan int // number of bytes of each read; the buffer keeps the receiver from waiting
}

func newRawBulk() *rawBulk { return &rawBulk{received: make(chan int, 64)} }

// sink is the receiver of the bytes.
func (r *rawBulk) sink(ctx context.Context, c *tls.Conn, _ tlsutil.Peer) {
	defer c.Close()
	for buf := make([]byte, 32<<10); ; {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		select {
		case r.received <- n:
		case <-ctx.Done():
			return
		}
	}
}

// dial connects to the server of dcRaw.
func (r *rawBulk) dial(tb testing.TB, id *tlsutil.Identity, gateway string) {
	tb.Helper()
	config := id.ClientConfig(tlsutil.ServerName("srv1", dcRaw, id.Domain()), wanfed.ProtoConsulPacket)
	config.DynamicRecordSizingDisabled = true
	c, err := (&tls.Dialer{Config: config}).DialContext(tb.Context(), "tcp", gateway)
	if err != nil {
		tb.Fatal(err)
	}
	r.c = c.(*tls.Conn)
	tb.Cleanup(func() { r.c.Close() })
}

// transfer sends n bytes, waits until all are received, and returns the time
// taken.
func (r *rawBulk) transfer(tb testing.TB, n int) time.Duration {
	begin := time.Now()
	sent := make(chan error, 1)
	go func() {
		chunk := make([]byte, 64<<10)
		for rest := n; rest > 0; {
			written, err := r.c.Write(chunk[:min(rest, len(chunk))])
			if err != nil {
				sent <- err
				return
			}
			rest -= written
		}
		sent <- nil
	}()
	for n > 0 {
		n -= <-r.received
	}
	if err := <-sent; err != nil {
		tb.Error(err)
	}
	return time.Since(begin)
}
