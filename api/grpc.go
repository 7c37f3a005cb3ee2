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

// MaxMessageSize limits a gRPC message in both directions, in bytes.
const MaxMessageSize = 16 << 20

// ReadBufferSize is the read buffer of a gRPC connection at both ends, in bytes.
// gRPC's default is 32 KiB. A server has two connections to each other datacenter,
// which are mostly idle, and TLS has a buffer of its own.
const ReadBufferSize = 4 << 10

// InitialWindowSize is the flow control window of a stream and of a connection, in
// bytes. It allows 400 Mbit/s at 80 ms. It is fixed at both ends: gRPC's dynamic
// window sends a ping for each message, which doubles the packets of a short call.
const InitialWindowSize = 4 << 20

// NewGRPCClient returns a gRPC client over the connections of dial. Each must be a
// *tls.Conn, or have its method ConnectionState, with the handshake complete and
// the peer verified. The client connects at the first call and after a loss. It
// detects an unresponsive peer by keepalive. The caller closes it. options may
// replace its defaults.
func NewGRPCClient(dial func(ctx context.Context) (net.Conn, error), options ...grpc.DialOption) (*grpc.ClientConn, error) {
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

// EstablishedTLS returns credentials for connections whose TLS handshake is
// complete before gRPC uses them. They are for clients and servers.
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
