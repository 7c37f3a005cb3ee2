// SPDX-License-Identifier: MPL-2.0

package broadcast

import "testing"

func TestBroadcast_NotifyClosesOlderChannels(t *testing.T) {
	var b Broadcast
	b.Notify() // without a channel
	first, second := b.Wait(), b.Wait()
	if IsClosed(first) {
		t.Error("Wait() before Notify() = closed channel, want open")
	}
	b.Notify()
	if !IsClosed(first) || !IsClosed(second) {
		t.Errorf("channels closed after Notify(): %t, %t, want both", IsClosed(first), IsClosed(second))
	}
	if IsClosed(b.Wait()) {
		t.Error("Wait() after Notify() = closed channel, want open")
	}
}

func TestKeyed_NotifyReachesOneKey(t *testing.T) {
	var k Keyed[string]
	a, b := k.Wait("a"), k.Wait("b")
	k.Notify("a")
	if !IsClosed(a) || IsClosed(b) {
		t.Errorf("channels closed after Notify(a): a %t, b %t, want true, false", IsClosed(a), IsClosed(b))
	}
	if len(k.next) != 1 {
		t.Errorf("keys in memory = %d, want 1 for b", len(k.next))
	}
}
