// SPDX-License-Identifier: MPL-2.0

package broadcast

import "testing"

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestBroadcast_NotifyClosesOlderChannels(t *testing.T) {
	var b Broadcast
	b.Notify() // nothing waits
	first, second := b.Wait(), b.Wait()
	if closed(first) {
		t.Error("channel is closed before Notify, want open")
	}
	b.Notify()
	if !closed(first) || !closed(second) {
		t.Error("a channel is open after Notify, want both closed")
	}
	if closed(b.Wait()) {
		t.Error("channel taken after Notify is closed, want open")
	}
}

func TestKeyed_NotifyReachesOneKey(t *testing.T) {
	var k Keyed[string]
	a, b := k.Wait("a"), k.Wait("b")
	k.Notify("a")
	if !closed(a) || closed(b) {
		t.Errorf("closed: a %v, b %v; want true, false", closed(a), closed(b))
	}
	if len(k.next) != 1 {
		t.Errorf("%d keys kept, want 1: only b has a waiter", len(k.next))
	}
}
