// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
)

// twoDatacenters returns the handler of dc1, which reaches dc2's by Serve, as over gRPC, and dc2's with its source.
func twoDatacenters(t testing.TB) (dc1, dc2 http.Handler, src2 *fakeSource) {
	t.Helper()
	src2 = newFakeSource()
	src2.leaderAddr = "10.2.0.11:8300"
	src2.datacenters = []string{"dc2", "dc1"}
	dc2, err := New(Config{DC: "dc2", Cluster: src2, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	src1 := newFakeSource()
	src1.set(7)
	src1.query = func(ctx context.Context, dc string, req *pb.QueryRequest) (*pb.QueryResponse, error) {
		if dc != "dc2" {
			return nil, ErrNoPath
		}
		resp, err := Serve(ctx, dc2, overWire(t, req, &pb.QueryRequest{}))
		if err != nil {
			return nil, err
		}
		return overWire(t, resp, &pb.QueryResponse{}), nil
	}
	return newHandler(t, src1), dc2, src2
}

// overWire makes sure that m can be sent: protobuf refuses strings that are not UTF-8.
func overWire[M proto.Message](t testing.TB, m, into M) M {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(b, into); err != nil {
		t.Fatal(err)
	}
	return into
}

// Another datacenter's answer is the one its own HTTP API gives.
func TestForwardedAnswerIsTheSame(t *testing.T) {
	dc1, dc2, _ := twoDatacenters(t)
	for _, path := range []string{
		"/v1/internal/federation-states", "/v1/internal/federation-states/mesh-gateways",
		"/v1/internal/federation-state/dc2", "/v1/internal/federation-state/dc9", "/v1/internal/federation-state/a%2Fb%FF",
		"/v1/agent/members?wan=1", "/v1/agent/members?wan=%FF", "/v1/catalog/datacenters?pretty=", "/v1/status/leader", "/v1/status/peers", api.StatusPath,
	} {
		direct := get(t.Context(), dc2, path)
		there := path + "?dc=dc2"
		if strings.Contains(path, "?") {
			there = path + "&dc=dc2"
		}
		forwarded := get(t.Context(), dc1, there)
		if forwarded.Code != direct.Code {
			t.Errorf("%s: status %d, directly %d", there, forwarded.Code, direct.Code)
		}
		if d := cmp.Diff(direct.Body.String(), forwarded.Body.String()); d != "" {
			t.Errorf("%s: %s", there, d)
		}
		for _, key := range append([]string{"Content-Type"}, relayedHeaders...) {
			if a, b := direct.Header().Get(key), forwarded.Header().Get(key); a != b {
				t.Errorf("%s: %s %q, directly %q", there, key, b, a)
			}
		}
	}
}

func TestForwardedBlockingQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dc1, _, src2 := twoDatacenters(t)
		start := time.Now()
		w := get(t.Context(), dc1, "/v1/internal/federation-states?dc=dc2&index=22&wait=16s")
		if took := time.Since(start); took < 16*time.Second || took > 17*time.Second || w.Code != 200 {
			t.Errorf("answered %d after %v", w.Code, took)
		}
		defer time.AfterFunc(5*time.Second, func() { src2.set(30, state("dc7")) }).Stop()
		start = time.Now()
		w = get(t.Context(), dc1, "/v1/internal/federation-states?dc=dc2&index=22&wait=16s")
		if took := time.Since(start); took != 5*time.Second || w.Header().Get(api.HeaderIndex) != "30" {
			t.Errorf("after a change: index %s after %v", w.Header().Get(api.HeaderIndex), took)
		}
	})
}

func TestForwardFails(t *testing.T) {
	src := newFakeSource()
	h := newHandler(t, src)
	for _, tt := range []struct {
		name, body, cause string
		err               error
	}{
		{"unknown", "No path to datacenter", "", ErrNoPath},
		{"unreachable", "Remote DC has no server currently reachable", "", ErrUnreachable},
		{"unreachable, wrapped", "Remote DC has no server currently reachable", "dial gateway 10.0.0.1:8443: i/o timeout",
			fmt.Errorf("%w: dial gateway 10.0.0.1:8443: i/o timeout", ErrUnreachable)},
		{"unreachable, with a cause before", "Remote DC has no server currently reachable", "dc2: Remote DC has no server currently reachable",
			fmt.Errorf("dc2: %w", ErrUnreachable)},
		{"cause of several lines", "No path to datacenter", "a  b ?  c", fmt.Errorf("%w: a\r\nb ?é c", ErrNoPath)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			src.query = func(context.Context, string, *pb.QueryRequest) (*pb.QueryResponse, error) { return nil, tt.err }
			w := get(t.Context(), h, "/v1/status/leader?dc=dc2")
			if w.Code != 500 || w.Body.String() != tt.body || w.Header().Get(api.HeaderCause) != tt.cause {
				t.Errorf("%d %q, cause %q", w.Code, w.Body, w.Header().Get(api.HeaderCause))
			}
			if w.Header().Get(api.HeaderIndex) != "1" || w.Header().Get(api.HeaderKnownLeader) != "false" {
				t.Errorf("headers %v", w.Header())
			}
		})
	}
}

