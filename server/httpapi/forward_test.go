// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
)

// twoDatacenters returns the handlers of two datacenters, and the cluster of
// dc2. dc1 reaches dc2 through Serve.
func twoDatacenters(t testing.TB) (dc1, dc2 http.Handler, cluster2 *fakeCluster) {
	t.Helper()
	cluster2 = newFakeCluster()
	cluster2.leaderAddr = "10.2.0.11:8300"
	cluster2.datacenters = []string{"dc2", "dc1"}
	dc2, err := New(Config{DC: "dc2", Policy: policyOf("dc2"), Cluster: cluster2, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	cluster1 := newFakeCluster()
	cluster1.set(7)
	cluster1.query = func(ctx context.Context, dc string, req *pb.QueryRequest) (*pb.QueryResponse, error) {
		if dc != "dc2" {
			return nil, ErrNoPath
		}
		resp, err := Serve(ctx, dc2, overWire(t, req, &pb.QueryRequest{}))
		if err != nil {
			return nil, err
		}
		return overWire(t, resp, &pb.QueryResponse{}), nil
	}
	return newHandler(t, cluster1), dc2, cluster2
}

// overWire encodes and decodes m, because protobuf rejects strings that are not
// UTF-8.
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

func TestForward_SameResponseAsDirectly(t *testing.T) {
	dc1, dc2, _ := twoDatacenters(t)
	for _, path := range []string{
		"/v1/internal/federation-states", "/v1/internal/federation-states/mesh-gateways",
		"/v1/internal/federation-state/dc2", "/v1/internal/federation-state/dc9",
		"/v1/internal/federation-state/a%2Fb%FF",
		"/v1/agent/members?wan=1", "/v1/agent/members?wan=%FF", "/v1/catalog/datacenters?pretty=", "/v1/status/leader",
		"/v1/status/peers", api.StatusPath,
	} {
		direct := get(t.Context(), dc2, path)
		there := path + "?dc=dc2"
		if strings.Contains(path, "?") {
			there = path + "&dc=dc2"
		}
		forwarded := get(t.Context(), dc1, there)
		if forwarded.Code != direct.Code {
			t.Errorf("%s: status = %d, want %d", there, forwarded.Code, direct.Code)
		}
		if d := cmp.Diff(direct.Body.String(), forwarded.Body.String()); d != "" {
			t.Errorf("%s: body differs from the direct response (-want +got):\n%s", there, d)
		}
		for _, key := range append([]string{"Content-Type"}, relayedHeaders...) {
			if a, b := direct.Header().Get(key), forwarded.Header().Get(key); a != b {
				t.Errorf("%s: header %s = %q, want %q", there, key, b, a)
			}
		}
	}
}

func TestForward_BlockingQuery(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		dc1, _, cluster2 := twoDatacenters(t)
		start := time.Now()
		w := get(t.Context(), dc1, "/v1/internal/federation-states?dc=dc2&index=22&wait=16s")
		if took := time.Since(start); took < 16*time.Second || took > 17*time.Second || w.Code != 200 {
			t.Errorf("status = %d after %v, want 200 after 16 s to 17 s", w.Code, took)
		}
		defer time.AfterFunc(5*time.Second, func() { cluster2.set(30, state("dc7")) }).Stop()
		start = time.Now()
		w = get(t.Context(), dc1, "/v1/internal/federation-states?dc=dc2&index=22&wait=16s")
		if took := time.Since(start); took != 5*time.Second || w.Header().Get(api.HeaderIndex) != "30" {
			t.Errorf("index = %s after %v, want 30 after 5 s", w.Header().Get(api.HeaderIndex), took)
		}
	})
}

func TestForward_Unreachable(t *testing.T) {
	cluster := newFakeCluster()
	h := newHandler(t, cluster)
	for _, tt := range []struct {
		name, body, cause string
		err               error
	}{
		{"unknown", "No path to datacenter", "", ErrNoPath},
		{"unreachable", "Remote DC has no server currently reachable", "", ErrUnreachable},
		{"unreachable, wrapped", "Remote DC has no server currently reachable",
			"dial gateway 10.0.0.1:8443: i/o timeout",
			fmt.Errorf("%w: dial gateway 10.0.0.1:8443: i/o timeout", ErrUnreachable)},
		{"unreachable, with a cause before", "Remote DC has no server currently reachable",
			"dc2: Remote DC has no server currently reachable",
			fmt.Errorf("dc2: %w", ErrUnreachable)},
		{"cause of several lines", "No path to datacenter", "a  b ?  c", fmt.Errorf("%w: a\r\nb ?é c", ErrNoPath)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cluster.query = func(context.Context, string, *pb.QueryRequest) (*pb.QueryResponse, error) {
				return nil, tt.err
			}
			w := get(t.Context(), h, "/v1/status/leader?dc=dc2")
			if w.Code != 500 || w.Body.String() != tt.body || w.Header().Get(api.HeaderCause) != tt.cause {
				t.Errorf("response = %d %q with cause %q, want 500 %q with cause %q",
					w.Code, w.Body, w.Header().Get(api.HeaderCause), tt.body, tt.cause)
			}
			if w.Header().Get(api.HeaderIndex) != "1" || w.Header().Get(api.HeaderKnownLeader) != "false" {
				t.Errorf("headers = %v, want index 1 and no known leader", w.Header())
			}
		})
	}
}

