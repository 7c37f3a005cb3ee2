// SPDX-License-Identifier: MPL-2.0

package tracing

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"
)

// Header is the name of the W3C header, in lower case as in the metadata of gRPC.
const Header = "traceparent"

// Names of attributes.
const (
	Datacenter = "wanfed.target_datacenter" // to which a request is sent
	HTTPStatus = "http.response.status_code"
	GRPCCode   = "rpc.grpc.status_code"
)

const (
	// maxForced bounds the parents per second of one source that are sampled
	// because the parent is; maxForcedBurst bounds those at once.
	maxForced      = 50
	maxForcedBurst = 100
	// maxSources bounds the sources with a limit of their own.
	maxSources = 1024
	// closeTimeout bounds the time to send the last spans.
	closeTimeout = 2 * time.Second
)

// tracers is the number of open Tracers of the process.
var tracers atomic.Int32

// Tracer records spans. A nil Tracer records none.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer

	mu     sync.Mutex
	forced map[string]*rate.Limiter // by source
}

func newTracer(p *sdktrace.TracerProvider) *Tracer {
	tracers.Add(1)
	return &Tracer{provider: p, tracer: p.Tracer("wanfed"), forced: map[string]*rate.Limiter{}}
}

// Close sends the recorded spans and stops the Tracer.
func (t *Tracer) Close() error {
	if t == nil {
		return nil
	}
	tracers.Add(-1)
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return t.provider.Shutdown(ctx)
}

// Parent is the parent that a request names.
type Parent struct {
	// Header is the value of the header traceparent. "": no parent.
	Header string
	// Trusted is true for a server of this datacenter, whose decision to sample
	// has no limit.
	Trusted bool
	// Source is the datacenter of the peer that has sent the header.
	Source string
}

// Remote returns a context with a parent, for Request. It returns ctx if ctx has
// a span, or if the header is invalid.
func (t *Tracer) Remote(ctx context.Context, p Parent) context.Context {
	if t == nil || p.Header == "" || trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	parent := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{Header: p.Header})
	sc := trace.SpanContextFromContext(parent)
	if !sc.IsValid() {
		return ctx
	}
	if sc.IsSampled() && !p.Trusted && !t.mayForce(p.Source) {
		sc = sc.WithTraceFlags(sc.TraceFlags().WithSampled(false))
	}
	return trace.ContextWithRemoteSpanContext(ctx, sc)
}

// mayForce reports whether source may have another request sampled.
func (t *Tracer) mayForce(source string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.forced[source] == nil && len(t.forced) >= maxSources {
		source = ""
	}
	l := t.forced[source]
	if l == nil {
		l = rate.NewLimiter(maxForced, maxForcedBurst)
		t.forced[source] = l
	}
	return l.Allow()
}

// Request returns a context with the span of a request that the process serves.
// The parent is that of ctx or p. The caller must end the span.
func (t *Tracer) Request(ctx context.Context, name string, p Parent) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	ctx, s := t.tracer.Start(t.Remote(ctx, p), name, trace.WithSpanKind(trace.SpanKindServer))
	return ctx, Span{s}
}

// Start returns a context with a span below that of ctx, for a part of a
// request. Without a recorded span in ctx, it does nothing.
func Start(ctx context.Context, name string) (context.Context, Span) {
	return start(ctx, name, trace.SpanKindInternal)
}

// StartCall is Start for a call to another server.
func StartCall(ctx context.Context, name string) (context.Context, Span) {
	return start(ctx, name, trace.SpanKindClient)
}

func start(ctx context.Context, name string, kind trace.SpanKind) (context.Context, Span) {
	if !Enabled() {
		return ctx, Span{}
	}
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, Span{}
	}
	ctx, s := parent.TracerProvider().Tracer("wanfed").Start(ctx, name, trace.WithSpanKind(kind))
	return ctx, Span{s}
}

// Enabled reports whether the process has a Tracer.
func Enabled() bool { return tracers.Load() > 0 }

// HeaderOf returns the header for a request to another server that is a part of
// the request of ctx, or "".
func HeaderOf(ctx context.Context) string {
	if !Enabled() {
		return ""
	}
	header := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, header)
	return header[Header]
}

// Span is a part of a trace. The zero value records nothing.
type Span struct{ span trace.Span }

// Set sets an attribute. value must not be a key, a value or free text.
func (s Span) Set(name, value string) {
	if s.span != nil && s.span.IsRecording() {
		s.span.SetAttributes(attribute.String(name, value))
	}
}

// End ends the span.
func (s Span) End(failed bool) {
	if s.span == nil {
		return
	}
	if failed {
		s.span.SetStatus(codes.Error, "")
	}
	s.span.End()
}
