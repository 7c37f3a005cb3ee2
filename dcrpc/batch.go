// SPDX-License-Identifier: MPL-2.0

package dcrpc

import (
	"context"
	"runtime"
	"sync"
)

// maxBatch bounds the items of one batch.
const maxBatch = 64

// batcher sends items in order. Items that are added while a batch is sent form
// the next batch. An idle sender sends an item at once. A busy sender sends few
// large batches.
type batcher[T any] struct {
	wake chan struct{} // size 1: items is not empty

	mu    sync.Mutex
	items []T
}

func newBatcher[T any]() *batcher[T] { return &batcher[T]{wake: make(chan struct{}, 1)} }

func (b *batcher[T]) add(item T) {
	b.mu.Lock()
	b.items = append(b.items, item)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take returns the items of the next batch.
func (b *batcher[T]) take() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.items), maxBatch)
	batch := b.items[:n:n]
	b.items = b.items[n:]
	return batch
}

// run sends batches until ctx ends or send fails. Unsent items may remain.
func (b *batcher[T]) run(ctx context.Context, send func([]T) error) error {
	for {
		select {
		case <-b.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
		runtime.Gosched() // goroutines that are ready to add an item share the batch
		for batch := b.take(); len(batch) > 0; batch = b.take() {
			if err := send(batch); err != nil {
				return err
			}
		}
	}
}