// A server that refuses a request is not reported as unreachable.
func TestForward_Refused(t *testing.T) {
	cluster := newFakeCluster()
	cluster.query = func(context.Context, string, *pb.QueryRequest) (*pb.QueryResponse, error) {
		return nil, errors.New("server dc1/srv1 may not call")
	}
	w := get(t.Context(), newHandler(t, cluster), "/v1/status/leader?dc=dc2")
	if want := "server dc1/srv1 may not call"; w.Code != 500 || w.Body.String() != want {
		t.Errorf("response = %d %s, want 500 %s", w.Code, w.Body, want)
	}
}

// A datacenter that never responds delays a request by its wait and
// forwardTimeout.
func TestForward_Timeout(t *testing.T) {
	for target, want := range map[string]time.Duration{
		"/v1/status/leader?dc=dc2":                                 forwardTimeout,
		"/v1/internal/federation-states?dc=dc2&index=1&wait=16s":   17*time.Second + forwardTimeout,
		"/v1/internal/federation-states?dc=dc2&index=1&wait=1000h": api.MaxBlockTime(api.MaxWait) + forwardTimeout,
	} {
		testutil.Bubble(t, func(t *testing.T) {
			cluster := newFakeCluster()
			cluster.query = func(ctx context.Context, _ string, _ *pb.QueryRequest) (*pb.QueryResponse, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			start := time.Now()
			w := get(t.Context(), newHandler(t, cluster), target)
			if took := time.Since(start); took != want || w.Body.String() != ErrUnreachable.Error() {
				t.Errorf("%s: response = %d %s after %v, want %v after %v", target, w.Code, w.Body, took,
					ErrUnreachable, want)
			}
			if cause := w.Header().Get(api.HeaderCause); cause != context.DeadlineExceeded.Error() {
				t.Errorf("%s: cause = %q, want %v", target, cause, context.DeadlineExceeded)
			}
		})
	}
}

func TestForward_ClientDisconnected(t *testing.T) {
	cluster := newFakeCluster()
	ctx, cancel := context.WithCancel(t.Context())
	cluster.query = func(ctx context.Context, _ string, _ *pb.QueryRequest) (*pb.QueryResponse, error) {
		cancel()
		return nil, ctx.Err()
	}
	if w := get(ctx, newHandler(t, cluster), "/v1/status/leader?dc=dc2"); w.Code != 503 {
		t.Errorf("response = %d %s, want 503", w.Code, w.Body)
	}
}

// The response of another datacenter must not reach a browser as a page, and
// must not add headers.
func TestRelay_TrustsNothing(t *testing.T) {
	cluster := newFakeCluster()
	h := newHandler(t, cluster)
	cluster.query = func(context.Context, string, *pb.QueryRequest) (*pb.QueryResponse, error) {
		return &pb.QueryResponse{
			Status: 200, Body: []byte("<script>"),
			Headers: map[string]string{
				"Content-Type": "text/html", "Set-Cookie": "a=b", "Access-Control-Allow-Origin": "*",
				"Location": "http://x", api.HeaderIndex: "1\r\nX: y",
			},
		}, nil
	}
	w := get(t.Context(), h, "/v1/status/leader?dc=dc2")
	want := http.Header{
		"Content-Type": {"text/plain; charset=utf-8"}, "X-Content-Type-Options": {"nosniff"},
		"Cross-Origin-Resource-Policy": {"same-origin"},
		api.HeaderIndex:                {"1  X: y"},
	}
	if d := cmp.Diff(want, w.Header()); d != "" {
		t.Errorf("relayed headers differ (-want +got):\n%s", d)
	}
	for _, status := range []int32{-1, 0, 99, 101, 600, 1 << 30} {
		cluster.query = func(context.Context, string, *pb.QueryRequest) (*pb.QueryResponse, error) {
			return &pb.QueryResponse{Status: status}, nil
		}
		w := get(t.Context(), h, "/v1/status/leader?dc=dc2")
		if want := fmt.Sprintf("datacenter dc2 responded with status %d: must be 200 to 599", status); w.Code != 500 ||
			w.Body.String() != want {
			t.Errorf("response with status %d = %d %s, want 500 %s", status, w.Code, w.Body, want)
		}
	}
}

func TestServe_Refuses(t *testing.T) {
	_, dc2, cluster2 := twoDatacenters(t)
	cluster2.query = func(context.Context, string, *pb.QueryRequest) (*pb.QueryResponse, error) {
		t.Error("a request was forwarded twice, want once")
		return nil, ErrNoPath
	}
	for _, tt := range []struct {
		path, query string
		status      int32
		body        string
	}{
		{"/v1/status/leader", "dc=dc3", 400,
			"datacenter dc2 received a request for datacenter dc3: a request is forwarded only once"},
		{"/v1/status/leader", "dc=dc2", 200, `"10.2.0.11:8300"`},
		{"/v1/none", "", 404, `no such endpoint: "/v1/none"; wanfed has only a part of Consul's endpoints`},
		{"/metrics", "", 400, `bad path "/metrics": must be under /v1/`},
		{"", "", 400, `bad path "": must be under /v1/`},
		{"http://x/v1/status/leader", "", 400, `bad path "http://x/v1/status/leader": must be under /v1/`},
		{"/v1/status/leader?dc=dc3", "", 400, `bad path "/v1/status/leader?dc=dc3": must be under /v1/`},
		{"/v1/%zz", "", 400, `bad path "/v1/%zz": must be under /v1/`},
		{"/v1/agent/members", "wan=x", 400, `bad wan "x": must be 1 or 0`},
	} {
		resp, err := Serve(t.Context(), dc2, &pb.QueryRequest{Path: tt.path, RawQuery: tt.query})
		if err != nil {
			t.Errorf("Serve(%s?%s) = %v, want nil", tt.path, tt.query, err)
			continue
		}
		if resp.Status != tt.status || string(resp.Body) != tt.body {
			t.Errorf("Serve(%s?%s) = %d %q, want %d %q", tt.path, tt.query, resp.Status, resp.Body, tt.status, tt.body)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	req := &pb.QueryRequest{Path: "/v1/internal/federation-states", RawQuery: "index=22"}
	if resp, err := Serve(ctx, dc2, req); err != context.Canceled {
		t.Errorf("Serve() with a cancelled context = %v, %v, want %v", resp, err, context.Canceled)
	}
}

func TestServe_BoundsTheResponse(t *testing.T) {
	sizes := map[int]int32{maxForwarded: 200, maxForwarded + 1: 500}
	for size, want := range sizes {
		resp, err := Serve(t.Context(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			chunk := make([]byte, size/2)
			w.Write(chunk)
			w.Write(make([]byte, size-len(chunk)))
			w.Write(nil)
		}), &pb.QueryRequest{Path: "/v1/x"})
		if err != nil {
			t.Fatal(err)
		}
		if resp.Status != want || proto.Size(resp) > api.MaxMessageSize {
			t.Errorf("Serve() of %d bytes = %d in a message of %d bytes, want %d in at most %d",
				size, resp.Status, proto.Size(resp), want, api.MaxMessageSize)
		}
	}
}

func FuzzServe(f *testing.F) {
	_, dc2, cluster2 := twoDatacenters(f)
	cluster2.query = func(context.Context, string, *pb.QueryRequest) (*pb.QueryResponse, error) {
		return nil, ErrNoPath
	}
	for _, seed := range []string{"/v1/status/leader", "/v1/internal/federation-state/dc2",
		"/v1/internal/federation-state/%2F..", "/v1//x/../..", "/v1/\x00\xff", "*", "//h"} {
		f.Add(seed, "dc=dc2&index=1&wait=0s&pretty")
	}
	f.Add("/v1/agent/members", "wan=%FF;")
	f.Fuzz(func(t *testing.T, path, query string) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond) // for blocking queries
		defer cancel()
		resp, err := Serve(ctx, dc2, &pb.QueryRequest{Path: path, RawQuery: query})
		if err != nil {
			return
		}
		if resp.Status < 200 || resp.Status > 599 {
			t.Errorf("status = %d, want 200 to 599", resp.Status)
		}
		if _, err := proto.Marshal(resp); err != nil {
			t.Errorf("Marshal() of the response = %v, want nil", err)
		}
	})
}

