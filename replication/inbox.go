// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
)

// inboxBytes is how much may wait for the next commit of a follower before its stream is no longer read.
const inboxBytes = 2 * batchBytes

// inbox holds what came and is not stored yet. One goroutine puts, one takes.
type inbox struct {
	more, room chan struct{} // size 1: a wake-up is not lost

	mu    sync.Mutex
	queue []*pb.FollowResponse
	sizes []int
	bytes int
	ended error // nothing comes any more
}

func newInbox() *inbox {
	return &inbox{more: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put waits until there is room, or ctx ends.
func (b *inbox) put(ctx context.Context, m *pb.FollowResponse) error {
	n := proto.Size(m)
	for {
		b.mu.Lock()
		fits := b.bytes == 0 || b.bytes+n <= inboxBytes
		if fits {
			b.queue, b.sizes, b.bytes = append(b.queue, m), append(b.sizes, n), b.bytes+n
		}
		b.mu.Unlock()
		if fits {
			poke(b.more)
			return nil
		}
		select {
		case <-b.room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// end says why nothing comes any more. What has come can still be taken.
func (b *inbox) end(err error) {
	b.mu.Lock()
	b.ended = err
	b.mu.Unlock()
	poke(b.more)
}

// take waits for a message, and returns it with those that have come too: about batchBytes.
func (b *inbox) take(ctx context.Context) ([]*pb.FollowResponse, error) {
	for {
		b.mu.Lock()
		n, bytes := 0, 0
		for n < len(b.queue) && (n == 0 || bytes+b.sizes[n] <= batchBytes) {
			bytes += b.sizes[n]
			n++
		}
		out := b.queue[:n:n]
		b.queue, b.sizes, b.bytes = b.queue[n:], b.sizes[n:], b.bytes-bytes
		ended := b.ended
		b.mu.Unlock()
		if n > 0 {
			poke(b.room)
			return out, nil
		}
		if ended != nil {
			return nil, ended
		}
		select {
		case <-b.more:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
