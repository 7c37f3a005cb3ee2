// SPDX-License-Identifier: MPL-2.0

package dcrpc

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
)

// epochService sends an epoch in the response of a call that fails.
type epochService struct {
	pb.UnimplementedServerServiceServer
	received []string
}

func (s *epochService) Query(ctx context.Context, _ *pb.QueryRequest) (*pb.QueryResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	s.received = md.Get(api.EpochKey)
	if err := grpc.SetHeader(ctx, metadata.Pairs(api.EpochKey, "3:dc2")); err != nil {
		return nil, err
	}
	return nil, status.Error(codes.NotFound, "not found")
}

// TestExchangeEpochs checks that a call carries the epoch of the caller, and
// that the caller learns the epoch of the response, also of a failed call.
func TestExchangeEpochs(t *testing.T) {
	ln := bufconn.Listen(64 << 10)
	srv, service := grpc.NewServer(), &epochService{}
	pb.RegisterServerServiceServer(srv, service)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	defer func() { srv.Stop(); <-served }()

	learned := ""
	c := New(Config{
		DC: "dc1", Epoch: func() string { return "1:dc1" },
		Learn: func(epoch, dc string) { learned = epoch + " from " + dc },
	})
	cc, err := grpc.NewClient("passthrough:///dc2", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }),
		grpc.WithUnaryInterceptor(c.exchangeEpochs("dc2")))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	_, err = pb.NewServerServiceClient(cc).Query(t.Context(), &pb.QueryRequest{})
	if status.Code(err) != codes.NotFound || learned != "3:dc2 from dc2" {
		t.Errorf("Query() = %v, learned %q, want NotFound and 3:dc2 from dc2", err, learned)
	}
	if len(service.received) != 1 || service.received[0] != "1:dc1" {
		t.Errorf("epoch in the call = %q, want 1:dc1", service.received)
	}
}
