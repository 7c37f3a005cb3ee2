// SPDX-License-Identifier: MPL-2.0

package dcrpc

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
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
)

// echoService answers a read with its path. It answers /slow when the stream
// ends, and calls only while allowCalls is set.
type echoService struct {
	pb.UnimplementedServerServiceServer
	stopping   context.Context
	allowCalls atomic.Bool
	calls      atomic.Int64
}

func (s *echoService) Query(_ context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error) {
	s.calls.Add(1)
	if !s.allowCalls.Load() {
		return nil, status.Error(codes.Aborted, "calls are not allowed")
	}
	return &pb.QueryResponse{Body: []byte(req.GetPath())}, nil
}

func (s *echoService) Exchange(stream pb.ServerService_ExchangeServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	return ServeRequests(stoppable{stream, ctx}, func(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, func(), error) {
		if req.GetPath() == "/slow" {
			<-ctx.Done()
			return nil, nil, ctx.Err()
		}
		return &pb.QueryResponse{Body: []byte(req.GetPath())}, nil, nil
	})
}

// stoppable is a stream whose context ends when the server stops.
type stoppable struct {
	pb.ServerService_ExchangeServer
	ctx context.Context
}

func (s stoppable) Context() context.Context { return s.ctx }

// streamTest is a client of dc1 and a server of dc2.
type streamTest struct {
	*Client
	service *echoService
	grpc    *grpc.Server
	stop    func() // ends the server's streams
	t       *testing.T
}

func newStreamTest(t *testing.T) *streamTest {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &streamTest{service: &echoService{}, grpc: grpc.NewServer(), t: t}
	s.service.stopping, s.stop = context.WithCancel(t.Context())
	pb.RegisterServerServiceServer(s.grpc, s.service)
	served := make(chan error, 1)
	go func() { served <- s.grpc.Serve(ln) }()
	s.Client, _ = newTestClient()
	s.addConn(t, connKey{dc: "dc2"}, func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		nc, err := d.DialContext(ctx, "tcp", ln.Addr().String())
		return plainConn{nc}, err
	})
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Errorf("close() = %v", err)
		}
		s.grpc.Stop()
		<-served
	})
	return s
}

func (s *streamTest) query(ctx context.Context, path string) (*pb.QueryResponse, error) {
	return s.Query(ctx, "dc2", &pb.QueryRequest{Path: path}, time.Now().Add(time.Minute))
}

// awaitStream makes requests until there is a stream.
func (s *streamTest) awaitStream() *requestStream {
	s.t.Helper()
	testutil.Eventually(s.t, 30*time.Second, func() bool {
		_, err := s.query(s.t.Context(), "/")
		return err == nil
	}, "no stream is open")
	s.requests.mu.Lock()
	defer s.requests.mu.Unlock()
	return s.requests.byDC["dc2"]
}

func (s *requestStream) numPending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pending)
}

// raw opens a request stream without a Client.
func (s *streamTest) raw(ctx context.Context) pb.ServerService_ExchangeClient {
	s.t.Helper()
	cc, err := s.conn(connKey{dc: "dc2"})
	if err != nil {
		s.t.Fatal(err)
	}
	stream, err := pb.NewServerServiceClient(cc).Exchange(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	return stream
}

func TestQuery_Stream(t *testing.T) {
	s := newStreamTest(t)
	stream := s.awaitStream()
	calls := s.service.calls.Load()
	t.Run("many", func(t *testing.T) {
		var wg sync.WaitGroup
		for i := range 300 {
			wg.Go(func() {
				path := fmt.Sprintf("/%d", i%100)
				if resp, err := s.query(t.Context(), path); err != nil || string(resp.GetBody()) != path {
					t.Errorf("Query(%s) = %v, %v, want its path", path, resp, err)
				}
			})
		}
		wg.Wait()
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := s.query(ctx, "/slow")
			done <- err
		}()
		testutil.Eventually(t, 30*time.Second, func() bool { return stream.numPending() > 0 }, "no request is pending")
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Query() = %v, want %v", err, context.Canceled)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		_, err := s.Query(t.Context(), "dc2", &pb.QueryRequest{Path: "/slow"}, time.Now().Add(100*time.Millisecond))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Query() = %v, want %v", err, context.DeadlineExceeded)
		}
	})
	if n := stream.numPending(); n != 0 {
		t.Errorf("%d requests are pending at the end, want 0", n)
	}
	if n := s.service.calls.Load() - calls; n != 0 {
		t.Errorf("%d requests were calls, want 0", n)
	}
}

