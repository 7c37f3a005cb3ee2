// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/wanfed/wanfed/tlsutil"
)

// OnBehalfKey is the key of the gRPC metadata that names the original caller of
// a forwarded request. The value is "role/dc/node". Only servers may send the
// key. A second value is the server of another datacenter that has named the
// caller, if a server forwards such a request to its leader.
const OnBehalfKey = "wanfed-on-behalf"

// OnBehalfAddrKey is the key of the gRPC metadata with the ip:port of the original
// caller of a request that a server forwards within its datacenter.
const OnBehalfAddrKey = "wanfed-on-behalf-addr"

// EpochKey is the key of the gRPC metadata with the highest epoch of the
// primary that the sending server knows, as replication.Epoch.String returns it.
// Calls between datacenters have the key, and the responses of unary calls.
const EpochKey = "wanfed-primary-epoch"

// alpnGRPC is the ALPN protocol id of gRPC.
const alpnGRPC = "h2"

// dialTimeout bounds the TCP connect and the TLS handshake of DialServer.
const dialTimeout = 10 * time.Second

// DialServer connects to server node of datacenter dc. If node is "", any
// server of dc may respond. addr is the host:port of the server or of a
// gateway, which routes by the SNI. The returned gRPC client uses only this
// connection, and does not dial again after the connection is lost. The caller
// calls closeAll at the end.
func DialServer(ctx context.Context, id *tlsutil.Identity, addr, node, dc string) (
	cc *grpc.ClientConn, closeAll func(), err error,
) {
	conn, err := dialServer(ctx, id, addr, node, dc)
	if err != nil {
		return nil, nil, err
	}
	return NewConnClient(conn)
}

// NewServerClient returns a gRPC client of any server of datacenter dc. It
// connects at the first call, and again after the connection is lost: to the
// first of addrs that responds, beginning with the last one that did. addrs
// returns host:port of servers or gateways; it may block until its context ends.
// The caller closes the client.
func NewServerClient(
	id *tlsutil.Identity, dc string, addrs func(ctx context.Context) ([]string, error),
) (*grpc.ClientConn, error) {
	var last atomic.Pointer[string]
	return NewGRPCClient(func(ctx context.Context) (net.Conn, error) {
		all, err := addrs(ctx)
		if err != nil {
			return nil, err
		}
		if l := last.Load(); l != nil && slices.Contains(all, *l) {
			all = append([]string{*l}, slices.DeleteFunc(slices.Clone(all), func(a string) bool { return a == *l })...)
		}
		var errs []error
		for _, addr := range all {
			conn, err := dialServer(ctx, id, addr, "", dc)
			if err == nil {
				last.Store(&addr)
				return conn, nil
			}
			errs = append(errs, err)
		}
		if len(errs) == 0 {
			return nil, fmt.Errorf("no address of a server of %s is known", dc)
		}
		return nil, errors.Join(errs...)
	})
}

// Addrs returns a function for NewServerClient that returns addrs.
func Addrs(addrs ...string) func(context.Context) ([]string, error) {
	return func(context.Context) ([]string, error) { return addrs, nil }
}

// NewConnClient returns a gRPC client that uses only the connection c. c must
// meet the conditions of NewGRPCClient. Calls fail with Unavailable once c is
// lost. NewConnClient closes c if it fails. Otherwise the caller calls closeAll
// at the end.
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
		_ = c.Close() // gRPC owns c only after the first call
	}, nil
}

func dialServer(ctx context.Context, id *tlsutil.Identity, addr, node, dc string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	sni := tlsutil.ServerName(node, dc, id.Domain())
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err == nil {
		var conn *tls.Conn
		if conn, err = id.Client(ctx, raw, sni, alpnGRPC); err == nil {
			return awaitServer(ctx, conn, sni, addr)
		}
	}
	op, _ := errors.AsType[*net.OpError](err)
	if op != nil && op.Op == "dial" {
		return nil, fmt.Errorf("no server answers at %s: %w; --server must be a server of %s, or a gateway",
			addr, op.Err, dc)
	}
	remedy := ""
	if _, wrongName := errors.AsType[x509.HostnameError](err); wrongName || op != nil && op.Op == "remote error" {
		remedy = fmt.Sprintf("; --server must be a server of %s, or a gateway", dc)
	}
	return nil, fmt.Errorf("reach %s through %s: %s%s", sni, addr, tlsutil.DescribeError(err), remedy)
}

