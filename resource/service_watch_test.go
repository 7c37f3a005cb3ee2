// SPDX-License-Identifier: MPL-2.0

package resource_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// TestService_StalledWatches checks that streams whose clients do not read
// delay neither the writer nor other streams, and are reset. A client that
// disconnects leaves no goroutine, which TestMain checks.
func TestService_StalledWatches(t *testing.T) {
	f := newFixture(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	watch := func(ctx context.Context) func() (*pb.WatchEvent, error) {
		t.Helper()
		stream, err := f.WatchList(ctx, &pb.WatchListRequest{Type: nodeType})
		if err != nil {
			t.Fatal(err)
		}
		if ev, err := stream.Recv(); err != nil || ev.GetEndOfSnapshot() == nil {
			t.Fatalf("Recv() = %v, %v, want the end of the snapshot", ev, err)
		}
		return stream.Recv
	}
	disconnecting, disconnect := context.WithCancel(ctx)
	defer disconnect()
	recvDisconnecting := watch(disconnecting)
	var stalled []func() (*pb.WatchEvent, error)
	for range 30 {
		stalled = append(stalled, watch(ctx))
	}
	recv := watch(ctx)
	const writes = 1500 // of 16 KiB each: more than a topic retains
	text := strings.Repeat("x", 16<<10)
	for n := range writes {
		if n == writes/2 {
			disconnect()
		}
		f.write(node(t, "n"+strconv.Itoa(n%7), text+strconv.Itoa(n)))
		for {
			ev, err := recv()
			if err != nil {
				t.Fatalf("Recv() of a client that reads, at write %d = %v, want an event", n, err)
			}
			if ev.GetUpsert() != nil {
				break
			}
		}
	}
	for n, recv := range stalled {
		events, err := countEvents(recv)
		if !errors.Is(resource.FromStatus(err), resource.ErrWatchReset) || events == 0 {
			t.Errorf("stalled stream %d has %d events and ends with %v, want events and ErrWatchReset", n, events, err)
		}
	}
	countEvents(recvDisconnecting)
}

// countEvents receives events until a stream ends.
func countEvents(recv func() (*pb.WatchEvent, error)) (count int, err error) {
	for ; ; count++ {
		if _, err := recv(); err != nil {
			return count, err
		}
	}
}