// A refusal by a server that was reached is not called unreachable.
func TestForwardRefused(t *testing.T) {
	src := newFakeSource()
	src.query = func(context.Context, string, *pb.QueryRequest) (*pb.QueryResponse, error) {
		return nil, errors.New("server dc1/srv1 may not ask")
	}
	if w := get(t.Context(), newHandler(t, src), "/v1/status/leader?dc=dc2"); w.Code != 500 || w.Body.String() != "server dc1/srv1 may not ask" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// A datacenter that never answers costs the wait and a margin, no more.
func TestForwardDeadline(t *testing.T) {
	for target, want := range map[string]time.Duration{
		"/v1/status/leader?dc=dc2":                                 forwardTimeout,
		"/v1/internal/federation-states?dc=dc2&index=1&wait=16s":   17*time.Second + forwardTimeout,
		"/v1/internal/federation-states?dc=dc2&index=1&wait=1000h": api.MaxBlockTime(api.MaxWait) + forwardTimeout,
	} {
		synctest.Test(t, func(t *testing.T) {
			src := newFakeSource()
			src.query = func(ctx context.Context, _ string, _ *pb.QueryRequest) (*pb.QueryResponse, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			start := time.Now()
			w := get(t.Context(), newHandler(t, src), target)
			if took := time.Since(start); took != want || w.Body.String() != ErrUnreachable.Error() {
				t.Errorf("%s: %d %s after %v, want unreachable after %v", target, w.Code, w.Body, took, want)
			}
			if cause := w.Header().Get(api.HeaderCause); cause != context.DeadlineExceeded.Error() {
				t.Errorf("%s: cause %q", target, cause)
			}
		})
	}
}

func TestClientOfForwardGone(t *testing.T) {
	src := newFakeSource()
	ctx, cancel := context.WithCancel(t.Context())
	src.query = func(ctx context.Context, _ string, _ *pb.QueryRequest) (*pb.QueryResponse, error) {
		cancel()
		return nil, ctx.Err()
	}
	if w := get(ctx, newHandler(t, src), "/v1/status/leader?dc=dc2"); w.Code != 503 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// Nothing that another datacenter answers may reach a browser as a page, or add headers of its choice.
func TestRelayTrustsNothing(t *testing.T) {
	src := newFakeSource()
	h := newHandler(t, src)
	src.query = func(context.Context, string, *pb.QueryRequest) (*pb.QueryResponse, error) {
		return &pb.QueryResponse{
			Status: 200, Body: []byte("<script>"),
			Headers: map[string]string{
				"Content-Type": "text/html", "Set-Cookie": "a=b", "Access-Control-Allow-Origin": "*", "Location": "http://x", api.HeaderIndex: "1\r\nX: y",
			},
		}, nil
	}
	w := get(t.Context(), h, "/v1/status/leader?dc=dc2")
	want := http.Header{
		"Content-Type": {"text/plain; charset=utf-8"}, "X-Content-Type-Options": {"nosniff"}, api.HeaderIndex: {"1  X: y"},
	}
	if d := cmp.Diff(want, w.Header()); d != "" {
		t.Error(d)
	}
	for _, status := range []int32{-1, 0, 99, 101, 600, 1 << 30} {
		src.query = func(context.Context, string, *pb.QueryRequest) (*pb.QueryResponse, error) {
			return &pb.QueryResponse{Status: status}, nil
		}
		w := get(t.Context(), h, "/v1/status/leader?dc=dc2")
		if want := fmt.Sprintf("datacenter dc2 answered with status %d, which HTTP does not have", status); w.Code != 500 || w.Body.String() != want {
			t.Errorf("status %d: %d %s", status, w.Code, w.Body)
		}
	}
}