func FuzzRelay(f *testing.F) {
	f.Add(int32(200), "Content-Type", "application/json", []byte("{}"), []byte(nil))
	f.Add(int32(204), api.HeaderIndex, "1\r\nSet-Cookie: a", []byte("body"), []byte{8, 7, 16, 1, 24, 9, 32, 1})
	f.Add(int32(-1), "", "", []byte(nil), []byte{0xff})
	f.Fuzz(func(t *testing.T, status int32, key, value string, body, brief []byte) {
		w := httptest.NewRecorder()
		resp := &pb.QueryResponse{Status: status, Headers: map[string]string{key: value}, Body: body}
		if b := (&pb.Brief{}); proto.Unmarshal(brief, b) == nil && len(brief) > 0 {
			resp.Brief = b
		}
		relay(w, "dc2", resp)
		for key, values := range w.Header() {
			if strings.ContainsAny(values[0], "\r\n") || key == "Set-Cookie" {
				t.Errorf("header %s = %q, want one line and no cookie", key, values[0])
			}
		}
		if got := w.Header().Get("Content-Type"); got != "" && got != "application/json" &&
			!strings.HasPrefix(got, "text/plain") {
			t.Errorf("content type = %q, want JSON or plain text", got)
		}
	})
}

// metaOf and putMeta restore the same headers, or metaOf returns nil.
func TestMeta_RestoresHeaders(t *testing.T) {
	usual := func(change func(h http.Header)) http.Header {
		h := http.Header{api.HeaderIndex: {"18446744073709551615"}, api.HeaderKnownLeader: {"true"},
			api.HeaderLastContact: {"7"}}
		change(h)
		return h
	}
	for name, tt := range map[string]struct {
		header http.Header
		brief  bool
	}{
		"usual":            {usual(func(http.Header) {}), true},
		"no leader":        {usual(func(h http.Header) { h.Set(api.HeaderKnownLeader, "false") }), true},
		"no index":         {usual(func(h http.Header) { h.Del(api.HeaderIndex) }), true},
		"index 0":          {usual(func(h http.Header) { h.Set(api.HeaderIndex, "0") }), false},
		"bad index":        {usual(func(h http.Header) { h.Set(api.HeaderIndex, "-1") }), false},
		"no contact":       {usual(func(h http.Header) { h.Del(api.HeaderLastContact) }), false},
		"bad contact":      {usual(func(h http.Header) { h.Set(api.HeaderLastContact, "1s") }), false},
		"no leader header": {usual(func(h http.Header) { h.Del(api.HeaderKnownLeader) }), false},
		"with a cause":     {usual(func(h http.Header) { h.Set(api.HeaderCause, "x") }), false},
		"nothing":          {http.Header{}, false},
	} {
		b := metaOf(tt.header)
		if (b != nil) != tt.brief {
			t.Errorf("%s: metaOf() = %v, want non-nil = %v", name, b, tt.brief)
		}
		if b == nil {
			continue
		}
		got := http.Header{}
		putMeta(got, b)
		if d := cmp.Diff(tt.header, got); d != "" {
			t.Errorf("%s: headers differ (-want +got):\n%s", name, d)
		}
	}
}

