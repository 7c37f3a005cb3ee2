// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
)

// workerIdle is how long a goroutine that answers questions waits for the next one.
const workerIdle = 5 * time.Second

// Exchange answers questions until the asker goes, or the server stops. Up to maxAsked are answered, or have an answer that is not
// sent yet; more wait in the connection. So one who asks and does not read costs no more than that.
func (s *serverService) Exchange(stream pb.ServerService_ExchangeServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	a := &answers{ctx: ctx, query: s.query, questions: make(chan *pb.Question), wake: make(chan struct{}, 1), slots: make(chan struct{}, maxAsked)}
	defer a.workers.Wait()
	defer cancel()
	a.workers.Go(func() {
		if a.send(stream) != nil {
			cancel()
		}
	})
	for {
		questions, err := stream.Recv()
		if err != nil {
			return err // io.EOF is a good end, but askers end by leaving
		}
		for _, q := range questions.GetAll() {
			if m := q.GetQuery().GetMethod(); m != "" && m != http.MethodGet {
				return status.Errorf(codes.InvalidArgument, "method %.20q in an exchange: only GET may be asked", m)
			}
			if err := a.answer(q); err != nil {
				return err
			}
		}
	}
}

// answers are those of one stream.
type answers struct {
	ctx       context.Context
	query     func(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error)
	workers   sync.WaitGroup
	questions chan *pb.Question // to workers that wait
	slots     chan struct{}     // one for each question until its answer was sent: size maxAsked
	wake      chan struct{}     // size 1: the queue is not empty any more

	mu    sync.Mutex
	queue []*pb.Answer
}

// answer has a worker that waits, or a new one, answer a question. It blocks while there are too many.
func (a *answers) answer(q *pb.Question) error {
	select {
	case a.slots <- struct{}{}:
	case <-a.ctx.Done():
		return a.ctx.Err()
	}
	select {
	case a.questions <- q:
	default:
		a.workers.Go(func() { a.work(q) })
	}
	return nil
}

// work answers q and what comes then, until nothing does. A goroutine that has answered before has the stack for it.
func (a *answers) work(q *pb.Question) {
	idle := time.NewTimer(workerIdle)
	defer idle.Stop()
	for {
		resp, err := a.query(a.ctx, q.GetQuery())
		if err != nil { // that of the context: all ends
			return
		}
		a.put(&pb.Answer{Id: q.GetId(), Answer: resp})
		idle.Reset(workerIdle)
		select {
		case q = <-a.questions:
		case <-idle.C:
			return
		case <-a.ctx.Done():
			return
		}
	}
}

func (a *answers) put(answer *pb.Answer) {
	a.mu.Lock()
	a.queue = append(a.queue, answer)
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// take returns answers that go together.
func (a *answers) take() []*pb.Answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	n, size := 0, 0
	for n < len(a.queue) && n < maxTogether {
		if size += len(a.queue[n].GetAnswer().GetBody()); n > 0 && size > together {
			break
		}
		n++
	}
	all := a.queue[:n:n]
	a.queue = a.queue[n:]
	return all
}

func (a *answers) send(stream pb.ServerService_ExchangeServer) error {
	for {
		select {
		case <-a.wake:
		case <-a.ctx.Done():
			return nil
		}
		for all := a.take(); len(all) > 0; all = a.take() {
			if err := stream.Send(&pb.Answers{All: all}); err != nil {
				return err
			}
			for range all {
				<-a.slots
			}
		}
	}
}
