// SPDX-License-Identifier: MPL-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// batchInterval is the minimum time between the starts of two calls with
// batched renewals. It bounds the calls per second of a process, and delays a
// renewal at most this long.
const batchInterval = 100 * time.Millisecond

// renewer is the call that a batcher makes.
type renewer interface {
	Renew(ctx context.Context, req *pb.RenewLeasesRequest, opts ...grpc.CallOption) (*pb.RenewLeasesResponse, error)
}

// batcher merges renewals into calls. A renewal is sent at once if no call has
// begun within batchInterval.
type batcher struct {
	leases renewer

	mu   sync.Mutex
	next *batch    // has not begun; nil: no renewal waits
	last time.Time // when the last batch begins or has begun
}

// batch is the content of one call.
type batch struct {
	ctx     context.Context // ends when no caller waits for the response
	cancel  context.CancelFunc
	done    chan struct{} // closed when lost and err are set
	lost    map[int]bool  // positions in the call
	err     error
	waiting int // guarded by batcher.mu

	renewals []*pb.RenewLeasesRequest_Renewal // guarded by batcher.mu until the batch begins
}

// renew sends valid renewals, and returns the positions of those whose lease is
// lost.
func (b *batcher) renew(ctx context.Context, renewals []*pb.RenewLeasesRequest_Renewal) (lost []uint32, err error) {
	b.mu.Lock()
	c := b.next
	if c == nil || len(c.renewals)+len(renewals) > maxRenewals {
		c = &batch{done: make(chan struct{})}
		c.ctx, c.cancel = context.WithTimeout(context.Background(), callTimeout)
		now := time.Now()
		begin := b.last.Add(batchInterval)
		if begin.Before(now) {
			begin = now
		}
		b.next, b.last = c, begin
		time.AfterFunc(begin.Sub(now), func() { b.send(c) })
	}
	from := len(c.renewals)
	c.renewals = append(c.renewals, renewals...)
	c.waiting++
	b.mu.Unlock()
	select {
	case <-c.done:
	case <-ctx.Done():
		b.leave(c)
		return nil, ctx.Err()
	}
	for i := range renewals {
		if c.lost[from+i] {
			lost = append(lost, uint32(i))
		}
	}
	return lost, c.err
}

// leave cancels a call for which no caller waits any more.
func (b *batcher) leave(c *batch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.waiting--; c.waiting == 0 && b.next != c {
		c.cancel()
	}
}

func (b *batcher) send(c *batch) {
	b.mu.Lock()
	if b.next == c {
		b.next = nil
	}
	abandoned := c.waiting == 0
	b.mu.Unlock()
	defer c.cancel()
	defer close(c.done)
	if abandoned {
		return
	}
	resp, err := b.leases.Renew(c.ctx, &pb.RenewLeasesRequest{Renewals: c.renewals})
	c.err, c.lost = err, make(map[int]bool, len(resp.GetLost()))
	for _, i := range resp.GetLost() {
		c.lost[int(i)] = true
	}
}

// Forwarder forwards the renewals of a follower to the leader. It merges the
// calls of all callers. Any goroutine may call its methods.
type Forwarder struct {
	connect func(node string) (grpc.ClientConnInterface, error)
	allow   AllowFunc

	mu   sync.Mutex
	node string // of the leader
	to   *batcher
}

// NewForwarder returns a Forwarder. connect returns a connection to another
// server. allow authorizes the caller of each call.
func NewForwarder(connect func(node string) (grpc.ClientConnInterface, error), allow AllowFunc) *Forwarder {
	return &Forwarder{connect: connect, allow: allow}
}

// Renew sends a *pb.RenewLeasesRequest to node, and returns the
// *pb.RenewLeasesResponse. The leader receives the calls from this server, so
// Renew authorizes the caller of ctx and validates the request. It blocks until
// the leader has responded.
func (f *Forwarder) Renew(ctx context.Context, node string, req any) (any, error) {
	renewals := req.(*pb.RenewLeasesRequest).GetRenewals()
	err := checkRenewals(renewals)
	if err == nil {
		err = f.allow.authorizeRenewals(ctx, renewals)
	}
	if err != nil {
		return nil, resource.StatusError(err)
	}
	to, err := f.batcher(node)
	if err != nil {
		return nil, resource.StatusError(fmt.Errorf("forward renewals of leases to %s: %w: %w",
			node, resource.ErrNotLeader, err))
	}
	lost, err := to.renew(ctx, renewals)
	if err != nil {
		return nil, resource.StatusError(err)
	}
	return &pb.RenewLeasesResponse{Lost: lost}, nil
}

func (f *Forwarder) batcher(node string) (*batcher, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.to == nil || f.node != node {
		cc, err := f.connect(node)
		if err != nil {
			return nil, err
		}
		f.node, f.to = node, &batcher{leases: pb.NewLeaseServiceClient(cc)}
	}
	return f.to, nil
}

// checkRenewals returns an ErrInvalid if a call with these renewals would fail.
func checkRenewals(renewals []*pb.RenewLeasesRequest_Renewal) error {
	if n := len(renewals); n > maxRenewals {
		return fmt.Errorf("%w call with %d renewals: must have at most %d", resource.ErrInvalid, n, maxRenewals)
	}
	for _, r := range renewals {
		if r.GetToken() == 0 {
			return fmt.Errorf("%w renewal of %.100q: it has no token", resource.ErrInvalid, r.GetName())
		}
		if err := resource.CheckName(r.GetName()); err != nil {
			return errors.Join(resource.ErrInvalid, err)
		}
	}
	return nil
}