// TestQuery_StreamBreaks: requests of a stream that breaks are repeated as calls,
// and the next ones open another stream.
func TestQuery_StreamBreaks(t *testing.T) {
	s := newStreamTest(t)
	stream := s.awaitStream()
	s.service.allowCalls.Store(true)
	done := make(chan error, 1)
	go func() {
		resp, err := s.query(t.Context(), "/slow")
		if err == nil && string(resp.GetBody()) != "/slow" {
			err = fmt.Errorf("response %v", resp)
		}
		done <- err
	}()
	testutil.Eventually(t, 30*time.Second, func() bool { return stream.numPending() > 0 }, "no request is pending")
	_, _ = stream.query(t.Context(), &pb.QueryRequest{Path: "/", Method: "PUT"}, time.Now().Add(time.Minute)) // the server ends the stream
	if err := <-done; err != nil {
		t.Errorf("Query() = %v, want the response of a call", err)
	}
	if stream.add(&pb.QueryRequest{Path: "/"}) != nil {
		t.Error("add() queues on a stream that has ended")
	}
	s.service.allowCalls.Store(false)
	s.awaitStream()
}

// TestQuery_NoStream: a server that does not know streams is called.
func TestQuery_NoStream(t *testing.T) {
	s := newStreamTest(t)
	s.stop()
	s.service.allowCalls.Store(true)
	for range 20 {
		if resp, err := s.query(t.Context(), "/a"); err != nil || string(resp.GetBody()) != "/a" {
			t.Errorf("Query() = %v, %v, want its path", resp, err)
		}
	}
}

// TestServeRequests_Stop: a server that stops ends a stream without requests.
func TestServeRequests_Stop(t *testing.T) {
	s := newStreamTest(t)
	s.awaitStream()
	s.stop()
	began := time.Now()
	s.grpc.GracefulStop() // waits for streams
	if took := time.Since(began); took > streamIdleTimeout {
		t.Errorf("the stream ended after %v, want at once", took)
	}
}

// TestServeRequests_Slow: a request without a response delays no other, and
// responses that are ready together travel together.
func TestServeRequests_Slow(t *testing.T) {
	s := newStreamTest(t)
	stream := s.raw(t.Context())
	all, want := &pb.Questions{}, map[uint64]bool{}
	for id := range uint64(3 * maxBatch) {
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
				t.Errorf("response to request %d, which has one or can have none", a.GetId())
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
		if id > 1500 {
			t.Fatal("two responses never travel together")
		}
	}
}