// A server of an earlier version, which does not send Brief, gets Headers.
func TestServe_HeadersForEarlierVersions(t *testing.T) {
	_, dc2, _ := twoDatacenters(t)
	for _, brief := range []bool{false, true} {
		resp, err := Serve(t.Context(), dc2, &pb.QueryRequest{Path: "/v1/status/leader", Brief: brief})
		if err != nil || (resp.GetBrief() != nil) != brief || (len(resp.GetHeaders()) > 0) == brief {
			t.Errorf("Serve() with Brief %v = %v, %v, want Brief, or Headers without Brief", brief, resp, err)
		}
	}
}

// The status for a caller in another datacenter has no address that this one could
// not connect to, and no error. Local callers see both.
func TestStatus_Forwarded(t *testing.T) {
	_, dc2, cluster2 := twoDatacenters(t)
	const secret = "203.0.113.7:22"
	cluster2.status = api.Status{Datacenter: "dc2", Datacenters: []api.DatacenterStatus{
		{Name: "dc2", Own: true, Cause: "own cause"},
		{Name: "dc3", State: api.HealthUnreachable, Cause: "dc3 does not respond at " + secret, Advice: "check " + secret,
			LastError: secret + ": connection refused", Paths: []api.PathStatus{{Address: secret, Health: "failing",
				LastError: "connection refused", Failure: "connection refused"}}},
	}}
	resp, err := Serve(t.Context(), dc2, &pb.QueryRequest{Path: api.StatusPath})
	body := string(resp.GetBody())
	if err != nil || resp.Status != 200 || strings.Contains(body, "203.0.113.7") || strings.Contains(body, "connection refused") ||
		!strings.Contains(body, "own cause") || !strings.Contains(body, `"state":"unreachable"`) {
		t.Errorf("forwarded status = %d %s, %v, want the state of dc3 without addresses and errors", resp.Status, body, err)
	}
	w := httptest.NewRecorder()
	dc2.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+api.StatusPath, nil))
	if body := w.Body.String(); strings.Count(body, secret) != 4 {
		t.Errorf("local status = %s, want the address %s in cause, advice, error and path", body, secret)
	}
}
