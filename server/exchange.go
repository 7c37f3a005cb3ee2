// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/wanfed"
)

const (
	// exchangeIdle is how long the stream to another datacenter stays open without a question.
	exchangeIdle = 10 * time.Second
	// exchangeRest is how long nobody opens a stream after one that failed.
	exchangeRest = time.Second
	// maxAsked bounds the questions of one stream without an answer, those that were not sent yet, and the answers not sent yet.
	maxAsked = 1024
	// maxTogether bounds the questions, or answers, of one message, and together that many bytes of answers begin the next one.
	maxTogether = 64
	together    = 256 << 10
)

// errNotAsked: a question did not go over a stream, or the stream ended before its answer. It is asked as a call of its own then.
var errNotAsked = errors.New("no stream for questions")

// exchanges asks other datacenters, over one stream each, what is read: a call of its own for each would cost more than the
// answer. They are opened when there are questions, by Run's goroutines, and closed when there are none.
type exchanges struct {
	exchangeConfig

	mu      sync.Mutex
	ctx     context.Context // of Run; nil while it does not run
	running sync.WaitGroup
	byDC    map[string]*exchange
	rest    map[string]time.Time // no stream is opened before
	settle  map[string]time.Time // no connection is moved before
}

// exchangeConfig is what exchanges need of connections.
type exchangeConfig struct {
	// open opens a stream to any server of a datacenter. It ends when its connection is given up.
	open func(ctx context.Context, dc string) (pb.ServerService_ExchangeClient, error)
	// due is how long an answer of a datacenter takes at least, when nothing is wrong.
	due func(dc string) time.Duration
	// test tests the connection to a datacenter, while another one is opened, and gives it up when it is dead. It returns when ctx ends.
	test func(ctx context.Context, dc string)
	// moveTo moves the connection to a datacenter to a certain server, if it can be had. It does not block.
	moveTo func(dc, node string)
}

func newExchanges(cfg exchangeConfig) *exchanges {
	return &exchanges{exchangeConfig: cfg, byDC: map[string]*exchange{}, rest: map[string]time.Time{}, settle: map[string]time.Time{}}
}

// Run lets streams be opened until ctx ends, and returns when all are closed.
func (e *exchanges) Run(ctx context.Context) error {
	e.mu.Lock()
	e.ctx = ctx
	e.mu.Unlock()
	<-ctx.Done()
	e.mu.Lock()
	e.ctx = nil
	e.mu.Unlock()
	e.running.Wait()
	return nil
}

// ask returns the answer of a server of dc, errNotAsked, the error of ctx, or, after the deadline, context.DeadlineExceeded. While there is
// none in time, the connection is tested: a dead one ends the stream, and so the question, and one that is alive is waited for.
//
// The deadline is not that of ctx, since a context with one costs more than all else here.
func (e *exchanges) ask(ctx context.Context, dc string, req *pb.QueryRequest, deadline time.Time) (*pb.QueryResponse, error) {
	x := e.to(dc)
	if x == nil {
		return nil, errNotAsked
	}
	a := x.put(req)
	if a == nil {
		return nil, errNotAsked
	}
	due := e.due(dc)
	late := time.NewTimer(min(due, time.Until(deadline)))
	defer late.Stop()
	for {
		select {
		case <-a.done:
			if a.answer == nil {
				return nil, errNotAsked
			}
			return a.answer, nil
		case now := <-late.C:
			left := deadline.Sub(now)
			if left <= 0 {
				x.forget(a)
				return nil, context.DeadlineExceeded
			}
			e.doubt(dc, x)
			due = min(2*due, wanfed.MaxProbeTimeout)
			late.Reset(min(due, left))
		case <-ctx.Done():
			x.forget(a)
			return nil, ctx.Err()
		}
	}
}

// doubt tests the connection to a datacenter, unless it is being tested for x.
func (e *exchanges) doubt(dc string, x *exchange) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx == nil || e.ctx.Err() != nil || e.byDC[dc] != x || !x.tested.CompareAndSwap(false, true) {
		return
	}
	ctx := e.ctx
	e.running.Go(func() {
		e.test(ctx, dc)
		x.tested.Store(false)
	})
}

// to returns the stream to a datacenter, nil if there is none yet: then one is being opened.
func (e *exchanges) to(dc string) *exchange {
	e.mu.Lock()
	defer e.mu.Unlock()
	if x := e.byDC[dc]; x != nil {
		if x.ready() {
			return x
		}
		return nil
	}
	if e.ctx == nil || e.ctx.Err() != nil || time.Now().Before(e.rest[dc]) {
		return nil
	}
	x := newExchange()
	x.follow = func(node string) { e.follow(dc, x, node) }
	e.byDC[dc] = x
	ctx := e.ctx
	e.running.Go(func() {
		err := x.run(ctx, func(ctx context.Context) (pb.ServerService_ExchangeClient, error) { return e.open(ctx, dc) })
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.byDC, dc)
		if err != nil && !x.moves {
			e.rest[dc] = time.Now().Add(exchangeRest)
		}
	})
	return nil
}
