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

// hush drops what the WAN pools' members have still to tell: what all know already, 32 times over. With 1,000 of them that takes five minutes
// of packets, each over a connection of its own, and two hours of a machine with two cores. The libraries have no call for it, so it
// reaches into them.
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
	t.Logf("%d news for each server dropped", dropped/len(w.servers()))
}

// field is a field of a struct of another package.
func field[T, S any](of *S, name string) *T {
	f := reflect.ValueOf(of).Elem().FieldByName(name)
	if f.Type() != reflect.TypeFor[T]() {
		panic("sim: " + name + " is a " + f.Type().String())
	}
	return (*T)(unsafe.Pointer(f.UnsafeAddr()))
}
