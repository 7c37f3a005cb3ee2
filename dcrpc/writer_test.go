// SPDX-License-Identifier: MPL-2.0

package dcrpc

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
)

// plainConn is a connection without TLS that reports a complete TLS handshake.
type plainConn struct{ net.Conn }

func (plainConn) ConnectionState() tls.ConnectionState {
	return tls.ConnectionState{HandshakeComplete: true}
}

// slowConn limits the rate of writes.
type slowConn struct {
	net.Conn
	perSecond int // bytes; 0 means no limit
}

func (c slowConn) Write(b []byte) (int, error) {
	if c.perSecond > 0 {
		time.Sleep(time.Duration(len(b)) * time.Second / time.Duration(c.perSecond))
	}
	return c.Conn.Write(b)
}

// slowHealth responds to health checks after delay.
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

// slowService responds to queries after delay.
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

// replacement replaces the connection of a write in flight.
type replacement struct {
	name            string
	size, perSecond int           // bytes of the request, and bytes per second of the connection
	after           time.Duration // from the call to the replacement
	dead            bool          // a health check failed before the replacement
	healthDelay     time.Duration // delay of the response to the next health check
	want            codes.Code
	within          time.Duration // maximum time from the replacement to an error
}

// TestWrite_ConnectionReplaced proves that a write in flight finishes after its
// connection was replaced if the server responds, and fails within deadTimeout
// otherwise.
func TestWrite_ConnectionReplaced(t *testing.T) {
	for _, r := range []replacement{
		{"better path", 1, 0, time.Second, false, 0, codes.OK, 0},
		{"dead path", 1, 0, time.Second, true, time.Hour, codes.Unavailable, deadTimeout},
		{"paused machine", 1, 0, time.Second, true, deadTimeout / 2, codes.OK, 0},
		{"slow path", 512 << 10, 256 << 10, 200 * time.Millisecond, true, 0, codes.OK, 0},
	} {
		t.Run(r.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T) { testReplacement(t, r) })
		})
	}
}

func testReplacement(t *testing.T, r replacement) {
	ln := bufconn.Listen(64 << 10)
	srv := grpc.NewServer()
	healthpb.RegisterHealthServer(srv, slowHealth{delay: r.healthDelay})
	pb.RegisterServerServiceServer(srv, slowService{delay: 10 * time.Second})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	defer func() { srv.Stop(); <-served }()

	c, _ := newTestClient()
	cc := c.addConn(t, connKey{dc: "dc2"}, func(ctx context.Context) (net.Conn, error) {
		nc, err := ln.DialContext(ctx)
		return plainConn{slowConn{nc, r.perSecond}}, err
	})
	var replaced time.Time
	time.AfterFunc(r.after, func() {
		replaced = time.Now()
		cc.dead.Store(r.dead)
		c.replace(cc, drainTimeout)
	})
	request := &pb.QueryRequest{Method: "PUT", Body: make([]byte, r.size)}
	_, err := pb.NewServerServiceClient(c.Writer("dc2")).Query(t.Context(), request)
	if took := time.Since(replaced); status.Code(err) != r.want || err != nil && took > r.within {
		t.Errorf("Query() = %v, %v after the replacement, want %v within %v", err, took, r.want, r.within)
	}
	if err := c.close(); err != nil {
		t.Errorf("close() = %v, want nil", err)
	}
}
