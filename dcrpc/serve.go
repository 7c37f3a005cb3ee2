// SPDX-License-Identifier: MPL-2.0

package dcrpc

import (
	"context"
	"net/http"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
)

// maxBatchBytes is the number of response bytes after which the next message
// begins.
const maxBatchBytes = 256 << 10

// Handler returns the response to a read. It fails only if ctx ends. release
// may be nil. It is called when the response was sent, or will not be sent.
type Handler func(ctx context.Context, req *pb.QueryRequest) (resp *pb.QueryResponse, release func(), err error)

// ServeRequests serves a request stream that a Client of another datacenter has
// opened, until the stream ends. Each request has its own goroutine. A request
// is pending until its response was sent. While maxPending requests are
// pending, ServeRequests reads no further request from the stream.
func ServeRequests(stream pb.ServerService_ExchangeServer, handler Handler) error {
	ctx, cancel := context.WithCancel(stream.Context())
	s := &responder{out: newBatcher[*response](), slots: make(chan struct{}, maxPending), handler: handler}
	defer s.releaseUnsent()
	defer s.running.Wait()
	defer cancel()
	requests, ended := make(chan []*pb.Question), make(chan error, 2)
	go func() { ended <- receiveRequests(ctx, stream, requests) }() // not joined: Recv ends after ServeRequests returns
	s.running.Go(func() { ended <- s.out.run(ctx, func(batch []*response) error { return s.send(stream, batch) }) })
	for {
		select {
		case batch := <-requests:
			for _, q := range batch {
				if err := s.start(ctx, q); err != nil {
					return err
				}
			}
		case err := <-ended:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func receiveRequests(ctx context.Context, stream pb.ServerService_ExchangeServer,
	requests chan<- []*pb.Question) error {
	for {
		msg, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, q := range msg.GetAll() {
			if m := q.GetQuery().GetMethod(); m != "" && m != http.MethodGet {
				return status.Errorf(codes.InvalidArgument, "method %.20q: a request stream accepts only GET", m)
			}
		}
		select {
		case requests <- msg.GetAll():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// responder serves the requests of one stream.
type responder struct {
	out     *batcher[*response]
	slots   chan struct{} // one for each request until its response was sent
	handler Handler
	running sync.WaitGroup
}

type response struct {
	*pb.Answer
	release func()
}

// start waits for a slot and then serves q in a goroutine.
func (s *responder) start(ctx context.Context, q *pb.Question) error {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.running.Go(func() {
		resp, release, err := s.handler(ctx, q.GetQuery())
		if err == nil { // otherwise the stream has ended
			s.out.add(&response{&pb.Answer{Id: q.GetId(), Answer: resp}, release})
		}
	})
	return nil
}

// send sends responses in messages of about maxBatchBytes or less. A larger
// response has its own message.
func (s *responder) send(stream pb.ServerService_ExchangeServer, batch []*response) (err error) {
	for len(batch) > 0 {
		msg, size := &pb.Answers{}, 0
		for _, r := range batch {
			if size += len(r.GetAnswer().GetBody()); len(msg.All) > 0 && size > maxBatchBytes {
				break
			}
			msg.All = append(msg.All, r.Answer)
		}
		if err == nil {
			err = stream.Send(msg)
		}
		s.done(batch[:len(msg.All)])
		batch = batch[len(msg.All):]
	}
	return err
}

// done releases the slots of responses that were sent or will not be sent.
func (s *responder) done(batch []*response) {
	for _, r := range batch {
		if r.release != nil {
			r.release()
		}
		<-s.slots
	}
}

func (s *responder) releaseUnsent() {
	for batch := s.out.take(); len(batch) > 0; batch = s.out.take() {
		s.done(batch)
	}
}
