// SPDX-License-Identifier: MPL-2.0

package tracing

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/wanfed/wanfed/internal/testutil"
)

const sampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func env(pairs ...string) func(string) string {
	values := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		values[pairs[i]] = pairs[i+1]
	}
	return func(name string) string { return values[name] }
}

func TestEndpointOf(t *testing.T) {
	for _, tt := range []struct {
		env     func(string) string
		want    string
		failure string
	}{
		{env: env()},
		{env: env(envEndpoint, "https://c.example:4318"), want: "https://c.example:4318/v1/traces"},
		{env: env(envEndpoint, "https://c.example/otlp/"), want: "https://c.example/otlp/v1/traces"},
		{env: env(envTracesEndpoint, "https://c.example/x"), want: "https://c.example/x"},
		{env: env(envEndpoint, "http://127.0.0.1:4318"), want: "http://127.0.0.1:4318/v1/traces"},
		{env: env(envEndpoint, "http://[::1]:4318"), want: "http://[::1]:4318/v1/traces"},
		{env: env(envEndpoint, "http://localhost:4318"), want: "http://localhost:4318/v1/traces"},
		{env: env(envEndpoint, "https://c.example", "OTEL_SDK_DISABLED", "true")},
		{env: env(envEndpoint, "https://c.example", "OTEL_TRACES_EXPORTER", "none")},
		{env: env(envEndpoint, "http://joe:s3cret@c.example:4318"), failure: "http://joe:xxxxx@c.example:4318 is not encrypted"},
		{env: env(envEndpoint, "http://localhost.example:4318"), failure: "is not encrypted"},
		{env: env(envEndpoint, "c.example:4318"), failure: "is not a URL"},
		{env: env(envEndpoint, "https://c.example", envProtocol, "grpc"), failure: `"grpc" is not supported`},
	} {
		got, err := endpointOf(tt.env)
		if got != tt.want || (err == nil) != (tt.failure == "") || err != nil && !strings.Contains(err.Error(), tt.failure) {
			t.Errorf("endpointOf() = %q, %v, want %q, %q", got, err, tt.want, tt.failure)
		}
	}
}

func TestNew_Environment(t *testing.T) {
	for _, tt := range []struct{ name, value, failure string }{
		{envSamplerArg, "0.5", ""},
		{envSamplerArg, "2", "is not a number from 0 to 1"},
		{envSamplerArg, "NaN", "is not a number from 0 to 1"},
		{envSampler, "always_on", ""},
		{envSampler, "sometimes", "is unknown"},
	} {
		tracer, err := New(t.Context(), Config{
			Service: "s", DC: "dc1", Node: "srv1", Version: "0", Logger: slog.New(slog.DiscardHandler),
			Env: env(envEndpoint, "http://127.0.0.1:1", tt.name, tt.value),
		})
		if (err == nil) != (tt.failure == "") || err != nil && !strings.Contains(err.Error(), tt.failure) {
			t.Errorf("New() with %s=%s = %v, want %q", tt.name, tt.value, err, tt.failure)
		}
		if err := tracer.Close(); err != nil {
			t.Errorf("Close() = %v, want nil", err)
		}
	}
	if tracer, err := New(t.Context(), Config{Env: env()}); tracer != nil || err != nil || Enabled() {
		t.Errorf("New() without variables = %v, %v, enabled %t, want nil and off", tracer, err, Enabled())
	}
}

// record returns a Tracer that samples nothing without a parent, and its spans.
func record(t testing.TB) (*Tracer, *tracetest.InMemoryExporter) {
	spans := tracetest.NewInMemoryExporter()
	tracer := newTracer(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0)))))
	t.Cleanup(func() { _ = tracer.Close() })
	return tracer, spans
}

