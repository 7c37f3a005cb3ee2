// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
)

func TestServeRefuses(t *testing.T) {
	_, dc2, src2 := twoDatacenters(t)
	src2.query = func(context.Context, string, *pb.QueryRequest) (*pb.QueryResponse, error) {
		t.Error("a query was sent on twice")
		return nil, ErrNoPath
	}
	for _, tt := range []struct {
		path, query string
		status      int32
		body        string
	}{
		{"/v1/status/leader", "dc=dc3", 400, "datacenter dc2 received a request for datacenter dc3: a request is forwarded only once"},
		{"/v1/status/leader", "dc=dc2", 200, `"10.2.0.11:8300"`},
		{"/v1/none", "", 404, `no such endpoint: "/v1/none"; docs/kv-and-catalog.md lists those of Consul that are here`},
		{"/metrics", "", 400, `bad path "/metrics": it must be one of the HTTP API, under /v1/`},
		{"", "", 400, `bad path "": it must be one of the HTTP API, under /v1/`},
		{"http://x/v1/status/leader", "", 400, `bad path "http://x/v1/status/leader": it must be one of the HTTP API, under /v1/`},
		{"/v1/status/leader?dc=dc3", "", 400, `bad path "/v1/status/leader?dc=dc3": it must be one of the HTTP API, under /v1/`},
		{"/v1/%zz", "", 400, `bad path "/v1/%zz": it must be one of the HTTP API, under /v1/`},
		{"/v1/agent/members", "wan=x", 400, `bad wan "x": it must be 1 or 0`},
	} {
		resp, err := Serve(t.Context(), dc2, &pb.QueryRequest{Path: tt.path, RawQuery: tt.query})
		if err != nil {
			t.Errorf("%s?%s: %v", tt.path, tt.query, err)
			continue
		}
		if resp.Status != tt.status || string(resp.Body) != tt.body {
			t.Errorf("%s?%s: %d %q, want %d %q", tt.path, tt.query, resp.Status, resp.Body, tt.status, tt.body)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if resp, err := Serve(ctx, dc2, &pb.QueryRequest{Path: "/v1/internal/federation-states", RawQuery: "index=22"}); err != context.Canceled {
		t.Errorf("after its end: %v, %v", resp, err)
	}
}

func TestServeBoundsTheAnswer(t *testing.T) {
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
			t.Errorf("%d bytes: status %d, message of %d bytes", size, resp.Status, proto.Size(resp))
		}
	}
}

func FuzzServe(f *testing.F) {
	_, dc2, src2 := twoDatacenters(f)
	src2.query = func(context.Context, string, *pb.QueryRequest) (*pb.QueryResponse, error) { return nil, ErrNoPath }
	for _, seed := range []string{"/v1/status/leader", "/v1/internal/federation-state/dc2", "/v1/internal/federation-state/%2F..", "/v1//x/../..", "/v1/\x00\xff", "*", "//h"} {
		f.Add(seed, "dc=dc2&index=1&wait=0s&pretty")
	}
	f.Add("/v1/agent/members", "wan=%FF;")
	f.Fuzz(func(t *testing.T, path, query string) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond) // queries that block
		defer cancel()
		resp, err := Serve(ctx, dc2, &pb.QueryRequest{Path: path, RawQuery: query})
		if err != nil {
			return
		}
		if resp.Status < 200 || resp.Status > 599 {
			t.Errorf("status %d", resp.Status)
		}
		if _, err := proto.Marshal(resp); err != nil {
			t.Error(err)
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
				t.Errorf("header %s: %q", key, values[0])
			}
		}
		if got := w.Header().Get("Content-Type"); got != "" && got != "application/json" && !strings.HasPrefix(got, "text/plain") {
			t.Errorf("content type %q", got)
		}
	})
}

func FuzzAllowedHost(f *testing.F) {
	for _, seed := range []string{"127.0.0.1:8500", "[::1]:80", "localhost.", "a.example:1", "[fe80::1%eth0]:1", ":", "[", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, host string) {
		if allowedHost(host, nil) && strings.HasSuffix(strings.ToLower(host), ".example") {
			t.Errorf("%q is allowed", host)
		}
	})
}
