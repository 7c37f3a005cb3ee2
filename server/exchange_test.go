// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/server/limit"
	"github.com/wanfed/wanfed/tlsutil"
)

// Responses to a peer that does not read are computed only up to its limit,
// over all its streams and calls. All responses arrive once the peer reads.
func TestExchange_UnreadResponses(t *testing.T) {
	testutil.Cluster(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const (
		size    = 256 << 10
		streams = 2
		each    = 60
	)
	var computed atomic.Int64
	srv := grpc.NewServer()
	pb.RegisterServerServiceServer(srv, &queryService{query: func(context.Context, *pb.QueryRequest) (*pb.QueryResponse, error) {
		computed.Add(1)
		return &pb.QueryResponse{Status: 200, Body: make([]byte, size)}, nil
	}, responses: limit.New(func(tlsutil.Peer) int64 { return maxUnreadResponses })})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	defer func() { srv.Stop(); <-served }()
	// A window that grows would take more responses that are not read.
	cc, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	client := pb.NewServerServiceClient(cc)
	var exchanges []pb.ServerService_ExchangeClient
	for range streams {
		s, err := client.Exchange(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		requests := &pb.Questions{}
		for id := range uint64(each) {
			requests.All = append(requests.All, &pb.Question{Id: id, Query: &pb.QueryRequest{Path: "/"}})
		}
		if err := s.Send(requests); err != nil {
			t.Fatal(err)
		}
		exchanges = append(exchanges, s)
	}
	for last := int64(-1); last != computed.Load() || last == 0; time.Sleep(300 * time.Millisecond) {
		last = computed.Load()
	}
	// Of each stream, one more was sent, and one is being sent.
	if got, most := computed.Load(), int64(maxUnreadResponses+2*streams); got > most {
		t.Errorf("%d responses were computed and none was read, want at most %d", got, most)
	}
	var readers sync.WaitGroup
	for range each {
		readers.Go(func() {
			resp, err := client.Query(t.Context(), &pb.QueryRequest{}, grpc.WaitForReady(true))
			if err != nil || len(resp.GetBody()) != size {
				t.Errorf("Query() = %d bytes, %v, want %d bytes", len(resp.GetBody()), err, size)
			}
		})
	}
	for _, s := range exchanges {
		readers.Go(func() {
			for n := 0; n < each; {
				got, err := s.Recv()
				if err != nil {
					t.Errorf("Recv() = %v after %d responses, want %d responses", err, n, each)
					return
				}
				n += len(got.GetAll())
			}
		})
	}
	readers.Wait()
	if got, want := computed.Load(), int64((streams+1)*each); got != want {
		t.Errorf("%d responses were computed, want %d", got, want)
	}
}