// A stolen certificate of another datacenter, or a client, cannot flood the
// collector with requests whose parent is sampled. It does not take the limit of
// another datacenter.
func TestRequest_Forced(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		tracer, spans := record(t)
		send := func(n int, p Parent) int {
			spans.Reset()
			for range n {
				_, s := tracer.Request(t.Context(), "r", p)
				s.End(false)
			}
			return len(spans.GetSpans())
		}
		for _, tt := range []struct {
			name string
			p    Parent
			want int
		}{
			{"a flood of dc3", Parent{Header: sampled, Source: "dc3"}, maxForcedBurst},
			{"dc2 during it", Parent{Header: sampled, Source: "dc2"}, maxForcedBurst},
			{"a server of this datacenter", Parent{Header: sampled, Source: "dc1", Trusted: true}, 1000},
			{"no parent", Parent{Source: "dc4"}, 0},
			{"a parent that is not sampled", Parent{Header: sampled[:len(sampled)-1] + "0", Source: "dc4"}, 0},
			{"no header of the W3C", Parent{Header: "x", Source: "dc4"}, 0},
		} {
			if got := send(1000, tt.p); got != tt.want {
				t.Errorf("%s: spans = %d of 1000, want %d", tt.name, got, tt.want)
			}
		}
		time.Sleep(time.Second)
		if got := send(1000, Parent{Header: sampled, Source: "dc3"}); got != maxForced {
			t.Errorf("spans after a second = %d, want %d", got, maxForced)
		}
		for i := range 2 * maxSources {
			tracer.mayForce(strings.Repeat("x", i))
		}
		if n := len(tracer.forced); n > maxSources+1 {
			t.Errorf("sources with a limit = %d, want at most %d", n, maxSources+1)
		}
	})
}

// The parts of a request, and the requests that it causes, have its trace.
func TestStart_ChildrenAndHeader(t *testing.T) {
	tracer, spans := record(t)
	ctx, request := tracer.Request(t.Context(), "request", Parent{Header: sampled, Trusted: true})
	cctx, call := StartCall(ctx, "call")
	header := HeaderOf(cctx)
	rctx := tracer.Remote(t.Context(), Parent{Header: header, Trusted: true})
	_, served := tracer.Request(rctx, "served", Parent{Header: "ignored, because the context has a parent"})
	served.End(true)
	call.End(false)
	_, part := Start(ctx, "part")
	part.Set(GRPCCode, "OK")
	part.End(false)
	request.End(false)
	parents := map[string]trace.SpanID{}
	ids := map[string]trace.SpanID{}
	for _, s := range spans.GetSpans() {
		if got := s.SpanContext.TraceID().String(); got != sampled[3:35] {
			t.Errorf("trace of %s = %s, want %s", s.Name, got, sampled[3:35])
		}
		parents[s.Name], ids[s.Name] = s.Parent.SpanID(), s.SpanContext.SpanID()
	}
	for child, parent := range map[string]string{"call": "request", "part": "request", "served": "call"} {
		if parents[child] != ids[parent] || !ids[parent].IsValid() {
			t.Errorf("parent of %s = %v, want %s: %v", child, parents[child], parent, ids[parent])
		}
	}
	if _, s := Start(t.Context(), "alone"); s.span != nil {
		t.Error("Start() without a request has a span, want none")
	}
}

func TestTracer_Nil(t *testing.T) {
	var tracer *Tracer
	ctx, s := tracer.Request(t.Context(), "r", Parent{Header: sampled})
	s.Set(GRPCCode, "OK")
	s.End(true)
	if header := HeaderOf(ctx); header != "" || tracer.Close() != nil || tracer.Remote(ctx, Parent{Header: sampled}) != ctx {
		t.Errorf("a nil Tracer returned the header %q or a parent, want none", header)
	}
}

func FuzzRemote(f *testing.F) {
	f.Add(sampled)
	f.Add("00-00000000000000000000000000000000-0000000000000000-00")
	f.Add("ff-" + sampled[3:] + "-more")
	tracer, _ := record(f)
	f.Fuzz(func(t *testing.T, header string) {
		ctx := tracer.Remote(context.Background(), Parent{Header: header, Trusted: true})
		sc := trace.SpanContextFromContext(ctx)
		if sc.IsValid() != (HeaderOf(ctx) != "") || sc.TraceState().Len() > 0 {
			t.Errorf("Remote(%q) = %v with header %q", header, sc, HeaderOf(ctx))
		}
		if sc.IsValid() && !strings.Contains(strings.ToLower(header), sc.TraceID().String()) {
			t.Errorf("Remote(%q) has trace %v, want one of the header", header, sc.TraceID())
		}
	})
}

func BenchmarkOff(b *testing.B) {
	var tracer *Tracer
	for b.Loop() {
		ctx, s := tracer.Request(b.Context(), "r", Parent{})
		_, part := Start(ctx, "part")
		part.End(false)
		s.End(false)
	}
}

func BenchmarkNotSampled(b *testing.B) {
	tracer, _ := record(b)
	b.ReportAllocs()
	for b.Loop() {
		ctx, s := tracer.Request(b.Context(), "r", Parent{})
		_, part := Start(ctx, "part")
		part.End(false)
		s.End(false)
	}
}
