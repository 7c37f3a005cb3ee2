// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wanfed/wanfed/api/pb"
)

// exchange is one stream of questions. Its goroutines are run's.
type exchange struct {
	wake   chan struct{} // size 1: the queue is not empty any more
	tested atomic.Bool   // now

	mu      sync.Mutex
	stream  pb.ServerService_ExchangeClient // nil: it is not open
	sending bool                            // somebody is: an asker, or run
	used    bool                            // since run looked last
	away    int                             // questions sent, less answers that came
	last    uint64                          // id given
	queue   []*pb.Question
	asked   map[uint64]chan *pb.QueryResponse // of size 1; closed when there will be no answer
	detours
}

// newExchange makes one. follow is called with the node of the leader when many ask another server for what must be fresh.
func newExchange(follow func(node string)) *exchange {
	return &exchange{wake: make(chan struct{}, 1), asked: map[uint64]chan *pb.QueryResponse{}, detours: detours{follow: follow}}
}

func (x *exchange) ready() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.stream != nil
}

// put queues a question, or sends it, if nothing else is on its way: then there is room, and it does not block. Without a channel it did
// neither.
func (x *exchange) put(req *pb.QueryRequest) (uint64, <-chan *pb.QueryResponse) {
	answer := make(chan *pb.QueryResponse, 1)
	x.mu.Lock()
	if x.stream == nil || len(x.asked) >= maxAsked || len(x.queue) >= maxAsked { // who asked may have gone, and the question is still there
		x.mu.Unlock()
		return 0, nil
	}
	x.last++
	id, stream := x.last, x.stream
	x.asked[id] = answer
	x.count(req)
	x.queue, x.used = append(x.queue, &pb.Question{Id: id, Query: req}), true
	first, alone := len(x.queue) == 1, x.away == 0
	x.mu.Unlock()
	switch {
	case first && alone:
		_ = x.send(stream) // run sees that the stream has ended, too
	case first:
		x.poke()
	}
	return id, answer
}

func (x *exchange) poke() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// send sends queued questions of one message, unless somebody is sending.
func (x *exchange) send(stream pb.ServerService_ExchangeClient) error {
	x.mu.Lock()
	n := min(len(x.queue), maxTogether)
	if n == 0 || x.sending {
		x.mu.Unlock()
		return nil
	}
	x.sending, x.away = true, x.away+n
	all := x.queue[:n:n]
	x.queue = x.queue[n:]
	x.mu.Unlock()
	err := stream.Send(&pb.Questions{All: all})
	x.mu.Lock()
	x.sending = false
	more := len(x.queue) > 0
	x.mu.Unlock()
	if more {
		x.poke()
	}
	return err
}

func (x *exchange) forget(id uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.asked, id)
}

// give hands out answers. Those of questions that were given up are dropped.
func (x *exchange) give(all []*pb.Answer) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.away -= len(all)
	for _, a := range all {
		if answer, ok := x.asked[a.GetId()]; ok && a.GetAnswer() != nil {
			delete(x.asked, a.GetId())
			answer <- a.GetAnswer() // has room: it is the one answer
		}
	}
}

// open lets questions be put.
func (x *exchange) open(stream pb.ServerService_ExchangeClient) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stream = stream
}

// close ends what is asked.
func (x *exchange) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stream = nil
	for id, answer := range x.asked {
		delete(x.asked, id)
		close(answer)
	}
}

// run opens the stream, sends questions and hands out answers until nobody has asked for a while (nil), or it ends.
func (x *exchange) run(ctx context.Context, open func(ctx context.Context) (pb.ServerService_ExchangeClient, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer x.close()
	defer cancel()
	stream, err := open(ctx)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	wg.Go(func() {
		for {
			answers, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			x.give(answers.GetAll())
			x.leads(answers.GetLeader())
		}
	})
	x.open(stream)
	idle := time.NewTimer(exchangeIdle)
	defer idle.Stop()
	for {
		select {
		case <-x.wake:
		case err := <-ended:
			return err
		case <-idle.C:
			if !x.wasUsed() {
				return nil
			}
			idle.Reset(exchangeIdle)
			continue
		}
		runtime.Gosched() // those who are about to ask share the message
		if err := x.send(stream); err != nil {
			return err
		}
	}
}

// wasUsed says whether anybody has asked since it was called last.
func (x *exchange) wasUsed() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	used := x.used
	x.used = false
	return used
}