func TestServeRequests_OnlyReads(t *testing.T) {
	s := newStreamTest(t)
	stream := s.raw(t.Context())
	if err := stream.Send(&pb.Questions{All: []*pb.Question{{Id: 1, Query: &pb.QueryRequest{Path: "/", Method: "DELETE"}}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("Recv() = %v, want %v", err, codes.InvalidArgument)
	}
}

// TestServeRequests_Unread: a peer that reads no responses gets a bounded number
// of requests answered.
func TestServeRequests_Unread(t *testing.T) {
	s := newStreamTest(t)
	var sender sync.WaitGroup
	defer sender.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream := s.raw(ctx)
	path := "/" + strings.Repeat("x", 64<<10) // also the size of the response: 128 MiB in all, of which the connection holds little
	var sent atomic.Int64
	all := make(chan struct{})
	sender.Go(func() {
		for id := range uint64(2 * maxPending) {
			if err := stream.Send(&pb.Questions{All: []*pb.Question{{Id: id, Query: &pb.QueryRequest{Path: path}}}}); err != nil {
				if ctx.Err() == nil {
					t.Errorf("Send() = %v", err)
				}
				return
			}
			sent.Add(1)
		}
		close(all)
	})
	// The sender is blocked when it sends nothing for a second. A machine may pause
	// for that long before half of the requests were sent.
	for last, began := int64(-1), time.Now(); ; {
		select {
		case <-all:
			t.Fatalf("%d requests were accepted, and no response was read", 2*maxPending)
		case <-time.After(time.Second):
		}
		n := sent.Load()
		if n == last && n >= maxPending/2 {
			return
		}
		if n > last {
			last, began = n, time.Now()
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("only %d requests were accepted", n)
		}
	}
}

// sentMessages records what is sent on a stream.
type sentMessages struct {
	pb.ServerService_ExchangeClient
	messages []*pb.Questions
}

func (s *sentMessages) Send(q *pb.Questions) error {
	s.messages = append(s.messages, q)
	return nil
}

// String returns id:path?query of what was sent, by message.
func (s *sentMessages) String() string {
	var all []string
	for _, m := range s.messages {
		var one []string
		for _, q := range m.GetAll() {
			one = append(one, fmt.Sprintf("%d:%s?%s", q.GetId(), q.GetQuery().GetPath(), q.GetQuery().GetRawQuery()))
		}
		all = append(all, strings.Join(one, " "))
	}
	return strings.Join(all, ", ")
}

func responseTo(id uint64) *pb.Answer {
	return &pb.Answer{Id: id, Answer: &pb.QueryResponse{Body: []byte(fmt.Sprint(id))}}
}

// TestRequestStream_Identical: identical requests that wait share one message and
// one response, and none gets the response to a request that was sent before.
func TestRequestStream_Identical(t *testing.T) {
	s, out := newRequestStream(), &sentMessages{}
	s.open = true
	flush := func() {
		if err := s.send(out, s.out.take()); err != nil {
			t.Fatal(err)
		}
	}
	first := s.add(&pb.QueryRequest{Path: "/a"})
	flush()
	one, two := s.add(&pb.QueryRequest{Path: "/a"}), s.add(&pb.QueryRequest{Path: "/a"})
	other, stale := s.add(&pb.QueryRequest{Path: "/b"}), s.add(&pb.QueryRequest{Path: "/a", RawQuery: "stale"})
	flush()
	if got, want := out.String(), "1:/a?, 2:/a? 3:/b? 4:/a?stale"; got != want {
		t.Fatalf("sent %s, want %s", got, want)
	}
	s.receive([]*pb.Answer{responseTo(2), responseTo(9), responseTo(1), {Id: 3}, responseTo(4), responseTo(4)})
	for i, tt := range []struct {
		r    *request
		want string
	}{{first, "1"}, {one, "2"}, {two, "2"}, {stale, "4"}} {
		if <-tt.r.done; string(tt.r.resp.GetBody()) != tt.want {
			t.Errorf("response of request %d = %v, want %s", i, tt.r.resp, tt.want)
		}
	}
	select {
	case <-other.done:
		t.Error("an empty response ends a request")
	default:
	}
	s.close()
	if <-other.done; other.resp != nil {
		t.Errorf("response %v of a stream that has ended, want none", other.resp)
	}
}

// TestRequestStream_CallerLeaves: a caller that leaves does not affect the others,
// and a request that all callers left is neither sent nor joined.
func TestRequestStream_CallerLeaves(t *testing.T) {
	s, out := newRequestStream(), &sentMessages{}
	s.open = true
	add := func() *request { return s.add(&pb.QueryRequest{Path: "/a"}) }
	one, two := add(), add()
	s.leave(one)
	if err := s.send(out, s.out.take()); err != nil {
		t.Fatal(err)
	}
	three := add()
	s.leave(three)
	four := add()
	if four == three {
		t.Error("a request that its callers left is joined")
	}
	if err := s.send(out, s.out.take()); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "1:/a?, 3:/a?"; got != want {
		t.Errorf("sent %s, want %s", got, want)
	}
	s.receive([]*pb.Answer{responseTo(1), responseTo(2), responseTo(3)})
	if <-two.done; string(two.resp.GetBody()) != "1" {
		t.Errorf("response = %v, want that of request 1", two.resp)
	}
	if <-four.done; string(four.resp.GetBody()) != "3" {
		t.Errorf("response = %v, want that of request 3", four.resp)
	}
	if n := s.numPending(); n != 0 || len(s.unsent) != 0 {
		t.Errorf("%d pending and %d unsent at the end, want none", n, len(s.unsent))
	}
}

// TestResponder_BatchBytes: large responses do not share a message.
func TestResponder_BatchBytes(t *testing.T) {
	s := &responder{slots: make(chan struct{}, maxPending)}
	var all []*response
	for i, size := range []int{10, maxBatchBytes - 10, 1, 2 * maxBatchBytes, 3} {
		s.slots <- struct{}{}
		all = append(all, &response{&pb.Answer{Id: uint64(i), Answer: &pb.QueryResponse{Body: make([]byte, size)}}, nil})
	}
	out := &sentResponses{}
	if err := s.send(out, all); err != nil || fmt.Sprint(out.sizes) != "[2 1 1 1]" || len(s.slots) != 0 {
		t.Errorf("send() = %v in messages of %v responses with %d slots held, want [2 1 1 1] and none", err, out.sizes, len(s.slots))
	}
}

type sentResponses struct {
	pb.ServerService_ExchangeServer
	sizes []int
}

func (s *sentResponses) Send(m *pb.Answers) error {
	s.sizes = append(s.sizes, len(m.GetAll()))
	return nil
}
