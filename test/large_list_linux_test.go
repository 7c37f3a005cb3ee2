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
	const count, slow = 100_000, 8
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
	client := pb.NewResourceServiceClient(cc)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	typ := &pb.Type{Group: "kv", GroupVersion: "v1", Kind: "Entry"}
	put := func(ctx context.Context, name string, value []byte, note string) error {
		data, err := anypb.New(&pb.KVEntry{Value: value})
		if err != nil {
			return err
		}
		r := &pb.Resource{Id: &pb.ID{Type: typ, Name: name}, Data: data}
		if note != "" {
			r.Metadata = map[string]string{"note": note}
		}
		_, err = client.Write(ctx, &pb.WriteRequest{Resource: r})
		return err
	}
	began := time.Now()
	operator := operatorOf(t, l, "dc1")
	defer operator.CloseIdleConnections()
	if err := s.putKeys(ctx, operator, "great-list.%06d", 0, count, 'a'); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d resources written in %v; the server has %d MiB", count, time.Since(began).Round(time.Millisecond), rssOf(t, s)>>20)

	if _, err := client.List(ctx, &pb.ListRequest{Type: typ}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("list larger than a message = %.200v, want ResourceExhausted", err)
	}
	stream, err := client.WatchList(ctx, &pb.WatchListRequest{Type: typ})
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
	if seen != count {
		t.Errorf("events of a watch = %d, want %d", seen, count)
	}
	list := func() io.ReadCloser {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.server.HTTP+"/api/kv/v1/entry", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
		return resp.Body
	}
	whole := func(body io.ReadCloser) int {
		t.Helper()
		defer body.Close()
		b, err := io.ReadAll(body)
		if n := strings.Count(string(b), `"great-list.`); err != nil || n != count {
			t.Errorf("resources in the list = %d, %v, want %d", n, err, count)
		}
		return len(b)
	}
	size := whole(list())
	before := rssOf(t, s)
	var bodies []io.ReadCloser
	for range slow { // each starts to read and stalls
		body := list()
		if _, err := io.ReadFull(body, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, body)
	}
	most := 0
	for range 10 {
		<-time.After(100 * time.Millisecond)
		most = max(most, rssOf(t, s))
	}
	t.Logf("size of a list: %d MiB; with %d stalled readers the server grew from %d to %d MiB", size>>20, slow, before>>20, most>>20)
	if most-before > slow*size/4 {
		t.Errorf("the server grew by %d MiB with %d stalled readers, want at most a quarter of their lists", (most-before)>>20, slow)
	}
	for _, body := range bodies {
		body.Close()
	}
	stalledReaders(t, l, s, typ, operator, "great-list.%06d")

	great := strings.Repeat("x", 1<<20)
	if err := put(ctx, "great", []byte("1"), great); err != nil {
		t.Fatal(err)
	}
	got, err := client.Read(ctx, &pb.ReadRequest{Id: &pb.ID{Type: typ, Name: "great"}})
	if err != nil || got.GetResource().GetMetadata()["note"] != great {
		t.Errorf("metadata of 1 MiB read as %d bytes, %v", len(got.GetResource().GetMetadata()["note"]), err)
	}
	for name, err := range map[string]error{
		"value above the limit":    put(ctx, "greater", []byte(great), ""),
		"resource above the limit": put(ctx, "greatest", nil, strings.Repeat(great, 4)),
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
