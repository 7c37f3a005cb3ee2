// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/wanfed"
)

const (
	// drainGrace is how long calls under way on a doubted connection may still be answered.
	drainGrace = 30 * time.Second
	// maxAsks bounds the calls made for one.
	maxAsks = 3
	// testAfter is after how many eighths of the patience, which is two round trips, a call without an answer makes its connection be
	// tested, which takes the whole patience: an answer that takes no time to make has come by then.
	testAfter = 5
)

var errSilentPath = errors.New("no answer on an open connection")

// far calls any server of another datacenter. Its calls may be made twice, so only calls for which that makes no difference
// may go through it: all that cross datacenters are such.
//
// A connection that is slow to answer is tested with a small call of its own. When that is not answered either, the path is
// held to be dead, long before TCP or a keepalive finds out: the next calls dial another hop, and so does this call, at
// once, while it still takes a late answer from the old one. An answer that merely takes long, as to a blocking query,
// costs one test and nothing else. The questions of an exchange are another matter (test): nothing about them takes long.
type far struct {
	c  *conns
	dc string
}

func (c *conns) far(dc string) grpc.ClientConnInterface { return far{c, dc} }

// Invoke implements grpc.ClientConnInterface. It returns when ctx ends.
func (f far) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	answer := reply.(proto.Message)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel() // ends the call that lost
	type result struct {
		got proto.Message
		err error
	}
	results := make(chan result, maxAsks) // one for each call: none of them blocks
	dead := make(chan struct{}, maxAsks)  // one for each test
	running, asked := 0, 0
	ask := func() error {
		cc, err := f.c.to(f.dc, "")
		if err != nil {
			return err
		}
		running, asked = running+1, asked+1
		wg.Go(func() {
			got := answer.ProtoReflect().New().Interface()
			err := cc.Invoke(ctx, method, args, got, opts...)
			results <- result{got, err}
		})
		wg.Go(func() {
			if f.c.testDead(ctx, cc) {
				dead <- struct{}{}
			}
		})
		return nil
	}
	if err := ask(); err != nil {
		return err
	}
	for {
		again := true
		select {
		case r := <-results:
			running--
			if r.err == nil {
				proto.Merge(answer, r.got)
				return nil
			}
			// Cancelled, but not by us: the connection was given up for what is past. Unavailable: it may have broken
			// under the call, with the gateway that it went through, and the next one holds.
			code := status.Code(r.err)
			again = ctx.Err() == nil && (code == codes.Canceled && asked < maxAsks || code == codes.Unavailable && asked == 1)
			if !again && running == 0 {
				return r.err
			}
		case <-dead:
		}
		if again && asked < maxAsks {
			if err := ask(); err != nil && running == 0 {
				return err
			}
		}
	}
}

// NewStream implements grpc.ClientConnInterface. The stream ends with codes.Canceled when its path is found to be dead: at its
// beginning, or by any call later.
func (f far) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	cc, err := f.c.to(f.dc, "")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	unhook := context.AfterFunc(cc.life, cancel)
	context.AfterFunc(ctx, func() { unhook() })
	stream, err := cc.NewStream(ctx, desc, method, opts...)
	if err != nil {
		cancel()
		return nil, err
	}
	go f.c.testDead(ctx, cc) // ends with the stream's context, or when it knows
	return stream, nil
}

// testDead waits for as long as an answer needs at least, then tests the connection, and gives it up when it is dead. One that is
// still being dialed it only follows: when others give that up, the dialing has gone on elsewhere. It returns when ctx ends.
func (c *conns) testDead(ctx context.Context, cc *conn) bool {
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(cc.life, cancel)() // another call found out
	for {
		timer := time.NewTimer(leastWait(cc))
		select {
		case <-timer.C:
		case <-wctx.Done():
			timer.Stop()
			return ctx.Err() == nil
		}
		state := cc.GetState()
		if state == connectivity.Ready {
			return c.testNow(ctx, cc)
		}
		if !cc.WaitForStateChange(wctx, state) {
			return ctx.Err() == nil
		}
	}
}

// testNow is testDead at once.
func (c *conns) testNow(ctx context.Context, cc *conn) bool {
	t := cc.over.Load()
	if t == nil || cc.GetState() != connectivity.Ready {
		return false // it is dialing: the dialer finds another hop by itself
	}
	tctx, cancel := context.WithTimeout(ctx, patience(cc))
	defer cancel()
	defer context.AfterFunc(cc.life, cancel)()
	_, err := healthpb.NewHealthClient(cc).Check(tctx, &healthpb.HealthCheckRequest{})
	if cc.life.Err() != nil {
		return true
	}
	if ctx.Err() != nil || status.Code(err) != codes.DeadlineExceeded {
		return false
	}
	t.MarkDead(errSilentPath)
	c.giveUp(cc, drainGrace)
	return true
}

// test is testNow of the connection to any server of dc, if there is one, because an answer is late that takes no time to make. So
// another way is opened meanwhile.
func (c *conns) test(ctx context.Context, dc string) {
	cc, err := c.to(dc, "")
	if err != nil {
		return
	}
	if t := cc.over.Load(); t != nil {
		settle := t.OpenStandby()
		settle(!c.testNow(ctx, cc))
	}
}

// due is how long an answer from dc takes at least.
func (c *conns) due(dc string) time.Duration {
	cc, err := c.to(dc, "")
	if err != nil {
		return wanfed.MaxProbeTimeout
	}
	return leastWait(cc)
}

func leastWait(cc *conn) time.Duration { return patience(cc) * testAfter / 8 }

// patience is how long a test may take.
func patience(cc *conn) time.Duration {
	if t := cc.over.Load(); t != nil {
		return t.ProbeTimeout()
	}
	return wanfed.MaxProbeTimeout // it is dialed yet
}
