// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
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
	tests   atomic.Int64 // of the connection
	leader  atomic.Value // string: that the other side names
	moved   chan string  // node.dc
	stop    func()       // the other side's streams
}

func newExchangeRig(t *testing.T) *exchangeRig {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stopping, stop := context.WithCancel(t.Context())
	r := &exchangeRig{moved: make(chan string, 10), stop: stop}
	r.grpc = grpc.NewServer(grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		ctx, cancel := context.WithCancel(ss.Context())
		defer cancel()
		defer context.AfterFunc(stopping, cancel)()
		return next(srv, streamWith{ss, ctx})
	}))
	r.leader.Store("")
	pb.RegisterServerServiceServer(r.grpc, &serverService{query: func(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error) {
		if req.GetPath() == "/slow" {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return &pb.QueryResponse{Status: 200, Body: []byte(req.GetPath())}, nil
	}, leader: func() string { return r.leader.Load().(string) }})
	served := make(chan error, 1)
	go func() { served <- r.grpc.Serve(ln) }()
	cc, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	r.service = pb.NewServerServiceClient(cc)
	r.exchanges = newExchanges(exchangeConfig{
		open: func(ctx context.Context, dc string) (pb.ServerService_ExchangeClient, error) {
			if dc != "dc2" {
				return nil, errors.New("no way")
			}
			return r.service.Exchange(ctx)
		},
		due:    func(string) time.Duration { return 20 * time.Millisecond },
		test:   func(context.Context, string) { r.tests.Add(1) },
		moveTo: func(dc, node string) { r.moved <- node + "." + dc },
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

// ask is that of exchanges, with time enough.
func (r *exchangeRig) ask(ctx context.Context, dc string, req *pb.QueryRequest) (*pb.QueryResponse, error) {
	return r.exchanges.ask(ctx, dc, req, time.Now().Add(time.Minute))
}

// until asks until there is a stream.
func (r *exchangeRig) until(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(starting); ; time.Sleep(time.Millisecond) {
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
			path := fmt.Sprintf("/%d", i%100)
			if resp, err := r.ask(t.Context(), "dc2", &pb.QueryRequest{Path: path}); err != nil || string(resp.GetBody()) != path {
				t.Errorf("%s: %v, %v", path, resp, err)
			}
		})
	}
	wg.Wait()
	tested := r.tests.Load()
	patient, give := context.WithCancel(t.Context())
	defer give()
	asked := make(chan error, 1)
	go func() {
		_, err := r.ask(patient, "dc2", &pb.QueryRequest{Path: "/slow"})
		asked <- err
	}()
	until(t, func() bool { return r.tests.Load() > tested })
	give()
	if err := <-asked; !errors.Is(err, context.Canceled) {
		t.Errorf("a slow answer: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.ask(ended, "dc2", &pb.QueryRequest{Path: "/slow"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller who has gone: %v", err)
	}
	if _, err := r.exchanges.ask(t.Context(), "dc2", &pb.QueryRequest{Path: "/slow"}, time.Now().Add(100*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a slow answer, and a deadline: %v", err)
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
	slow := x.put(&pb.QueryRequest{Path: "/slow"})
	x.put(&pb.QueryRequest{Path: "/", Method: "PUT"}) // which the other side does not take
	if <-slow.done; slow.answer != nil {
		t.Errorf("answer %v", slow.answer)
	}
	if x.put(&pb.QueryRequest{Path: "/"}) != nil {
		t.Error("a stream that has ended takes questions")
	}
	r.until(t)
}

// A server that stops ends its side of a stream on which nothing is asked.
func TestExchangeEndsWithItsServer(t *testing.T) {
	r := newExchangeRig(t)
	r.until(t)
	r.stop()
	began := time.Now()
	r.grpc.GracefulStop()                               // waits for streams
	if took := time.Since(began); took > exchangeIdle { // the asker has asked, and so leaves after twice that
		t.Errorf("the stream ended after %v", took)
	}
}

// Questions of one message are answered together, and one that has no answer yet holds up none of the others for long.
func TestExchangeSlowQuestion(t *testing.T) {
	r := newExchangeRig(t)
	stream, err := r.service.Exchange(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all, want := &pb.Questions{}, map[uint64]bool{}
	for id := range uint64(3 * maxTogether) { // more than are answered by one
		path := "/"
		if id%10 == 5 {
			path = "/slow"
		} else {
			want[id] = true
		}
		all.All = append(all.All, &pb.Question{Id: id, Query: &pb.QueryRequest{Path: path}})
	}
	if err := stream.Send(all); err != nil {
		t.Fatal(err)
	}
	for len(want) > 0 {
		got, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range got.GetAll() {
			if !want[a.GetId()] {
				t.Errorf("answer to %d, again or too early", a.GetId())
			}
			delete(want, a.GetId())
		}
	}
	for id, together := uint64(500), false; !together; id += 2 {
		if err := stream.Send(&pb.Questions{All: []*pb.Question{{Id: id}, {Id: id + 1}}}); err != nil {
			t.Fatal(err)
		}
		for left := 2; left > 0; {
			got, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			together = len(got.GetAll()) == 2
			left -= len(got.GetAll())
		}
		if id > 600 { // one may be held up for answerSlow: the machine stood still
			t.Fatal("two that are quick are never answered together")
		}
	}
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

// Who asks and reads no answers is not answered without bound.
func TestExchangeWithoutReader(t *testing.T) {
	r := newExchangeRig(t)
	var sender sync.WaitGroup
	defer sender.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := r.service.Exchange(ctx)
	if err != nil {
		t.Fatal(err)
	}
	long := "/" + strings.Repeat("x", 64<<10) // which is the answer's size too: 64 MiB in all, of which the connection takes little
	var taken atomic.Int64
	all := make(chan struct{})
	sender.Go(func() {
		for id := range uint64(2 * maxAsked) {
			if err := stream.Send(&pb.Questions{All: []*pb.Question{{Id: id, Query: &pb.QueryRequest{Path: long}}}}); err != nil {
				if ctx.Err() == nil {
					t.Error(err)
				}
				return
			}
			taken.Add(1)
		}
		close(all)
	})
	// It waits for the reader when no more are taken within a second: but a machine may stand still for that long before half are.
	for last, began := int64(-1), time.Now(); ; {
		select {
		case <-all:
			t.Fatalf("%d questions were taken, and no answer was read", 2*maxAsked)
		case <-time.After(time.Second):
		}
		n := taken.Load()
		if n == last && n >= maxAsked/2 {
			return
		}
		if n > last {
			last, began = n, time.Now()
		}
		if time.Since(began) > starting {
			t.Fatalf("only %d questions were taken", n)
		}
	}
}

func TestAnswersTogether(t *testing.T) {
	a := &answers{sending: true}
	for i, size := range []int{10, together - 10, 1, 2 * together, 3} {
		a.queue = append(a.queue, &pb.Answer{Id: uint64(i), Answer: &pb.QueryResponse{Body: make([]byte, size)}})
	}
	var got []int
	for all := a.take(); len(all) > 0; all = a.take() {
		got = append(got, len(all))
	}
	if fmt.Sprint(got) != "[2 1 1 1]" {
		t.Errorf("messages of %v answers", got)
	}
	if a.sending {
		t.Error("nobody would send the next one")
	}
}

type streamWith struct {
	grpc.ServerStream
	ctx context.Context
}

func (s streamWith) Context() context.Context { return s.ctx }
