// SPDX-License-Identifier: MPL-2.0

package dcrpc

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/wanfed"
)

const (
	// streamIdleTimeout is the time without a request after which a request
	// stream is closed.
	streamIdleTimeout = 10 * time.Second
	// streamBackoff is the pause between the failure of a stream and the next
	// stream.
	streamBackoff = time.Second
	// maxPending bounds the requests of a stream without a response. On the
	// server, it bounds the requests whose response was not sent yet.
	maxPending = 1024
)

// errNoStream means that a request did not go over a stream, or that the stream
// ended before the response.
var errNoStream = errors.New("no open request stream")

// Query sends a read of the HTTP API to any server of another datacenter, and
// returns its response. It returns context.DeadlineExceeded after deadline.
// Reads that wait for a change must use a Reader instead.
//
// Requests share one stream for each datacenter. A request on the stream costs
// half as much as a call. Query makes a call while no stream is open, for
// example for the first request.
func (c *Client) Query(ctx context.Context, dc string, req *pb.QueryRequest, deadline time.Time) (*pb.QueryResponse, error) {
	if s := c.requests.get(dc); s != nil {
		resp, err := s.query(ctx, req, deadline)
		if !errors.Is(err, errNoStream) {
			return resp, err
		}
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	return pb.NewServerServiceClient(c.Reader(dc)).Query(ctx, req)
}

// requestStreams holds one stream for each datacenter that receives requests.
type requestStreams struct {
	c *Client

	mu   sync.Mutex
	byDC map[string]*requestStream
	next map[string]time.Time // earliest time of the next stream
}

func newRequestStreams(c *Client) *requestStreams {
	return &requestStreams{c: c, byDC: map[string]*requestStream{}, next: map[string]time.Time{}}
}

// get returns the stream to dc. Without a stream, get returns nil and starts to
// open one, unless a stream to dc failed less than streamBackoff ago.
func (r *requestStreams) get(dc string) *requestStream {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.byDC[dc]; s != nil {
		return s
	}
	if time.Now().Before(r.next[dc]) {
		return nil
	}
	s := newRequestStream()
	if !r.c.spawn(func() {
		err := r.run(dc, s)
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.byDC, dc)
		if err != nil {
			r.next[dc] = time.Now().Add(streamBackoff)
		}
	}) {
		return nil
	}
	r.byDC[dc] = s
	return nil
}

// run opens s and serves it until it fails or is idle. It returns nil if s was
// idle.
func (r *requestStreams) run(dc string, s *requestStream) error {
	cc, err := r.c.conn(connKey{dc: dc})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.c.ctx)
	defer cancel()
	defer context.AfterFunc(cc.retired, cancel)()
	stop := r.c.checkIfSlow(ctx, cc, 0)
	stream, err := pb.NewServerServiceClient(cc).Exchange(ctx)
	stop()
	if err != nil {
		return err
	}
	return s.run(ctx, cancel, stream, cc.answerTime, func() { r.c.spawn(func() { r.c.check(cc) }) })
}

// requestStream carries requests to one datacenter. Requests that wait while a
// message is sent share the next message. Identical waiting requests are sent
// once. A request that was already sent is not shared, so the response to a
// caller is never older than the caller's request.
type requestStream struct {
	out *batcher[*request]

	mu       sync.Mutex
	open     bool
	used     bool // a request was made since the last call of wasUsed
	lastID   uint64
	unsent   map[requestKey]*request
	pending  map[uint64]*request
	answerIn func() time.Duration // see conn.answerTime
	check    func()               // checks the health of the connection. It does not block
}

type requestKey struct{ path, query string }

// request is a read that one or more callers wait for.
type request struct {
	id      uint64
	req     *pb.QueryRequest
	done    chan struct{}     // closed when resp is set, or never will be
	resp    *pb.QueryResponse // read after done; nil: the request has no response
	callers int               // guarded by requestStream.mu
}

