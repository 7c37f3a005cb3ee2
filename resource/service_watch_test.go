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

// TestWatchList_StalledClients checks that streams whose clients do not read delay
// neither the writer nor other streams. They are reset when they lag too far. A
// client that disconnects leaves no goroutine.
func TestWatchList_StalledClients(t *testing.T) {
	g := newRig(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	watch := func(ctx context.Context) func() (*pb.WatchEvent, error) {
		t.Helper()
		stream, err := g.WatchList(ctx, &pb.WatchListRequest{Type: nodeType})
		if err != nil {
			t.Fatal(err)
		}
		if ev, err := stream.Recv(); err != nil || ev.GetEndOfSnapshot() == nil {
			t.Fatalf("Recv() = %v, %v, want the end of the snapshot", ev, err)
		}
		return stream.Recv
	}
	gone, leave := context.WithCancel(ctx)
	defer leave()
	leaves := watch(gone)
	var still []func() (*pb.WatchEvent, error)
	for range 30 {
		still = append(still, watch(ctx))
	}
	reads := watch(ctx)
	const writes = 1500 // of 16 KiB each: more than a topic retains
	text := strings.Repeat("x", 16<<10)
	for n := range writes {
		if n == writes/2 {
			leave()
		}
		if _, err := g.Write(ctx, &pb.WriteRequest{Resource: node(t, "n"+strconv.Itoa(n%7), text+strconv.Itoa(n))}); err != nil {
			t.Fatal(err)
		}
		for {
			ev, err := reads()
			if err != nil {
				t.Fatalf("Recv() of a reading client at write %d = %v", n, err)
			}
			if ev.GetUpsert() != nil {
				break
			}
		}
	}
	for n, recv := range still {
		events := 0
		for {
			_, err := recv()
			if err == nil {
				events++
				continue
			}
			if !errors.Is(resource.FromStatus(err), resource.ErrWatchReset) || events == 0 {
				t.Errorf("stream %d after %d events = %v, want ErrWatchReset", n, events, err)
			}
			break
		}
	}
	for {
		if _, err := leaves(); err != nil {
			break
		}
	}
}
