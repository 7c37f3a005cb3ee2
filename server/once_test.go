// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/wanfed"
)

// slowConn sends no more than perSecond bytes in a second. 0: at once.
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

// heldHealth answers tests of the connection after that time.
type heldHealth struct {
	healthpb.UnimplementedHealthServer
	silent time.Duration
}

func (h heldHealth) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	select {
	case <-time.After(h.silent):
		return &healthpb.HealthCheckResponse{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A write under way whose connection is given up, because there is a better one, or because a test of it waited behind the write,
// finishes when the connection answers, and fails soon when it does not.
func TestWriteOverAConnectionGivenUp(t *testing.T) {
	const takes = 10 * time.Second // the other side, for an answer
	for name, tt := range map[string]struct {
		size, perSecond int
		after           time.Duration // it was sent, until the connection is given up
		silent          time.Duration // the other side, for a test of the connection
		want            codes.Code
		within          time.Duration // of being given up, for an answer that is no good
	}{
		"a better way":          {1, 0, time.Second, 0, codes.OK, 0},
		"a dead way":            {1, 0, time.Second, time.Hour, codes.Unavailable, lastChance},
		"a machine stood still": {1, 0, time.Second, lastChance / 2, codes.OK, 0},
		"a slow way":            {512 << 10, 256 << 10, 200 * time.Millisecond, 0, codes.OK, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ln := bufconn.Listen(64 << 10)
				srv := grpc.NewServer()
				healthpb.RegisterHealthServer(srv, heldHealth{silent: tt.silent})
				pb.RegisterServerServiceServer(srv, &serverService{query: func(ctx context.Context, _ *pb.QueryRequest) (*pb.QueryResponse, error) {
					select {
					case <-time.After(takes):
						return &pb.QueryResponse{Status: 200}, nil
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				}})
				served := make(chan error, 1)
				go func() { served <- srv.Serve(ln) }()
				defer func() { srv.Stop(); <-served }()

				c := newConns("dc1", "dc1", nil, nil, &wanfed.SharedAddressBook{})
				cc := &conn{key: connKey{dc: "dc2"}}
				cc.life, cc.end = context.WithCancel(t.Context())
				var err error
				cc.ClientConn, err = api.NewGRPCClient(func(ctx context.Context) (net.Conn, error) {
					nc, err := ln.DialContext(ctx)
					return vouched{slowConn{nc, tt.perSecond}}, err
				})
				if err != nil {
					t.Fatal(err)
				}
				c.byName[cc.key] = cc
				var gaveUp time.Time
				time.AfterFunc(tt.after, func() {
					gaveUp = time.Now()
					c.giveUp(cc, drainGrace)
				})
				_, err = pb.NewServerServiceClient(c.once("dc2")).Query(t.Context(), &pb.QueryRequest{Method: "PUT", Body: make([]byte, tt.size)})
				if took := time.Since(gaveUp); status.Code(err) != tt.want || err != nil && took > tt.within {
					t.Errorf("%v after the connection was given up: %v", took, err)
				}
				if err := c.close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
