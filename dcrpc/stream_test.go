// SPDX-License-Identifier: MPL-2.0

package dcrpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
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

// echoService returns the path of a read as the response. On a stream, it
// does not respond to the path /slow. It rejects calls unless allowCalls is
// set.
type echoService struct {
	pb.UnimplementedServerServiceServer
	stopping   context.Context // its end stops the server's streams
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
	return ServeRequests(stoppable{stream, ctx},
		func(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, func(), error) {
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

// streamTest has a Client of dc1 and a server of dc2.
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
			t.Errorf("close() = %v, want nil", err)
		}
		s.grpc.Stop()
		<-served
	})
	return s
}

func (s *streamTest) query(ctx context.Context, path string) (*pb.QueryResponse, error) {
	return s.Query(ctx, "dc2", &pb.QueryRequest{Path: path}, time.Now().Add(time.Minute))
}

// awaitStream makes requests until a stream is open, and returns the stream.
func (s *streamTest) awaitStream() *requestStream {
	s.t.Helper()
	testutil.Eventually(s.t, 30*time.Second, func() bool {
		_, err := s.query(s.t.Context(), "/")
		return err == nil
	}, "an open stream")
	s.streamsMu.Lock()
	defer s.streamsMu.Unlock()
	return s.streams["dc2"]
}

func (s *requestStream) numPending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pending)
}

