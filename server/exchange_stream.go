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

// gatherFor is how long a question waits at most for others, to go with it, while many are away.
const gatherFor = 500 * time.Microsecond

// gatherFrom is how many are away when the next ones gather although nothing is shared: a message costs both ends and the gateways between
// them as much as the answers of several questions, and a round to the leader's followers does for all of it.
const gatherFrom = 8

// exchange is one stream of questions. Its goroutines are run's.
//
// Those who ask the same before it was sent share the question. While that happens, or gatherFrom are away, the next ones gather: as many
// again as half of those go together. So what is asked by many at once costs few messages, and the same few answers. What is asked by few,
// each something else, is sent at once.
type exchange struct {
	wake   chan struct{} // size 1: the queue is not empty any more, or long enough to be sent
	tested atomic.Bool   // now

	mu      sync.Mutex
	stream  pb.ServerService_ExchangeClient // nil: it is not open
	sending bool                            // somebody is: an asker, or run
	used    bool                            // since run looked last
	away    int                             // askers of questions sent, less those of answers that came
	waiting int                             // askers of the queue
	shares  bool                            // some of the last message, of those with several askers, shared a question
	last    uint64                          // id given
	queue   []*pb.Question
	same    map[question]*asking // of the queue: those that can be shared
	asked   map[uint64]*asking   // without an answer, and with somebody who waits for one
	detours
}

// question is what those who share one ask.
type question struct{ path, query string }

// asking is a question that one or more wait for the answer of.
type asking struct {
	id      uint64
	done    chan struct{}     // closed when there is an answer, or will be none
	answer  *pb.QueryResponse // nil: there will be none. Read after done, and never changed
	askers  int               // who wait; guarded by exchange.mu, as is sent
	sent    int               // who waited when it was sent
	shareAs question
}

func newExchange() *exchange {
	return &exchange{wake: make(chan struct{}, 1), same: map[question]*asking{}, asked: map[uint64]*asking{}}
}

func (x *exchange) ready() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.stream != nil
}

// put queues a question, or sends it, if nothing else is on its way: then there is room, and it does not block. It returns nil if it did
// neither.
func (x *exchange) put(req *pb.QueryRequest) *asking {
	x.mu.Lock()
	if x.stream == nil || len(x.asked) >= maxAsked || len(x.queue) >= maxAsked { // who asked may have gone, and the question is still there
		x.mu.Unlock()
		return nil
	}
	x.count(req)
	x.used = true
	x.waiting++
	stream, alone := x.stream, x.away == 0
	a := x.addLocked(req)
	first, enough := x.waiting == 1, x.enoughLocked()
	x.mu.Unlock()
	switch {
	case first && alone:
		_ = x.send(stream) // run sees that the stream has ended, too
	case first, enough:
		x.poke()
	}
	return a
}

// addLocked adds one who asks to the queue.
func (x *exchange) addLocked(req *pb.QueryRequest) *asking {
	key := question{req.GetPath(), req.GetRawQuery()}
	if a := x.same[key]; a != nil && req.GetMethod() == "" {
		a.askers++
		return a
	}
	x.last++
	a := &asking{id: x.last, done: make(chan struct{}), askers: 1, shareAs: key}
	x.asked[a.id] = a
	x.queue = append(x.queue, &pb.Question{Id: a.id, Query: req})
	if req.GetMethod() == "" {
		x.same[key] = a
	}
	return a
}

// enoughLocked says whether so many wait that they should be sent.
func (x *exchange) enoughLocked() bool {
	return !x.shares && x.away < gatherFrom || 2*x.waiting >= x.away || len(x.queue) >= maxTogether
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
	x.sending = true
	all := x.queue[:n:n]
	x.queue = x.queue[n:]
	before := x.waiting
	for _, q := range all {
		x.leaveQueueLocked(x.asked[q.GetId()])
	}
	if askers := before - x.waiting; askers > 1 {
		x.shares = askers > n
	}
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

// leaveQueueLocked is called for a question that is sent. It is nil if nobody waits for it any more.
func (x *exchange) leaveQueueLocked(a *asking) {
	if a == nil {
		return
	}
	if x.same[a.shareAs] == a {
		delete(x.same, a.shareAs)
	}
	a.sent = a.askers
	x.waiting -= a.askers
	x.away += a.askers
}

// forget is for one who waits no longer.
func (x *exchange) forget(a *asking) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.asked[a.id] != a { // it was answered meanwhile
		return
	}
	queued := a.sent == 0
	if queued {
		x.waiting--
	}
	if a.askers--; a.askers > 0 {
		return
	}
	delete(x.asked, a.id)
	if x.away -= a.sent; queued && x.same[a.shareAs] == a {
		delete(x.same, a.shareAs)
	}
}

// give hands out answers. Those of questions that were given up are dropped.
func (x *exchange) give(all []*pb.Answer) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, got := range all {
		if a := x.asked[got.GetId()]; a != nil && a.sent > 0 && got.GetAnswer() != nil {
			delete(x.asked, a.id)
			x.away -= a.sent
			a.answer = got.GetAnswer()
			close(a.done)
		}
	}
	if x.waiting > 0 && x.enoughLocked() {
		x.poke()
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
	for id, a := range x.asked {
		delete(x.asked, id)
		close(a.done)
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
	idle, gather := time.NewTimer(exchangeIdle), time.NewTimer(gatherFor)
	defer idle.Stop()
	defer gather.Stop()
	for {
		select {
		case <-x.wake:
			if !x.enough() {
				gather.Reset(gatherFor)
				continue
			}
		case <-gather.C:
		case err := <-ended:
			return err
		case <-idle.C:
			if !x.wasUsed() {
				return nil
			}
			idle.Reset(exchangeIdle)
			continue
		}
		gather.Stop()
		runtime.Gosched() // those who are about to ask share the message
		if err := x.send(stream); err != nil {
			return err
		}
	}
}

func (x *exchange) enough() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.enoughLocked()
}

// wasUsed says whether anybody has asked since it was called last.
func (x *exchange) wasUsed() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	used := x.used
	x.used = false
	return used
}
