// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
)

// exchangeRig is an exchanges with the other side in this process, whose answer to a path is the path, and to /slow nothing while
// the question lasts.
type exchangeRig struct {
	*exchanges
	service pb.ServerServiceClient
	grpc    *grpc.Server
}

func newExchangeRig(t *testing.T) *exchangeRig {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &exchangeRig{grpc: grpc.NewServer()}
	pb.RegisterServerServiceServer(r.grpc, &serverService{query: func(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error) {
		if req.GetPath() == "/slow" {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return &pb.QueryResponse{Status: 200, Body: []byte(req.GetPath())}, nil
	}})
	served := make(chan error, 1)
	go func() { served <- r.grpc.Serve(ln) }()
	cc, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	r.service = pb.NewServerServiceClient(cc)
	r.exchanges = newExchanges(func(ctx context.Context, dc string) (pb.ServerService_ExchangeClient, error) {
		if dc != "dc2" {
			return nil, errors.New("no way")
		}
		return r.service.Exchange(ctx)
	})
	p := start(r.exchanges.Run)
	t.Cleanup(func() {
		p.end(t)
		cc.Close()
		r.grpc.Stop()
		<-served
	})
	return r
}

// until asks until there is a stream.
func (r *exchangeRig) until(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		_, err := r.ask(t.Context(), "dc2", &pb.QueryRequest{Path: "/"})
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestExchange(t *testing.T) {
	r := newExchangeRig(t)
	r.until(t)
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Go(func() {
			path := fmt.Sprintf("/%d", i)
			if resp, err := r.ask(t.Context(), "dc2", &pb.QueryRequest{Path: path}); err != nil || string(resp.GetBody()) != path {
				t.Errorf("%s: %v, %v", path, resp, err)
			}
		})
	}
	wg.Wait()
	start := time.Now()
	if _, err := r.ask(t.Context(), "dc2", &pb.QueryRequest{Path: "/slow"}); !errors.Is(err, errNotAsked) || time.Since(start) > 5*time.Second {
		t.Errorf("a slow answer: %v after %v", err, time.Since(start))
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.ask(ended, "dc2", &pb.QueryRequest{Path: "/slow"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller who has gone: %v", err)
	}
	if n := len(r.byDC["dc2"].asked); n != 0 {
		t.Errorf("%d questions are still remembered", n)
	}
	for range 2 {
		if _, err := r.ask(t.Context(), "dc3", &pb.QueryRequest{Path: "/"}); !errors.Is(err, errNotAsked) {
			t.Errorf("a datacenter without a way: %v", err)
		}
	}
}

// A stream that breaks ends its questions at once; the next ones open another.
func TestExchangeBreaks(t *testing.T) {
	r := newExchangeRig(t)
	r.until(t)
	r.mu.Lock()
	x := r.byDC["dc2"]
	r.mu.Unlock()
	_, answer := x.put(&pb.QueryRequest{Path: "/slow"})
	x.put(&pb.QueryRequest{Path: "/", Method: "PUT"}) // which the other side does not take
	if a, ok := <-answer; ok {
		t.Errorf("answer %v", a)
	}
	if _, answer := x.put(&pb.QueryRequest{Path: "/"}); answer != nil {
		t.Error("a stream that has ended takes questions")
	}
	r.until(t)
}

func TestExchangeTakesOnlyReads(t *testing.T) {
	r := newExchangeRig(t)
	stream, err := r.service.Exchange(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&pb.Questions{All: []*pb.Question{{Id: 1, Query: &pb.QueryRequest{Path: "/", Method: "DELETE"}}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a deletion: %v", err)
	}
}

func TestAnswersTogether(t *testing.T) {
	a := &answers{wake: make(chan struct{}, 1)}
	for i, size := range []int{10, together - 10, 1, 2 * together, 3} {
		a.put(&pb.Answer{Id: uint64(i), Answer: &pb.QueryResponse{Body: make([]byte, size)}})
	}
	var got []int
	for all := a.take(); len(all) > 0; all = a.take() {
		got = append(got, len(all))
	}
	if fmt.Sprint(got) != "[2 1 1 1]" {
		t.Errorf("messages of %v answers", got)
	}
}
