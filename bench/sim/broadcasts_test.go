// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"reflect"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"
)

// dropQueuedBroadcasts drops the gossip messages that are still queued in the
// WAN pools. All members already have them, but each message is sent 32 times.
// With 1,000 members that takes five minutes of simulated time, and two hours
// on two cores. The libraries have no function for this, so it reads their
// private fields.
func (w *world) dropQueuedBroadcasts(t testing.TB) {
	t.Helper()
	dropped := 0
	for _, v := range w.servers() {
		s := field[atomic.Pointer[serf.Serf]](v.wan, "serf").Load()
		for _, q := range []*memberlist.TransmitLimitedQueue{
			*field[*memberlist.TransmitLimitedQueue](s, "broadcasts"), // serf's intents
			*field[*memberlist.TransmitLimitedQueue](s.Memberlist(), "broadcasts"),
		} {
			dropped += q.NumQueued()
			q.Prune(0)
		}
	}
	t.Logf("dropped %d queued broadcasts per server", dropped/len(w.servers()))
}

// field returns a pointer to a private field of a struct.
func field[T, S any](of *S, name string) *T {
	f := reflect.ValueOf(of).Elem().FieldByName(name)
	if f.Type() != reflect.TypeFor[T]() {
		panic("sim: " + name + " is a " + f.Type().String())
	}
	return (*T)(unsafe.Pointer(f.UnsafeAddr()))
}
