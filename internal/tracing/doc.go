// SPDX-License-Identifier: MPL-2.0

// Package tracing records spans of requests with OpenTelemetry, and sends them
// to a collector. It is off by default.
//
//	t, err := tracing.New(ctx, tracing.Config{Service: "wanfed-server", Env: os.Getenv, ...})
//	defer t.Close()
//	ctx, span := t.Request(ctx, "GET /v1/kv/{key...}", tracing.Parent{})
//	defer span.End(false)
//
// # Settings
//
// The environment variables are those of OpenTelemetry. With
// OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, spans are
// sent with OTLP over HTTP. The connection must use TLS, unless the address is a
// loopback address. Without OTEL_TRACES_SAMPLER, one of 100 requests without a
// parent is sampled, or the part in OTEL_TRACES_SAMPLER_ARG.
//
// # Parents
//
// A trace continues at the next server by the header traceparent of the W3C. A
// parent decides whether its request is sampled. Clients and servers of other
// datacenters can request that a trace is sampled, but at most 50 times per
// second and datacenter: a stolen certificate cannot flood the collector. Other
// headers, such as tracestate and baggage, are ignored.
//
// # Content
//
// A span has the pattern of a route or the name of a method, the datacenters, and
// a status code. It never has a path, a key, a value or the text of an error.
//
// # Cost and goroutines
//
// A nil Tracer, and all functions while no Tracer exists in the process, do
// nothing: about 5 ns each. The library queues at most 2,048 spans, and drops further
// ones. It has one goroutine, which Close joins.
package tracing
