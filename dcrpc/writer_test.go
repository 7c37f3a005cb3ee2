// SPDX-License-Identifier: MPL-2.0

package dcrpc

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/wanfed/wanfed/api/pb"
)

// plainConn is a connection without TLS that claims a finished handshake.
type plainConn struct{ net.Conn }

func (plainConn) ConnectionState() tls.ConnectionState {
	return tls.ConnectionState{HandshakeComplete: true}
}

// slowConn sends at most perSecond bytes in a second; 0 is no limit.
type slowConn struct {
	net.Conn
	perSecond int
}

func (c slowConn) Write(b []byte) (int, error) {
	if c.perSecond > 0 {
		time.Sleep(time.Duration(len(b)) * time.Second / time.Duration(c.perSecond))
	}
	return c.Conn.Write(b)
}

// slowHealth answers health checks after delay.
type slowHealth struct {
	healthpb.UnimplementedHealthServer
	delay time.Duration
}

func (h slowHealth) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	select {
	case <-time.After(h.delay):
		return &healthpb.HealthCheckResponse{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// slowService answers queries after delay.
type slowService struct {
	pb.UnimplementedServerServiceServer
	delay time.Duration
}

func (s slowService) Query(ctx context.Context, _ *pb.QueryRequest) (*pb.QueryResponse, error) {
	select {
	case <-time.After(s.delay):
		return &pb.QueryResponse{Status: 200}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestWrite_ConnectionReplaced replaces the connection of a write in flight,
// because a better path was found, or because a health check failed, which may
// have waited behind the write. The write finishes when the connection answers,
// and fails soon when it does not.
func TestWrite_ConnectionReplaced(t *testing.T) {
	for _, tt := range []struct {
		name            string
		size, perSecond int
		after           time.Duration // from the call until the connection is replaced
		dead            bool          // a health check failed
		health          time.Duration // until the next health check is answered
		want            codes.Code
		within          time.Duration // of the replacement, for an error
	}{
		{"better path", 1, 0, time.Second, false, 0, codes.OK, 0},
		{"dead path", 1, 0, time.Second, true, time.Hour, codes.Unavailable, deadTimeout},
		{"paused machine", 1, 0, time.Second, true, deadTimeout / 2, codes.OK, 0},
		{"slow path", 512 << 10, 256 << 10, 200 * time.Millisecond, true, 0, codes.OK, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ln := bufconn.Listen(64 << 10)
				srv := grpc.NewServer()
				healthpb.RegisterHealthServer(srv, slowHealth{delay: tt.health})
				pb.RegisterServerServiceServer(srv, slowService{delay: 10 * time.Second})
				served := make(chan error, 1)
				go func() { served <- srv.Serve(ln) }()
				defer func() { srv.Stop(); <-served }()

				c, _ := newTestClient()
				cc := c.addConn(t, connKey{dc: "dc2"}, func(ctx context.Context) (net.Conn, error) {
					nc, err := ln.DialContext(ctx)
					return plainConn{slowConn{nc, tt.perSecond}}, err
				})
				var replaced time.Time
				time.AfterFunc(tt.after, func() {
					replaced = time.Now()
					cc.dead.Store(tt.dead)
					c.replace(cc, drainTimeout)
				})
				_, err := pb.NewServerServiceClient(c.Writer("dc2")).Query(t.Context(), &pb.QueryRequest{Method: "PUT", Body: make([]byte, tt.size)})
				if took := time.Since(replaced); status.Code(err) != tt.want || err != nil && took > tt.within {
					t.Errorf("Query() = %v, %v after the connection was replaced; want %v within %v", err, took, tt.want, tt.within)
				}
				if err := c.close(); err != nil {
					t.Errorf("close() = %v", err)
				}
			})
		})
	}
}
