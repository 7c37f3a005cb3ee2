// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"net/http"
	"runtime"
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
	a := &answers{ctx: ctx, end: cancel, query: s.query, leader: s.leader, to: stream, questions: make(chan *pb.Question), slots: make(chan struct{}, maxAsked)}
	defer a.workers.Wait()
	defer cancel()
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
	end       context.CancelFunc // of ctx
	query     func(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error)
	leader    func() string
	to        pb.ServerService_ExchangeServer
	workers   sync.WaitGroup
	questions chan *pb.Question // to workers that wait
	slots     chan struct{}     // one for each question until its answer was sent: size maxAsked

	mu      sync.Mutex
	queue   []*pb.Answer
	sending bool // a worker is: it sends what comes meanwhile, too
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
		if a.put(&pb.Answer{Id: q.GetId(), Answer: resp}) != nil {
			return // the stream has ended
		}
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

// put sends an answer, unless another worker is sending, which then sends this one.
func (a *answers) put(answer *pb.Answer) error {
	a.mu.Lock()
	a.queue = append(a.queue, answer)
	mine := !a.sending
	a.sending = true
	a.mu.Unlock()
	if !mine {
		return nil
	}
	if len(a.slots) > 1 {
		runtime.Gosched() // answers that are about to come share the message
	}
	for all := a.take(); len(all) > 0; all = a.take() {
		if err := a.to.Send(&pb.Answers{All: all, Leader: a.leader()}); err != nil {
			a.end() // nobody else will send
			return err
		}
		for range all {
			<-a.slots
		}
	}
	return nil
}

// take returns answers that go together. When there are none, nobody is sending any more.
func (a *answers) take() []*pb.Answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sending = len(a.queue) > 0
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
