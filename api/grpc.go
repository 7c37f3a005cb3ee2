// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

// MaxMessageSize bounds a gRPC message in both directions, in bytes.
const MaxMessageSize = 16 << 20

// ReadBufferSize is what a gRPC connection holds to read into, in bytes, at either end. gRPC's own 32 KiB, and as much to write, are
// for connections that are used: a server has two for each other datacenter, mostly idle, and TLS buffers what it reads.
const ReadBufferSize = 4 << 10

// Window is how much of a stream, and of a connection, may be under way before it is read, in bytes: what 400 Mbit/s need at 80 ms. It is
// fixed, at either end, since gRPC measures what the network holds by a ping for every message that is answered at once: two more
// records each way, for a call that has two.
const InitialWindowSize = 4 << 20

// NewGRPCClient makes a gRPC client over connections that dial brings. Each must be a *tls.Conn, or tell its
// ConnectionState as one does, with the handshake done and the peer verified. It connects at the first call, again after a loss, and finds a silent peer by keepalive. The caller
// closes it. Options are added to, and may replace, those it has.
func NewGRPCClient(dial func(ctx context.Context) (net.Conn, error), options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///wanfed", append([]grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
		grpc.WithTransportCredentials(EstablishedTLS()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second},
			MinConnectTimeout: 10 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessageSize), grpc.MaxCallSendMsgSize(MaxMessageSize)),
		grpc.WithDisableServiceConfig(),
		grpc.WithReadBufferSize(ReadBufferSize),
		grpc.WithStaticStreamWindowSize(InitialWindowSize), grpc.WithStaticConnWindowSize(InitialWindowSize),
	}, options...)...)
}

// EstablishedTLS is the gRPC view of connections whose TLS handshake was done before gRPC saw them, on either side.
func EstablishedTLS() credentials.TransportCredentials { return handshaken{} }

type handshaken struct{}

var errNotTLS = errors.New("connection is not TLS with its handshake done")

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

func (handshaken) ClientHandshake(_ context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return authInfo(c)
}
func (handshaken) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return authInfo(c)
}
func (handshaken) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}
func (handshaken) Clone() credentials.TransportCredentials { return handshaken{} }
func (handshaken) OverrideServerName(string) error         { return nil }