func newRequestStream() *requestStream {
	return &requestStream{out: newBatcher[*request](), unsent: map[requestKey]*request{}, pending: map[uint64]*request{}}
}

// query sends req and waits for the response. If the response is late, query
// checks the health of the connection. A dead connection ends the stream, and
// query returns errNoStream.
func (s *requestStream) query(ctx context.Context, req *pb.QueryRequest, deadline time.Time) (*pb.QueryResponse, error) {
	r := s.add(req)
	if r == nil {
		return nil, errNoStream
	}
	wait := s.answerIn()
	late := time.NewTimer(min(wait, time.Until(deadline)))
	defer late.Stop()
	for {
		select {
		case <-r.done:
			if r.resp == nil {
				return nil, errNoStream
			}
			return r.resp, nil
		case now := <-late.C:
			left := deadline.Sub(now)
			if left <= 0 {
				s.leave(r)
				return nil, context.DeadlineExceeded
			}
			s.check()
			wait = min(2*wait, wanfed.MaxProbeTimeout)
			late.Reset(min(wait, left))
		case <-ctx.Done():
			s.leave(r)
			return nil, ctx.Err()
		}
	}
}

// add queues req. It returns nil if the stream is not open or is full.
func (s *requestStream) add(req *pb.QueryRequest) *request {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.open || len(s.pending) >= maxPending {
		return nil
	}
	s.used = true
	key := requestKey{req.GetPath(), req.GetRawQuery()}
	if r := s.unsent[key]; r != nil {
		r.callers++
		return r
	}
	s.lastID++
	r := &request{id: s.lastID, req: req, done: make(chan struct{}), callers: 1}
	s.unsent[key], s.pending[r.id] = r, r
	s.out.add(r)
	return r
}

// leave removes a caller that does not wait any longer.
func (s *requestStream) leave(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.callers--; r.callers > 0 {
		return
	}
	delete(s.pending, r.id)
	s.sentLocked(r) // further identical requests must not join r
}

func (s *requestStream) sentLocked(r *request) {
	if key := (requestKey{r.req.GetPath(), r.req.GetRawQuery()}); s.unsent[key] == r {
		delete(s.unsent, key)
	}
}

func (s *requestStream) send(stream pb.ServerService_ExchangeClient, all []*request) error {
	msg := &pb.Questions{All: make([]*pb.Question, 0, len(all))}
	s.mu.Lock()
	for _, r := range all {
		s.sentLocked(r)
		if r.callers > 0 {
			msg.All = append(msg.All, &pb.Question{Id: r.id, Query: r.req})
		}
	}
	s.mu.Unlock()
	return stream.Send(msg)
}

func (s *requestStream) receive(all []*pb.Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range all {
		if r := s.pending[a.GetId()]; r != nil && a.GetAnswer() != nil {
			delete(s.pending, r.id)
			r.resp = a.GetAnswer()
			close(r.done)
		}
	}
}

// run sends requests and receives responses until the stream ends. The function
// cancel ends the stream. run returns nil if no request was made during
// streamIdleTimeout.
func (s *requestStream) run(ctx context.Context, cancel func(), stream pb.ServerService_ExchangeClient, answerIn func() time.Duration, check func()) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.close()
	defer cancel()
	s.mu.Lock()
	s.open, s.answerIn, s.check = true, answerIn, check
	s.mu.Unlock()
	ended := make(chan error, 2)
	wg.Go(func() {
		for {
			msg, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			s.receive(msg.GetAll())
		}
	})
	wg.Go(func() { ended <- s.out.run(ctx, func(all []*request) error { return s.send(stream, all) }) })
	idle := time.NewTicker(streamIdleTimeout)
	defer idle.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-idle.C:
			if !s.wasUsed() {
				return nil
			}
		}
	}
}

// wasUsed reports whether a request was made since the last call.
func (s *requestStream) wasUsed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	used := s.used
	s.used = false
	return used
}

// close ends all requests without a response.
func (s *requestStream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = false
	for id, r := range s.pending {
		delete(s.pending, id)
		close(r.done)
	}
}