// awaitServer waits for the first byte of the server, which sends its HTTP/2
// settings after the handshake. In TLS 1.3, the handshake of the client is
// complete before the server has verified the certificate of the client.
// Without this wait, the refusal would be a failed write of the first call.
func awaitServer(ctx context.Context, conn *tls.Conn, sni, addr string) (net.Conn, error) {
	interrupt := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	first := make([]byte, 1)
	_, err := io.ReadFull(conn, first)
	if !interrupt() && err == nil {
		err = ctx.Err()
	}
	if err == nil {
		return &startedConn{Conn: conn, first: first}, nil
	}
	_ = conn.Close()
	reason := tlsutil.DescribeError(err)
	if op, _ := errors.AsType[*net.OpError](err); op == nil || op.Op != "remote error" {
		reason = fmt.Sprintf("the server closed the connection after the handshake (%s), probably because it does "+
			"not trust the CA of this certificate", reason)
	}
	if ctx.Err() != nil {
		reason = "the server does not respond after the handshake"
	}
	return nil, fmt.Errorf("reach %s through %s: %s; check --ca-file, --cert-file and --key-file, and the log of the "+
		"server", sni, addr, reason)
}

// startedConn is a connection whose first byte was read. One goroutine at a
// time may call Read.
type startedConn struct {
	*tls.Conn
	first []byte
}

func (c *startedConn) Read(b []byte) (int, error) {
	if len(c.first) > 0 && len(b) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

// MaxMessageSize limits a gRPC message in both directions, in bytes.
const MaxMessageSize = 16 << 20

// ReadBufferSize is the read buffer of a gRPC connection at both ends, in
// bytes. It is smaller than gRPC's default of 32 KiB, because most connections
// between datacenters are idle, and TLS has its own buffer.
const ReadBufferSize = 4 << 10

// InitialWindowSize is the fixed flow control window of streams and connections
// at both ends, in bytes. It permits 400 Mbit/s at a round-trip time of 80 ms.
// The window is fixed because gRPC's dynamic window would send a ping for each
// message and so double the packets of a short call.
const InitialWindowSize = 4 << 20

// NewGRPCClient returns a gRPC client over the connections of dial. A
// connection must have the method ConnectionState of tls.Conn. Its handshake
// must be complete and its peer verified. The client connects at the first
// call, and again after a connection is lost. Keepalives detect an unresponsive
// peer. The options override the defaults of NewGRPCClient. The caller closes
// the client.
func NewGRPCClient(dial func(ctx context.Context) (net.Conn, error),
	options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///wanfed", append([]grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
		grpc.WithTransportCredentials(EstablishedTLS()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second,
			},
			MinConnectTimeout: 10 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessageSize), grpc.MaxCallSendMsgSize(MaxMessageSize)),
		grpc.WithDisableServiceConfig(),
		grpc.WithReadBufferSize(ReadBufferSize),
		grpc.WithStaticStreamWindowSize(InitialWindowSize), grpc.WithStaticConnWindowSize(InitialWindowSize),
	}, options...)...)
}

// EstablishedTLS returns credentials for clients and servers whose connections
// complete the TLS handshake before gRPC uses them.
func EstablishedTLS() credentials.TransportCredentials { return establishedTLS{} }

type establishedTLS struct{}

var errNotTLS = errors.New("connection is not TLS with a complete handshake")

func authInfo(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	t, ok := c.(interface{ ConnectionState() tls.ConnectionState })
	if !ok || !t.ConnectionState().HandshakeComplete {
		return nil, nil, errNotTLS
	}
	return c, credentials.TLSInfo{
		State:          t.ConnectionState(),
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

func (establishedTLS) ClientHandshake(_ context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return authInfo(c)
}
func (establishedTLS) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return authInfo(c)
}
func (establishedTLS) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}
func (establishedTLS) Clone() credentials.TransportCredentials { return establishedTLS{} }
func (establishedTLS) OverrideServerName(string) error         { return nil }
