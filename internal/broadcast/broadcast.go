// SPDX-License-Identifier: MPL-2.0

package broadcast

import "sync"

// Broadcast is one event that many may wait for. Its zero value is ready. It is
// safe for concurrent use and must not be copied.
type Broadcast struct {
	mu   sync.Mutex
	next chan struct{} // closed by the next Notify; nil while there are no waiters
}

// Wait returns a channel that the next Notify closes.
func (b *Broadcast) Wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = make(chan struct{})
	}
	return b.next
}

// Notify wakes everything that waits. It does not block.
func (b *Broadcast) Notify() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next != nil {
		close(b.next)
		b.next = nil
	}
}

// Keyed is one event per key. Its zero value is ready. It is safe for
// concurrent use and must not be copied. It holds memory only for keys that
// have waiters.
type Keyed[K comparable] struct {
	mu   sync.Mutex
	next map[K]chan struct{}
}

// Wait returns a channel that the next Notify of key closes.
func (k *Keyed[K]) Wait(key K) <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.next[key]
	if c == nil {
		if k.next == nil {
			k.next = map[K]chan struct{}{}
		}
		c = make(chan struct{})
		k.next[key] = c
	}
	return c
}

// Notify wakes everything that waits for key. It does not block.
func (k *Keyed[K]) Notify(key K) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.next[key]; c != nil {
		close(c)
		delete(k.next, key)
	}
}
