// SPDX-License-Identifier: MPL-2.0

package dcrpc

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
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
	// maxPending bounds the pending requests of a stream. At the client, a
	// request is pending until its response arrives. At the server, it is
	// pending until its response was sent.
	maxPending = 1024
)

// errNoStream means that a request was not sent over a stream, or that the
// stream ended before the response.
var errNoStream = errors.New("no open request stream")

// Query sends a read of the HTTP API to any server of another datacenter, and
// returns its response. It returns context.DeadlineExceeded after deadline. A
// read that waits for a change must use a Reader instead.
//
// Query uses the request stream of the datacenter. It makes a call while no
// stream is open, for example for the first request.
func (c *Client) Query(ctx context.Context, dc string, req *pb.QueryRequest,
	deadline time.Time) (*pb.QueryResponse, error) {
	if s := c.requestStream(dc); s != nil {
		resp, err := s.query(ctx, req, deadline)
		if !errors.Is(err, errNoStream) {
			return resp, err
		}
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	return pb.NewServerServiceClient(c.Reader(dc)).Query(ctx, req)
}

// requestStream returns the stream to dc. Without a stream, it returns nil and
// starts to open a stream, unless a stream to dc failed less than streamBackoff
// ago.
func (c *Client) requestStream(dc string) *requestStream {
	c.streamsMu.Lock()
	defer c.streamsMu.Unlock()
	if s := c.streams[dc]; s != nil || time.Now().Before(c.nextStream[dc]) {
		return s
	}
	s := newRequestStream()
	if c.spawn(func() {
		err := s.run(c, dc)
		c.streamsMu.Lock()
		defer c.streamsMu.Unlock()
		delete(c.streams, dc)
		if err != nil {
			c.nextStream[dc] = time.Now().Add(streamBackoff)
		}
	}) {
		c.streams[dc] = s
	}
	return nil
}

// requestStream carries requests to one datacenter. Callers with equal requests
// share one request until it is sent. A later caller sends a new request,
// because the response to the sent one may be older than the caller's request.
type requestStream struct {
	out  *batcher[*request]
	used atomic.Bool // a request was made since the last idle check

	mu      sync.Mutex
	open    bool
	client  *Client // set before open becomes true
	conn    *conn   // set before open becomes true
	lastID  uint64
	unsent  map[requestKey]*request
	pending map[uint64]*request // without a response, by id
}

type requestKey struct{ path, query, caller string }

// request is a read that one or more callers wait for.
type request struct {
	id      uint64
	key     requestKey
	req     *pb.QueryRequest
	done    chan struct{}     // closed when resp is set, or will not be set
	resp    *pb.QueryResponse // read after done; nil if the stream ended before the response
	callers int               // guarded by requestStream.mu
}

func newRequestStream() *requestStream {
	return &requestStream{out: newBatcher[*request](), unsent: map[requestKey]*request{},
		pending: map[uint64]*request{}}
}

// query sends req and waits for the response. If the response is late, query
// checks the health of the connection. A dead connection ends the stream, and
// query returns errNoStream.
func (s *requestStream) query(ctx context.Context, req *pb.QueryRequest,
	deadline time.Time) (*pb.QueryResponse, error) {
	r := s.add(req)
	if r == nil {
		return nil, errNoStream
	}
	wait := s.conn.lateAfter()
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
			remaining := deadline.Sub(now)
			if remaining <= 0 {
				s.leave(r)
				return nil, context.DeadlineExceeded
			}
			s.client.spawn(func() { s.client.check(s.conn) })
			wait = min(2*wait, wanfed.MaxProbeTimeout)
			late.Reset(min(wait, remaining))
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
	s.used.Store(true)
	key := requestKey{req.GetPath(), req.GetRawQuery(), req.GetCaller()}
	if r := s.unsent[key]; r != nil {
		r.callers++
		return r
	}
	s.lastID++
	r := &request{id: s.lastID, key: key, req: req, done: make(chan struct{}), callers: 1}
	s.unsent[key], s.pending[r.id] = r, r
	s.out.add(r)
	return r
}

// leave removes a caller that stopped waiting.
func (s *requestStream) leave(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.callers--; r.callers > 0 {
		return
	}
	delete(s.pending, r.id)
	s.endSharing(r)
}

// endSharing makes further identical requests use a request of their own. The
// caller holds s.mu.
func (s *requestStream) endSharing(r *request) {
	if s.unsent[r.key] == r {
		delete(s.unsent, r.key)
	}
}

func (s *requestStream) send(stream pb.ServerService_ExchangeClient, batch []*request) error {
	msg := &pb.Questions{All: make([]*pb.Question, 0, len(batch))}
	s.mu.Lock()
	for _, r := range batch {
		s.endSharing(r)
		if r.callers > 0 {
			msg.All = append(msg.All, &pb.Question{Id: r.id, Query: r.req})
		}
	}
	s.mu.Unlock()
	return stream.Send(msg)
}

func (s *requestStream) receive(responses []*pb.Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range responses {
		if r := s.pending[a.GetId()]; r != nil && a.GetAnswer() != nil {
			delete(s.pending, r.id)
			r.resp = a.GetAnswer()
			close(r.done)
		}
	}
}

// run opens the stream to dc. It sends requests and receives responses until
// the stream fails, or no request was made during streamIdleTimeout. It returns
// nil in the second case.
func (s *requestStream) run(c *Client, dc string) error {
	cc, err := c.conn(connKey{dc: dc})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(c.ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.close()
	defer cancel()
	defer context.AfterFunc(cc.retired, cancel)()
	stopChecks := c.checkIfLate(ctx, cc, 0)
	stream, err := pb.NewServerServiceClient(cc).Exchange(ctx)
	stopChecks()
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.open, s.client, s.conn = true, c, cc
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
	wg.Go(func() { ended <- s.out.run(ctx, func(batch []*request) error { return s.send(stream, batch) }) })
	idle := time.NewTicker(streamIdleTimeout)
	defer idle.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-idle.C:
			if !s.used.Swap(false) {
				return nil
			}
		}
	}
}

// close ends the stream and all requests without a response.
func (s *requestStream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = false
	for id, r := range s.pending {
		delete(s.pending, id)
		close(r.done)
	}
}
