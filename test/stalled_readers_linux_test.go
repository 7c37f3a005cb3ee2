// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

// stalledReaders has 20 clients, each with its own connection, that watch all
// resources and do not read, while a fifth of the resources is replaced. Then
// as many clients request a list that is too large for a response. Other
// requests must succeed, the server's memory is bounded, and a watch that
// continues to read must fail because it missed events.
func stalledReaders(t *testing.T, l *loopback, s *site, typ *pb.Type, operator *http.Client, name string) {
	t.Helper()
	const groups, each, replaced = 4, 5, 5000
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	client := func() pb.ResourceServiceClient {
		return pb.NewResourceServiceClient(l.call(t, s.server.Addr, "server.dc1.wanfed", tlsutil.RoleOperator,
			"joe", "dc1"))
	}
	reader := client()
	before := rssOf(t, s)
	most := before
	var streams []grpc.ServerStreamingClient[pb.WatchEvent]
	var reads []time.Duration
	for group := range groups {
		for range each {
			stream, err := client().WatchList(ctx, &pb.WatchListRequest{Type: typ})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil { // the watch has started
				t.Fatal(err)
			}
			streams = append(streams, stream)
		}
		done := make(chan error, 1)
		go func() { done <- s.putKeys(ctx, operator, name, group*replaced, replaced, 'b') }()
		for writing := true; writing; {
			select {
			case err := <-done:
				if err != nil {
					t.Fatal(err)
				}
				writing = false
			case <-time.After(20 * time.Millisecond):
			}
			began := time.Now()
			if _, err := reader.Read(ctx, &pb.ReadRequest{
				Id: &pb.ID{Type: typ, Name: fmt.Sprintf(name, 0)},
			}); err != nil {
				t.Fatal(err)
			}
			reads = append(reads, time.Since(began))
			most = max(most, rssOf(t, s))
		}
	}
	slices.Sort(reads)
	t.Logf("with %d stalled watches and %d replaced resources, memory grew from %d to %d MiB; other reads: median "+
		"%v, maximum %v",
		len(streams), groups*replaced, before>>20, most>>20, reads[len(reads)/2].Round(time.Microsecond),
		reads[len(reads)-1].Round(time.Microsecond))
	if most-before > 96<<20 {
		t.Errorf("memory grew by %d MiB with %d stalled watches, want at most 96", (most-before)>>20, len(streams))
	}
	if worst := reads[len(reads)-1]; worst > 5*time.Second {
		t.Errorf("longest read = %v, want at most 5s", worst)
	}
	var wg sync.WaitGroup
	for n, stream := range streams[:(groups-1)*each] { // these missed more events than the server keeps
		wg.Go(func() {
			for {
				ev, err := stream.Recv()
				if err == nil && ev.GetEndOfSnapshot() == nil {
					continue
				}
				if status.Code(err) != codes.Aborted {
					t.Errorf("stalled watch %d: Recv() = %v, %v, want Aborted", n, ev, err)
				}
				return
			}
		})
	}
	wg.Wait()

	before, most = rssOf(t, s), 0
	for range groups * each {
		wg.Go(func() {
			if _, err := client().List(ctx, &pb.ListRequest{Type: typ}); status.Code(err) != codes.ResourceExhausted {
				t.Errorf("list larger than a message = %.200v, want ResourceExhausted", err)
			}
		})
	}
	listed := make(chan struct{})
	go func() { wg.Wait(); close(listed) }()
	for listing := true; listing; {
		select {
		case <-listed:
			listing = false
		case <-time.After(20 * time.Millisecond):
		}
		most = max(most, rssOf(t, s))
	}
	if most-before > 96<<20 {
		t.Errorf("memory grew by %d MiB with refused lists, want at most 96", (most-before)>>20)
	}
	t.Logf("%d concurrent lists that are too large: memory grew from %d to %d MiB", groups*each, before>>20, most>>20)
}

// putKeys writes count keys with values of 200 fill bytes, numbered from first
// on. It writes a hundred per transaction: single writes would take most of the
// test's time.
func (s *site) putKeys(ctx context.Context, operator *http.Client, name string, first, count int, fill byte) error {
	const step = 100
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for at := first; at < first+count; at += step {
		g.Go(func() error {
			var ops []map[string]any
			for n := range step {
				ops = append(ops, map[string]any{"KV": map[string]any{
					"Verb": "set", "Key": fmt.Sprintf(name, at+n), "Value": bytes.Repeat([]byte{fill}, 200),
				}})
			}
			body, err := json.Marshal(ops)
			if err != nil {
				return err
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodPut,
				strings.Replace(s.server.HTTP, "http:", "https:", 1)+"/v1/txn", bytes.NewReader(body))
			if err != nil {
				return err
			}
			_, err = doRequest(operator, req)
			return err
		})
	}
	return g.Wait()
}
