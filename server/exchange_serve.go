// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server/limit"
	"github.com/wanfed/wanfed/server/rpc"
	"github.com/wanfed/wanfed/tlsutil"
)

const (
	// workerIdle is how long a goroutine that answers questions waits for the next ones.
	workerIdle = 5 * time.Second
	// answerSlow is how long the questions of one message wait for each other's answers. Then each is answered by itself.
	answerSlow = 5 * time.Millisecond
)

// Exchange answers questions until the asker goes, or the server stops. Up to maxAsked are answered, or have an answer that is not
// sent yet; more wait in the connection. So one who asks and does not read costs no more than that.
func (s *serverService) Exchange(stream pb.ServerService_ExchangeServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	a := &answers{ctx: ctx, end: cancel, query: s.ask, responses: s.responses, caller: callerOf(stream.Context()), leader: s.leader, to: stream, batches: make(chan *batch), slots: make(chan struct{}, maxAsked)}
	defer a.close()
	ended := make(chan error, 1)
	go func() { ended <- a.receive(stream) }() // it ends with the stream, which the end of this function ends
	select {
	case err := <-ended:
		return err
	case <-ctx.Done(): // Recv would wait on
		return ctx.Err()
	}
}

// close returns when nothing is answered any more.
func (a *answers) close() {
	a.end()
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.workers.Wait()
	for answer := range a.large {
		a.large[answer].Release()
	}
}

// receive has questions answered until the stream ends, or asks what it must not.
func (a *answers) receive(stream pb.ServerService_ExchangeServer) error {
	for {
		questions, err := stream.Recv()
		if err != nil {
			return err // io.EOF is a good end, but askers end by leaving
		}
		for _, q := range questions.GetAll() {
			if m := q.GetQuery().GetMethod(); m != "" && m != http.MethodGet {
				return status.Errorf(codes.InvalidArgument, "method %.20q in an exchange: only GET may be asked", m)
			}
		}
		for all := range slices.Chunk(questions.GetAll(), maxTogether) {
			if err := a.answer(all); err != nil {
				return err
			}
		}
	}
}

// answers are those of one stream.
type answers struct {
	ctx       context.Context
	end       context.CancelFunc // of ctx
	query     func(ctx context.Context, turn *limit.Slot, req *pb.QueryRequest) (*pb.QueryResponse, error)
	responses *limit.PerPeer
	caller    tlsutil.Peer
	leader    func() string
	to        pb.ServerService_ExchangeServer
	workers   sync.WaitGroup
	batches   chan *batch   // to workers that wait
	slots     chan struct{} // one for each question until its answer was sent: size maxAsked

	mu      sync.Mutex
	queue   []*pb.Answer
	large   map[*pb.Answer]*limit.Slot // of those in the queue, or being sent
	sending bool                       // a worker is: it sends what comes meanwhile, too
	closed  bool                       // no more workers
}

// batch is questions that came together. One goroutine answers them in turn, since handing each to one of its own costs more than most
// answers, and what one of them has learned from the leader does for all.
type batch struct {
	ctx  context.Context
	mu   sync.Mutex
	left []*pb.Question // which nobody has begun to answer
}

// take returns a question that nobody has begun to answer, nil if there is none.
func (b *batch) take() *pb.Question {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.left) == 0 {
		return nil
	}
	q := b.left[0]
	b.left = b.left[1:]
	return q
}

// answer has a worker that waits, or a new one, answer questions. It blocks while there are too many.
func (a *answers) answer(all []*pb.Question) error {
	for range all {
		select {
		case a.slots <- struct{}{}:
		case <-a.ctx.Done():
			return a.ctx.Err()
		}
	}
	b := &batch{ctx: resource.Together(a.ctx), left: all}
	select {
	case a.batches <- b:
		return nil
	default:
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return a.ctx.Err()
	}
	a.workers.Go(func() { a.work(b) })
	return nil
}

// work answers b and what comes then, until nothing does. A goroutine that has answered before has the stack for it.
func (a *answers) work(b *batch) {
	idle := time.NewTimer(workerIdle)
	defer idle.Stop()
	for a.all(b) == nil {
		idle.Reset(workerIdle)
		select {
		case b = <-a.batches:
		case <-idle.C:
			return
		case <-a.ctx.Done():
			return
		}
	}
}

// all answers b, and sends the answers together, unless one of them is slow. An error ends all.
func (a *answers) all(b *batch) error {
	a.workers.Add(1) // for what slow starts
	slow := time.AfterFunc(answerSlow, func() {
		defer a.workers.Done()
		a.split(b)
	})
	defer func() {
		if slow.Stop() {
			a.workers.Done()
		}
	}()
	for q := b.take(); q != nil; q = b.take() {
		if err := a.one(b, q); err != nil {
			return err
		}
	}
	return a.send()
}

// one queues the answer to a question.
func (a *answers) one(b *batch, q *pb.Question) error {
	turn, err := a.turn()
	if err != nil {
		return err
	}
	resp, err := a.query(b.ctx, turn, q.GetQuery())
	if err != nil { // that of the context
		turn.Release()
		return err
	}
	answer := &pb.Answer{Id: q.GetId(), Answer: resp}
	a.mu.Lock()
	a.queue = append(a.queue, answer)
	if len(resp.GetBody()) > 8<<10 {
		if a.large == nil {
			a.large = map[*pb.Answer]*limit.Slot{}
		}
		a.large[answer], turn = turn, nil
	}
	a.mu.Unlock()
	if turn != nil {
		turn.Release()
	}
	return nil
}

// turn waits for one. What is queued is sent first: it may be what has them all.
func (a *answers) turn() (*limit.Slot, error) {
	if a.responses == nil {
		return nil, nil
	}
	if turn := a.responses.TryAcquire(a.caller); turn != nil {
		return turn, nil
	}
	if err := a.send(); err != nil {
		return nil, err
	}
	return a.responses.Acquire(a.ctx, a.caller)
}

// sent ends the turns of answers that were sent.
func (a *answers) sent(all []*pb.Answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, answer := range all {
		if turn := a.large[answer]; turn != nil {
			turn.Release()
			delete(a.large, answer)
		}
	}
}

// split gives each question that is left a goroutine, and sends the answers that are there.
func (a *answers) split(b *batch) {
	for q := b.take(); q != nil; q = b.take() {
		a.workers.Go(func() {
			if a.one(b, q) == nil {
				_ = a.send() // else all ends
			}
		})
	}
	_ = a.send()
}

// send sends queued answers, unless another worker is sending, which then sends these, too.
func (a *answers) send() error {
	a.mu.Lock()
	mine := !a.sending && len(a.queue) > 0
	a.sending = a.sending || mine
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
		a.sent(all)
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

func callerOf(ctx context.Context) tlsutil.Peer {
	p, _ := rpc.Peer(ctx)
	return p
}

// ask answers a query in its turn, which the caller ends.
func (s *serverService) ask(ctx context.Context, turn *limit.Slot, req *pb.QueryRequest) (*pb.QueryResponse, error) {
	return s.query(limit.NewContext(ctx, turn), req)
}
