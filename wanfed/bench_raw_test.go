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

// rawBulk measures the upper bound of one connection on this machine: bytes
// without packets, in TLS records of the largest size, through the same
// gateway.
type rawBulk struct {
	c   *tls.Conn
	got chan int // bytes that arrived
}

func newRawBulk() *rawBulk { return &rawBulk{got: make(chan int, 64)} } // it must not wait for who counts

// sink is the receiver.
func (r *rawBulk) sink(ctx context.Context, c *tls.Conn, _ tlsutil.Peer) {
	defer c.Close()
	for buf := make([]byte, 32<<10); ; {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		select {
		case r.got <- n:
		case <-ctx.Done():
			return
		}
	}
}

// dial connects to dcRaw's server.
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

// transfer sends n bytes and returns when all were received.
func (r *rawBulk) transfer(tb testing.TB, n int) time.Duration {
	begin := time.Now()
	sent := make(chan error, 1)
	go func() {
		chunk := make([]byte, 64<<10)
		for left := n; left > 0; {
			k, err := r.c.Write(chunk[:min(left, len(chunk))])
			if err != nil {
				sent <- err
				return
			}
			left -= k
		}
		sent <- nil
	}()
	for n > 0 {
		n -= <-r.got
	}
	if err := <-sent; err != nil {
		tb.Error(err)
	}
	return time.Since(begin)
}
