// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

// TestLargeList stores 100,000 resources in a server. HTTP and a gRPC watch
// return all of them. A gRPC list, which is one message, is refused with the
// reason. Clients that read slowly or not at all do not cost the server a copy
// each. A resource of 1 MiB can be written and read.
func TestLargeList(t *testing.T) {
	t.Parallel()
	l := newLoopback(t)
	s := l.start("dc1", "dc1")
	l.federated(s)
	cc, err := api.NewGRPCClient(func(ctx context.Context) (net.Conn, error) {
		return dial(ctx, s.server.Addr, l.client(t, tlsutil.RoleOperator, "joe", "dc1", "server.dc1.wanfed", "h2"))
	})
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	large := &largeList{s: s, ctx: ctx, client: pb.NewResourceServiceClient(cc), count: 100_000}
	operator := operatorOf(t, l, "dc1")
	defer operator.CloseIdleConnections()
	began := time.Now()
	if err := s.putKeys(ctx, operator, "large-list.%06d", 0, large.count, 'a'); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d resources written in %v; the server has %d MiB", large.count, time.Since(began).Round(time.Millisecond),
		rssOf(t, s)>>20)

	t.Run("gRPC list", func(t *testing.T) {
		if _, err := large.client.List(ctx,
			&pb.ListRequest{Type: entryType}); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("list larger than a message = %.200v, want ResourceExhausted", err)
		}
	})
	t.Run("gRPC watch", large.watch)
	t.Run("stalled HTTP lists", large.stalledLists)
	stalledReaders(t, l, s, entryType, operator, "large-list.%06d")
	t.Run("resource sizes", large.sizes)
}

var entryType = &pb.Type{Group: "kv", GroupVersion: "v1", Kind: "Entry"}

// largeList is a server with many key/value resources, and an operator's
// client.
type largeList struct {
	s      *site
	ctx    context.Context // limits the whole test
	client pb.ResourceServiceClient
	count  int // resources
}

// watch checks that a watch returns all resources.
func (l *largeList) watch(t *testing.T) {
	stream, err := l.client.WatchList(l.ctx, &pb.WatchListRequest{Type: entryType})
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for ; ; seen++ {
		ev, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if ev.GetEndOfSnapshot() != nil {
			break
		}
	}
	if seen != l.count {
		t.Errorf("events of a watch = %d, want %d", seen, l.count)
	}
}

// list requests the list of all resources by HTTP and returns the body of the
// response.
func (l *largeList) list(t *testing.T) io.ReadCloser {
	t.Helper()
	req, err := http.NewRequestWithContext(l.ctx, http.MethodGet, l.s.server.HTTP+"/api/kv/v1/entry", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("GET of the list = %s, want 200", resp.Status)
	}
	return resp.Body
}

// size reads a whole list, checks that it has all resources, and returns its
// size in bytes.
func (l *largeList) size(t *testing.T) int {
	t.Helper()
	body := l.list(t)
	defer body.Close()
	b, err := io.ReadAll(body)
	if n := strings.Count(string(b), `"large-list.`); err != nil || n != l.count {
		t.Errorf("resources in the list = %d, %v, want %d", n, err, l.count)
	}
	return len(b)
}

// stalledLists checks that the memory of the server does not hold a list per
// client when eight clients begin to read one and stall.
func (l *largeList) stalledLists(t *testing.T) {
	const slow = 8
	size := l.size(t)
	before := rssOf(t, l.s)
	for range slow {
		body := l.list(t)
		defer body.Close()
		if _, err := io.ReadFull(body, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	most := 0
	for range 10 {
		<-time.After(100 * time.Millisecond)
		most = max(most, rssOf(t, l.s))
	}
	t.Logf("size of a list: %d MiB; with %d stalled readers the server grew from %d to %d MiB", size>>20, slow,
		before>>20, most>>20)
	if most-before > slow*size/4 {
		t.Errorf("the server grew by %d MiB with %d stalled readers, want at most a quarter of their lists",
			(most-before)>>20, slow)
	}
}

// put writes a resource with a value and a note in its metadata.
func (l *largeList) put(name string, value []byte, note string) error {
	data, err := anypb.New(&pb.KVEntry{Value: value})
	if err != nil {
		return err
	}
	r := &pb.Resource{Id: &pb.ID{Type: entryType, Name: name}, Data: data}
	if note != "" {
		r.Metadata = map[string]string{"note": note}
	}
	_, err = l.client.Write(l.ctx, &pb.WriteRequest{Resource: r})
	return err
}

// sizes checks that a resource of 1 MiB can be written and read, and that
// resources above the limits are refused.
func (l *largeList) sizes(t *testing.T) {
	note := strings.Repeat("x", 1<<20)
	if err := l.put("large", []byte("1"), note); err != nil {
		t.Fatal(err)
	}
	got, err := l.client.Read(l.ctx, &pb.ReadRequest{Id: &pb.ID{Type: entryType, Name: "large"}})
	if err != nil || got.GetResource().GetMetadata()["note"] != note {
		t.Errorf("Read() of a resource with metadata of 1 MiB returns %d bytes of them, %v; want all",
			len(got.GetResource().GetMetadata()["note"]), err)
	}
	for name, err := range map[string]error{
		"value above the limit":    l.put("large-value", []byte(note), ""),
		"resource above the limit": l.put("large-resource", nil, strings.Repeat(note, 4)),
	} {
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("write of a %s = %.200v, want InvalidArgument", name, err)
		}
		t.Logf("%s: %.200v", name, err)
	}
}

// rssOf returns the resident memory of a server's process in bytes.
func rssOf(t *testing.T, s *site) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.server.Pid()))
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(b)
	if err != nil || m == nil {
		t.Fatal("no VmRSS: ", err)
	}
	kib, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
