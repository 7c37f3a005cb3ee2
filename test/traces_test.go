// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// collector receives spans with OTLP.
type collector struct {
	url string

	mu    sync.Mutex
	raw   []byte // all received bytes
	spans []span
}

// span is a span with the instance that recorded it.
type span struct{ trace, instance, name string }

func newCollector(t *testing.T) *collector {
	c := &collector{}
	srv := httptest.NewServer(c)
	t.Cleanup(srv.Close)
	c.url = srv.URL
	return c
}

// ServeHTTP implements http.Handler.
func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err == nil && r.Header.Get("Content-Encoding") == "gzip" {
		var zip *gzip.Reader
		if zip, err = gzip.NewReader(bytes.NewReader(body)); err == nil {
			body, err = io.ReadAll(zip)
		}
	}
	req := &collectorpb.ExportTraceServiceRequest{}
	if err == nil {
		err = proto.Unmarshal(body, req)
	}
	if err != nil || r.URL.Path != "/v1/traces" {
		http.Error(w, fmt.Sprint(r.URL.Path, err), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw = append(c.raw, body...)
	for _, from := range req.GetResourceSpans() {
		instance := ""
		for _, a := range from.GetResource().GetAttributes() {
			if a.GetKey() == "service.instance.id" {
				instance = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range from.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans = append(c.spans, span{fmt.Sprintf("%x", s.GetTraceId()), instance, s.GetName()})
			}
		}
	}
}

// await waits until a trace has all spans, "INSTANCE NAME".
func (c *collector) await(t *testing.T, trace string, want ...string) {
	t.Helper()
	testutil.Await(t, waitLimit, "spans of trace "+trace, func(context.Context) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		var got []string
		for _, s := range c.spans {
			if s.trace == trace {
				got = append(got, s.instance+" "+s.name)
			}
		}
		for _, w := range want {
			if !slices.Contains(got, w) {
				return fmt.Errorf("spans are %q, want also %q", got, w)
			}
		}
		return nil
	})
}

// TestTraces sends a traced request of an operator of dc1 for dc2: its trace has
// the spans of both datacenters, up to the log of the leader. Spans have no key,
// value or path.
func TestTraces(t *testing.T) {
	c := newCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.url)
	t.Setenv("OTEL_TRACES_SAMPLER_ARG", "0") // only requests with a sampled parent
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
	l := newLoopback(t)
	dc1 := l.start("dc1", "dc1")
	l.args = []string{"--operators-from", "dc1", "--allow-remote-writes-from", "dc1"}
	dc2 := l.start("dc2", "dc1", dc1.gateway.WAN)
	l.federated(dc1, dc2)

	put := func(base, operatorDC, query, trace string) error {
		cfg := l.client(t, tlsutil.RoleOperator, "op", operatorDC, "")
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}, Timeout: waitLimit}
		url := strings.Replace(base, "http:", "https:", 1) + "/v1/kv/planted-key" + query
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url, strings.NewReader("planted-value"))
		if err != nil {
			return err
		}
		req.Header.Set("traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(resp.Body)
		if resp.Body.Close(); resp.StatusCode != http.StatusOK {
			err = errors.New(string(body))
		}
		return err
	}
	const route = "PUT /v1/kv/{key...}"
	const forwarded = "4bf92f3577b34da6a3ce929d0e0e4736"
	if err := put(dc1.server.HTTP, "dc1", "?dc=dc2", forwarded); err != nil {
		t.Fatalf("PUT in dc2 through dc1 = %v, want nil", err)
	}
	c.await(t, forwarded, "srv1.dc1 "+route, "srv1.dc1 forward", "srv1.dc2 "+route, "srv1.dc2 raft apply")

	// A follower forwards a write to the leader.
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	follower, err := subprocess.StartServer(ctx, subprocess.ServerConfig{
		Program: []string{l.bin}, Dir: filepath.Join(l.dir, "dc2-srv2"), DC: "dc2", Node: "srv2",
		TLS: l.files(tlsutil.RoleServer, "srv2", "dc2"), PrimaryDC: "dc1", PrimaryGateways: []string{dc1.gateway.WAN},
		LogLevel: l.log, Port: unusedPort(t), RetryJoin: []string{dc2.server.Addr},
	})
	if err != nil {
		t.Fatal(err)
	}
	l.keep(follower.Process)
	const atFollower = "5bf92f3577b34da6a3ce929d0e0e4737"
	testutil.Await(t, waitLimit, "a write at the follower", func(context.Context) error {
		return put(follower.HTTP, "dc2", "", atFollower)
	})
	c.await(t, atFollower, "srv2.dc2 "+route, "srv2.dc2 /wanfed.v1.StoreService/Commit",
		"srv1.dc2 /wanfed.v1.StoreService/Commit", "srv1.dc2 raft apply")

	c.mu.Lock()
	defer c.mu.Unlock()
	for _, secret := range []string{"planted-key", "planted-value"} {
		if bytes.Contains(c.raw, []byte(secret)) {
			t.Errorf("the spans contain %q", secret)
		}
	}
	for _, s := range c.spans {
		if s.trace != forwarded && s.trace != atFollower {
			t.Errorf("span %+v belongs to a request without a parent, which is not sampled", s)
		}
	}
}
