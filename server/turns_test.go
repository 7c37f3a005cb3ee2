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
	"github.com/wanfed/wanfed/server/limit"
	"github.com/wanfed/wanfed/tlsutil"
)

// Large answers to a peer that does not read are not made without bound, over however many streams and calls, and all come when it reads.
func TestLargeAnswersTakeTurns(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const (
		size    = 256 << 10
		streams = 2
		each    = 60
	)
	var made atomic.Int64
	srv := grpc.NewServer()
	pb.RegisterServerServiceServer(srv, &queryService{query: func(context.Context, *pb.QueryRequest) (*pb.QueryResponse, error) {
		made.Add(1)
		return &pb.QueryResponse{Status: 200, Body: make([]byte, size)}, nil
	}, responses: limit.New(func(tlsutil.Peer) int64 { return maxUnreadResponses })})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	defer func() { srv.Stop(); <-served }()
	cc, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(64<<10)) // one that grows takes more that nobody reads
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	client := pb.NewServerServiceClient(cc)
	var asked []pb.ServerService_ExchangeClient
	for range streams {
		s, err := client.Exchange(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		questions := &pb.Questions{}
		for id := range uint64(each) {
			questions.All = append(questions.All, &pb.Question{Id: id, Query: &pb.QueryRequest{Path: "/"}})
		}
		if err := s.Send(questions); err != nil {
			t.Fatal(err)
		}
		asked = append(asked, s)
	}
	for last := int64(-1); last != made.Load() || last == 0; time.Sleep(300 * time.Millisecond) {
		last = made.Load()
	}
	if n := made.Load(); n > maxUnreadResponses+2*streams { // of each stream one is being sent, and one has been
		t.Errorf("%d answers were made, and none was read", n)
	}
	var readers sync.WaitGroup
	for range each {
		readers.Go(func() {
			if resp, err := client.Query(t.Context(), &pb.QueryRequest{}, grpc.WaitForReady(true)); err != nil || len(resp.GetBody()) != size {
				t.Errorf("a call: %d bytes, %v", len(resp.GetBody()), err)
			}
		})
	}
	for _, s := range asked {
		readers.Go(func() {
			for n := 0; n < each; {
				got, err := s.Recv()
				if err != nil {
					t.Errorf("after %d answers: %v", n, err)
					return
				}
				n += len(got.GetAll())
			}
		})
	}
	readers.Wait()
	if n := made.Load(); n != (streams+1)*each {
		t.Errorf("%d answers were made", n)
	}
}