// openRaw opens a request stream to the server. The test sends and receives its
// messages.
func (s *streamTest) openRaw(ctx context.Context) pb.ServerService_ExchangeClient {
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

func (s *streamTest) wantEcho(t *testing.T, path string) {
	t.Helper()
	if resp, err := s.query(t.Context(), path); err != nil || string(resp.GetBody()) != path {
		t.Errorf("Query(%s) = %v, %v, want the body %q", path, resp, err, path)
	}
}

// awaitPending waits until a request of the stream has no response.
func (s *requestStream) awaitPending(t *testing.T) {
	t.Helper()
	testutil.Eventually(t, 30*time.Second, func() bool { return s.numPending() > 0 }, "a pending request")
}

func TestQuery_Stream(t *testing.T) {
	s := newStreamTest(t)
	stream := s.awaitStream()
	calls := s.service.calls.Load()
	t.Run("many", func(t *testing.T) {
		var wg sync.WaitGroup
		for i := range 300 {
			wg.Go(func() { s.wantEcho(t, fmt.Sprintf("/%d", i%100)) })
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
		stream.awaitPending(t)
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
	if got := stream.numPending(); got != 0 {
		t.Errorf("numPending() = %d after all requests, want 0", got)
	}
	if got := s.service.calls.Load() - calls; got != 0 {
		t.Errorf("calls = %d, want 0, because all requests use the stream", got)
	}
}

// TestQuery_StreamBreaks proves that a request without a response is repeated
// as a call when its stream breaks, and that later requests open another
// stream.
func TestQuery_StreamBreaks(t *testing.T) {
	s := newStreamTest(t)
	stream := s.awaitStream()
	s.service.allowCalls.Store(true)
	var request sync.WaitGroup
	request.Go(func() { s.wantEcho(t, "/slow") })
	stream.awaitPending(t)
	invalid := &pb.QueryRequest{Path: "/", Method: "PUT"} // the server ends the stream
	_, _ = stream.query(t.Context(), invalid, time.Now().Add(time.Minute))
	request.Wait()
	if got := stream.add(&pb.QueryRequest{Path: "/"}); got != nil {
		t.Errorf("add() = %v on an ended stream, want nil", got)
	}
	s.service.allowCalls.Store(false)
	s.awaitStream()
}

// TestQuery_StreamNotSupported proves that Query makes calls to a server that
// rejects streams.
func TestQuery_StreamNotSupported(t *testing.T) {
	s := newStreamTest(t)
	s.stop()
	s.service.allowCalls.Store(true)
	for range 20 {
		s.wantEcho(t, "/a")
	}
}

// TestServeRequests_Stop proves that a stopping server ends an idle stream.
func TestServeRequests_Stop(t *testing.T) {
	s := newStreamTest(t)
	s.awaitStream()
	s.stop()
	start := time.Now()
	s.grpc.GracefulStop() // waits for streams
	if got := time.Since(start); got > streamIdleTimeout {
		t.Errorf("GracefulStop() took %v, want less than %v", got, streamIdleTimeout)
	}
}

// TestServeRequests_SlowRequest proves that a request without a response does
// not delay other requests.
func TestServeRequests_SlowRequest(t *testing.T) {
	s := newStreamTest(t)
	stream := s.openRaw(t.Context())
	requests, want := &pb.Questions{}, map[uint64]bool{}
	for id := range uint64(3 * maxBatch) {
		path := "/"
		if id%10 == 5 {
			path = "/slow"
		} else {
			want[id] = true
		}
		requests.All = append(requests.All, &pb.Question{Id: id, Query: &pb.QueryRequest{Path: path}})
	}
	if err := stream.Send(requests); err != nil {
		t.Fatal(err)
	}
	for len(want) > 0 {
		msg, err := stream.Recv()
		if err != nil {
			t.Fatalf("Recv() = %v, want responses to %d more requests", err, len(want))
		}
		for _, a := range msg.GetAll() {
			if !want[a.GetId()] {
				t.Errorf("Recv() = response to request %d, want a pending request that is not slow", a.GetId())
			}
			delete(want, a.GetId())
		}
	}
}

// TestServeRequests_SharedMessage proves that responses that are ready at the
// same time share a message.
func TestServeRequests_SharedMessage(t *testing.T) {
	s := newStreamTest(t)
	stream := s.openRaw(t.Context())
	for id := uint64(0); id < 1000; id += 2 {
		if err := stream.Send(&pb.Questions{All: []*pb.Question{{Id: id}, {Id: id + 1}}}); err != nil {
			t.Fatal(err)
		}
		for received := 0; received < 2; {
			msg, err := stream.Recv()
			if err != nil {
				t.Fatalf("Recv() = %v after %d of 2 responses, want nil", err, received)
			}
			if len(msg.GetAll()) == 2 {
				return
			}
			received += len(msg.GetAll())
		}
	}
	t.Error("messages with 2 responses = 0 in 500 attempts, want at least 1")
}

func TestServeRequests_OnlyReads(t *testing.T) {
	s := newStreamTest(t)
	stream := s.openRaw(t.Context())
	request := &pb.Question{Id: 1, Query: &pb.QueryRequest{Path: "/", Method: "DELETE"}}
	if err := stream.Send(&pb.Questions{All: []*pb.Question{request}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("Recv() = %v after DELETE, want %v", err, codes.InvalidArgument)
	}
}

// TestServeRequests_UnreadResponses proves that the server accepts a bounded
// number of requests from a peer that reads no responses.
func TestServeRequests_UnreadResponses(t *testing.T) {
	s := newStreamTest(t)
	var sender sync.WaitGroup
	defer sender.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream := s.openRaw(ctx)
	// The handler returns the path as the response. The responses to all
	// requests have 128 MiB, much more than the buffers of the connection.
	path := "/" + strings.Repeat("x", 64<<10)
	var sent atomic.Int64
	allSent := make(chan struct{})
	sender.Go(func() {
		for id := range uint64(2 * maxPending) {
			if err := stream.Send(&pb.Questions{All: []*pb.Question{
				{Id: id, Query: &pb.QueryRequest{Path: path}},
			}}); err != nil {
				if ctx.Err() == nil {
					t.Errorf("Send() = %v, want nil", err)
				}
				return
			}
			sent.Add(1)
		}
		close(allSent)
	})
	// The server has stopped to accept requests when the sender, which has sent
	// at least half of maxPending, makes no progress for a second.
	for last, progress := int64(-1), time.Now(); ; {
		select {
		case <-allSent:
			t.Fatalf("accepted requests = %d without reading a response, want fewer", 2*maxPending)
		case <-time.After(time.Second):
		}
		got := sent.Load()
		if got == last && got >= maxPending/2 {
			return
		}
		if got > last {
			last, progress = got, time.Now()
		}
		if time.Since(progress) > 30*time.Second {
			t.Fatalf("accepted requests = %d, want at least %d", got, maxPending/2)
		}
	}
}

// sentMessages records the messages that are sent on a stream.
type sentMessages struct {
	pb.ServerService_ExchangeClient
	messages []*pb.Questions
}

func (s *sentMessages) Send(q *pb.Questions) error {
	s.messages = append(s.messages, q)
	return nil
}

// String returns the requests as "id:path?query". Messages are separated by
// commas.
func (s *sentMessages) String() string {
	var messages []string
	for _, m := range s.messages {
		var requests []string
		for _, q := range m.GetAll() {
			requests = append(requests, fmt.Sprintf("%d:%s?%s", q.GetId(), q.GetQuery().GetPath(),
				q.GetQuery().GetRawQuery()))
		}
		messages = append(messages, strings.Join(requests, " "))
	}
	return strings.Join(messages, ", ")
}

// openTestStream returns an open stream without a connection. flush sends the
// waiting requests to sent.
func openTestStream(t *testing.T) (s *requestStream, sent *sentMessages, flush func()) {
	s, sent = newRequestStream(), &sentMessages{}
	s.open = true
	return s, sent, func() {
		t.Helper()
		if err := s.send(sent, s.out.take()); err != nil {
			t.Fatal(err)
		}
	}
}

// responseTo returns a response whose body is the id.
func responseTo(id uint64) *pb.Answer {
	return &pb.Answer{Id: id, Answer: &pb.QueryResponse{Body: []byte(fmt.Sprint(id))}}
}

func (r *request) wantResponse(t *testing.T, want string) {
	t.Helper()
	if <-r.done; string(r.resp.GetBody()) != want {
		t.Errorf("response to request %d = %v, want the body %q", r.id, r.resp, want)
	}
}

// TestRequestStream_Identical proves that identical waiting requests share one
// message and one response, and that a request does not share the response to a
// request that was already sent.
func TestRequestStream_Identical(t *testing.T) {
	s, sent, flush := openTestStream(t)
	first := s.add(&pb.QueryRequest{Path: "/a"})
	flush()
	second, third := s.add(&pb.QueryRequest{Path: "/a"}), s.add(&pb.QueryRequest{Path: "/a"})
	unanswered, stale := s.add(&pb.QueryRequest{Path: "/b"}), s.add(&pb.QueryRequest{Path: "/a", RawQuery: "stale"})
	flush()
	if got, want := sent.String(), "1:/a?, 2:/a? 3:/b? 4:/a?stale"; got != want {
		t.Fatalf("sent = %s, want %s", got, want)
	}
	// Request 9 does not exist, and the response to request 3 is empty.
	s.receive([]*pb.Answer{responseTo(2), responseTo(9), responseTo(1), {Id: 3}, responseTo(4), responseTo(4)})
	first.wantResponse(t, "1")
	second.wantResponse(t, "2")
	third.wantResponse(t, "2")
	stale.wantResponse(t, "4")
	select {
	case <-unanswered.done:
		t.Error("an empty response ended request 3, want the request to stay pending")
	default:
	}
	s.close()
	if <-unanswered.done; unanswered.resp != nil {
		t.Errorf("response after close() = %v, want nil", unanswered.resp)
	}
}

// TestRequestStream_CallerLeaves proves that a caller that stops waiting does
// not affect the other callers, and that a request without callers is neither
// sent nor shared.
func TestRequestStream_CallerLeaves(t *testing.T) {
	s, sent, flush := openTestStream(t)
	add := func() *request { return s.add(&pb.QueryRequest{Path: "/a"}) }
	first, sharing := add(), add()
	s.leave(first)
	flush()
	abandoned := add()
	s.leave(abandoned)
	last := add()
	if last == abandoned {
		t.Error("add() = the abandoned request, want a new request")
	}
	flush()
	if got, want := sent.String(), "1:/a?, 3:/a?"; got != want {
		t.Errorf("sent = %s, want %s", got, want)
	}
	s.receive([]*pb.Answer{responseTo(1), responseTo(2), responseTo(3)})
	sharing.wantResponse(t, "1")
	last.wantResponse(t, "3")
	if got := s.numPending(); got != 0 || len(s.unsent) != 0 {
		t.Errorf("pending and unsent requests = %d, %d, want 0, 0", got, len(s.unsent))
	}
}

// sentResponses records the number of responses in each sent message.
type sentResponses struct {
	pb.ServerService_ExchangeServer
	sizes []int
}

func (s *sentResponses) Send(m *pb.Answers) error {
	s.sizes = append(s.sizes, len(m.GetAll()))
	return nil
}

// TestResponder_BatchBytes proves that large responses do not share a message.
func TestResponder_BatchBytes(t *testing.T) {
	s := &responder{slots: make(chan struct{}, maxPending)}
	var batch []*response
	for i, size := range []int{10, maxBatchBytes - 10, 1, 2 * maxBatchBytes, 3} {
		s.slots <- struct{}{}
		batch = append(batch,
			&response{&pb.Answer{Id: uint64(i), Answer: &pb.QueryResponse{Body: make([]byte, size)}}, nil})
	}
	out, want := &sentResponses{}, []int{2, 1, 1, 1}
	err := s.send(out, batch)
	if err != nil || !slices.Equal(out.sizes, want) {
		t.Errorf("send() = %v with %v responses per message, want nil with %v", err, out.sizes, want)
	}
	if got := len(s.slots); got != 0 {
		t.Errorf("held slots after send() = %d, want 0", got)
	}
}
