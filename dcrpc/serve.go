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

// AnswerFunc returns the response to a read. It fails only if ctx ends. The
// function release may be nil. It is called when the response was sent, or when
// the response will not be sent.
type AnswerFunc func(ctx context.Context, req *pb.QueryRequest) (resp *pb.QueryResponse, release func(), err error)

// ServeRequests serves a request stream that a Client of another datacenter has
// opened, until the stream ends. Each request has its own goroutine. At most
// maxPending requests have no response or an unsent response. Further requests
// wait in the connection.
func ServeRequests(stream pb.ServerService_ExchangeServer, answer AnswerFunc) error {
	ctx, cancel := context.WithCancel(stream.Context())
	s := &responder{out: newBatcher[*response](), slots: make(chan struct{}, maxPending), answer: answer}
	defer s.releaseUnsent()
	defer s.running.Wait()
	defer cancel()
	requests, ended := make(chan []*pb.Question), make(chan error, 2)
	go func() { ended <- receiveRequests(ctx, stream, requests) }() // Recv ends with the stream, so after this function
	s.running.Go(func() { ended <- s.out.run(ctx, func(all []*response) error { return s.send(stream, all) }) })
	for {
		select {
		case all := <-requests:
			for _, q := range all {
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

func receiveRequests(ctx context.Context, stream pb.ServerService_ExchangeServer, requests chan<- []*pb.Question) error {
	for {
		msg, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, q := range msg.GetAll() {
			if m := q.GetQuery().GetMethod(); m != "" && m != http.MethodGet {
				return status.Errorf(codes.InvalidArgument, "method %.20q: a request stream carries GET alone", m)
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
	answer  AnswerFunc
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
		resp, release, err := s.answer(ctx, q.GetQuery())
		if err == nil {
			s.out.add(&response{&pb.Answer{Id: q.GetId(), Answer: resp}, release})
		} // else the stream has ended
	})
	return nil
}

// send sends responses in messages of at most about maxBatchBytes.
func (s *responder) send(stream pb.ServerService_ExchangeServer, all []*response) (err error) {
	for len(all) > 0 {
		msg, size := &pb.Answers{}, 0
		for _, r := range all {
			if size += len(r.GetAnswer().GetBody()); len(msg.All) > 0 && size > maxBatchBytes {
				break
			}
			msg.All = append(msg.All, r.Answer)
		}
		sent := all[:len(msg.All)]
		all = all[len(msg.All):]
		if err == nil {
			err = stream.Send(msg)
		}
		s.done(sent)
	}
	return err
}

func (s *responder) done(all []*response) {
	for _, r := range all {
		if r.release != nil {
			r.release()
		}
		<-s.slots
	}
}

func (s *responder) releaseUnsent() {
	for all := s.out.take(); len(all) > 0; all = s.out.take() {
		s.done(all)
	}
}
