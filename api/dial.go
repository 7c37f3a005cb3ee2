// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/tlsutil"
)

// OnBehalfKey is the key of the gRPC metadata that names the original caller of
// a forwarded request. The value is "role/dc/node". Only servers may send it.
const OnBehalfKey = "wanfed-on-behalf"

// alpnGRPC is the ALPN protocol id of gRPC.
const alpnGRPC = "h2"

// dialTimeout bounds the TCP connect and the TLS handshake of DialServer.
const dialTimeout = 10 * time.Second

// DialServer connects to a server of datacenter dc and returns a gRPC client
// over that one connection. node names the server; "" accepts any server of dc.
// addr is the host:port of the server or of a gateway, which routes by the SNI.
// The connection is not dialed again once it is lost. The caller calls closeAll
// at the end.
func DialServer(ctx context.Context, id *tlsutil.Identity, addr, node, dc string) (
	cc *grpc.ClientConn, closeAll func(), err error,
) {
	conn, err := dialServer(ctx, id, addr, node, dc)
	if err != nil {
		return nil, nil, err
	}
	return NewConnClient(conn)
}

// NewConnClient returns a gRPC client over c alone. c must meet the conditions
// of NewGRPCClient. Calls fail with Unavailable once c is lost. The client owns c,
// also after an error. The caller calls closeAll at the end.
func NewConnClient(c net.Conn) (cc *grpc.ClientConn, closeAll func(), err error) {
	var used atomic.Bool
	cc, err = NewGRPCClient(func(context.Context) (net.Conn, error) {
		if used.Swap(true) {
			return nil, fmt.Errorf("connection to %v was lost", c.RemoteAddr())
		}
		return c, nil
	})
	if err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	return cc, func() {
		_ = cc.Close()
		_ = c.Close() // needed if no call was made: gRPC did not dial then
	}, nil
}

func dialServer(ctx context.Context, id *tlsutil.Identity, addr, node, dc string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	sni := tlsutil.ServerName(node, dc, id.Domain())
	d := tls.Dialer{NetDialer: &net.Dialer{}, Config: id.ClientConfig(sni, alpnGRPC)}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err == nil {
		return conn, nil
	}
	op, _ := errors.AsType[*net.OpError](err)
	if op != nil && op.Op == "dial" {
		return nil, fmt.Errorf("no server answers at %s: %w; --server must be a server of %s, or a gateway",
			addr, op.Err, dc)
	}
	remedy := ""
	_, wrongName := errors.AsType[x509.HostnameError](err)
	if wrongName || op != nil && op.Op == "remote error" {
		remedy = fmt.Sprintf("; --server must be a server of %s, or a gateway", dc)
	}
	return nil, fmt.Errorf("reach %s through %s: %s%s", sni, addr, tlsutil.DescribeError(err), remedy)
}
