// SPDX-License-Identifier: MPL-2.0

package broadcast

import "sync"

// Broadcast is an event that several goroutines can wait for. The zero value is
// ready for use. A Broadcast is safe for concurrent use and must not be copied.
type Broadcast struct{ event Keyed[struct{}] }

// Wait returns a channel that the next Notify closes.
func (b *Broadcast) Wait() <-chan struct{} { return b.event.Wait(struct{}{}) }

// Notify closes the channels that Wait has returned. It does not block.
func (b *Broadcast) Notify() { b.event.Notify(struct{}{}) }

// IsClosed reports whether c is closed. Nothing is sent to c.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Keyed is an event per key. The zero value is ready for use. A Keyed is safe
// for concurrent use and must not be copied. It uses memory only for keys with
// open channels.
type Keyed[K comparable] struct {
	mu   sync.Mutex
	next map[K]chan struct{} // channels that the next Notify closes
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

// Notify closes the channels that Wait has returned for key. It does not block.
func (k *Keyed[K]) Notify(key K) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.next[key]; c != nil {
		close(c)
		delete(k.next, key)
	}
}
