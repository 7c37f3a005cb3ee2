// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// MaxProbe is the largest size of Dialer.Probe, in bytes. It fits into one TLS
// record.
const MaxProbe = 8 << 10

// Probe connects to any server of dc over path, exchanges an echo, and returns
// its round trip. dc may be the local datacenter, and the address book need not
// list path. The echo has size bytes, at most MaxProbe, in one TLS record; with
// 0 it is as small as that of a Prober. Probe does not record the result. It
// blocks until the echo arrives or ctx ends. ClassOf returns the class of its
// error.
//
// Servers echo only for servers. If the certificate of d has another role, Probe
// waits for the first byte of gRPC instead, which a server sends after it has
// accepted the certificate.
func (d *Dialer) Probe(ctx context.Context, dc string, path Path, size int) (time.Duration, error) {
	_, rtt, err := d.probe(ctx, dc, path, max(1, min(size, MaxProbe)/(frameHeadLen+echoLen)))
	return rtt, err
}

// ClassOf returns the class of an error of Dial or Probe.
func ClassOf(err error) FailureClass { return failureClass(err) }

// probe exchanges an echo of a number of frames with any server of dc over path.
func (d *Dialer) probe(
	ctx context.Context, dc string, path Path, frames int,
) (pc *pathConn, rtt time.Duration, err error) {
	alpn := []string{ProtoGossip, ProtoConsulPacket}
	if d.cfg.Identity.Peer().Role != tlsutil.RoleServer {
		alpn = []string{ProtoGRPC}
	}
	c, err := d.request("", dc, alpn...).dialPath(ctx, path)
	if err != nil {
		return nil, 0, err
	}
	defer closeConn(c)
	pc = pathConnOf(c)
	stop := context.AfterFunc(ctx, func() { c.NetConn().Close() })
	defer stop()
	switch c.ConnectionState().NegotiatedProtocol {
	case ProtoGossip:
		rtt, err = roundTripEcho(c, rand.Uint64(), frames)
	case ProtoGRPC:
		if _, err = io.ReadFull(c, make([]byte, 1)); err != nil {
			err = fmt.Errorf("%w: read: %w", errNoEcho, err)
		}
		rtt = pc.rtt
	default:
		return pc, pc.rtt, nil
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("%w (%w)", errNoEcho, ctx.Err())
	}
	return pc, rtt, err
}

// errNoEcho reports that TLS over a path succeeded but the server did not echo.
var errNoEcho = errors.New("no echo from a server")

// roundTripEcho sends echo frames with payload n, waits for the echoes and
// returns the round trip.
func roundTripEcho(c *tls.Conn, n uint64, frames int) (time.Duration, error) {
	sent := bytes.Repeat(appendEcho(nil, n), frames)
	start := time.Now()
	if _, err := c.Write(sent); err != nil {
		return 0, fmt.Errorf("%w: write: %w", errNoEcho, err)
	}
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(c, got); err != nil {
		return 0, fmt.Errorf("%w: read: %w", errNoEcho, err)
	}
	if !bytes.Equal(got, sent) {
		return 0, fmt.Errorf("%w: received a different frame", errNoEcho)
	}
	return time.Since(start), nil
}
