// SPDX-License-Identifier: MPL-2.0

package controller

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// snapshotClient is a client whose watches return events and then end.
type snapshotClient struct {
	pb.ResourceServiceClient
	events []*pb.WatchEvent
}

func (c snapshotClient) WatchList(
	context.Context, *pb.WatchListRequest, ...grpc.CallOption,
) (grpc.ServerStreamingClient[pb.WatchEvent], error) {
	return &snapshotStream{events: c.events}, nil
}

type snapshotStream struct {
	grpc.ServerStreamingClient[pb.WatchEvent]
	events []*pb.WatchEvent
}

func (s *snapshotStream) Recv() (*pb.WatchEvent, error) {
	if len(s.events) == 0 {
		return nil, io.EOF
	}
	ev := s.events[0]
	s.events = s.events[1:]
	return ev, nil
}

// BenchmarkCache_Snapshot fills a cache with an index.
func BenchmarkCache_Snapshot(b *testing.B) {
	const n = 100_000
	var client snapshotClient
	for i := range n {
		r, err := resource.New(queueType, fmt.Sprintf("item-%d", i), wrapperspb.String(fmt.Sprintf("class-%d", i%100)))
		if err != nil {
			b.Fatal(err)
		}
		r.Version = "1"
		client.events = append(client.events, &pb.WatchEvent{Event: &pb.WatchEvent_Upsert_{
			Upsert: &pb.WatchEvent_Upsert{Resource: r},
		}})
	}
	client.events = append(client.events, &pb.WatchEvent{Event: &pb.WatchEvent_EndOfSnapshot_{
		EndOfSnapshot: &pb.WatchEvent_EndOfSnapshot{},
	}})
	x := By(queueType, "class", func(_ *pb.Resource, data *wrapperspb.StringValue) []string { return []string{data.Value} })
	for b.Loop() {
		tc := newTypeCache(queueType, client, slog.New(slog.DiscardHandler))
		tc.addIndex(x)
		if err := tc.follow(b.Context(), func() bool { return false }); err != nil {
			b.Fatal(err)
		}
		if got := tc.resources.Len(); got != n {
			b.Fatalf("resources = %d, want %d", got, n)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/resource")
}
