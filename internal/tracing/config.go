// SPDX-License-Identifier: MPL-2.0

package tracing

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"slices"
	"strconv"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdkresource "go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/wanfed/wanfed/internal/ratelog"
)

const (
	// defaultRatio is the part of the requests without a parent that is sampled.
	defaultRatio = 0.01

	envEndpoint       = "OTEL_EXPORTER_OTLP_ENDPOINT"
	envTracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	envProtocol       = "OTEL_EXPORTER_OTLP_PROTOCOL"
	envTracesProtocol = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
	envSampler        = "OTEL_TRACES_SAMPLER"
	envSamplerArg     = "OTEL_TRACES_SAMPLER_ARG"

	httpProtobuf = "http/protobuf"
)

// Config configures a Tracer. All fields are required.
type Config struct {
	// Service, DC, Node and Version identify the process in a trace.
	Service, DC, Node, Version string
	// Env returns the value of an environment variable. The library reads
	// further variables of the process itself.
	Env    func(name string) string
	Logger *slog.Logger
}

// New returns a Tracer, or nil if the environment has no collector. The caller
// closes it.
func New(ctx context.Context, cfg Config) (*Tracer, error) {
	endpoint, err := endpointOf(cfg.Env)
	if err != nil || endpoint == "" {
		return nil, err
	}
	options := []sdktrace.TracerProviderOption{}
	if name := cfg.Env(envSampler); name == "" {
		ratio, err := ratioOf(cfg.Env)
		if err != nil {
			return nil, err
		}
		options = append(options, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(ratio))))
	} else if !slices.Contains(samplers, name) {
		return nil, fmt.Errorf("%s=%q is unknown: use one of %q", envSampler, name, samplers)
	} else if _, err := ratioOf(cfg.Env); err != nil {
		return nil, err
	}
	about, err := sdkresource.New(ctx, sdkresource.WithTelemetrySDK(), sdkresource.WithAttributes(
		attribute.String("service.name", cfg.Service), attribute.String("service.version", cfg.Version),
		attribute.String("service.instance.id", cfg.Node+"."+cfg.DC), attribute.String("wanfed.datacenter", cfg.DC),
	), sdkresource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("traces: %w; check OTEL_RESOURCE_ATTRIBUTES", err)
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(endpoint)) // connects later
	if err != nil {
		return nil, fmt.Errorf("traces: %w; check the variables OTEL_EXPORTER_OTLP_...", err)
	}
	failures := ratelog.New[string](cfg.Logger)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		failures.Log("export", slog.LevelWarn, "cannot send traces", "err", err)
	}))
	options = append(options, sdktrace.WithResource(about), sdktrace.WithBatcher(exporter))
	return newTracer(sdktrace.NewTracerProvider(options...)), nil
}

var samplers = []string{
	"always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio",
}

// endpointOf returns the URL to which spans are sent, or "" if traces are off.
func endpointOf(env func(string) string) (string, error) {
	if env("OTEL_SDK_DISABLED") == "true" || env("OTEL_TRACES_EXPORTER") == "none" {
		return "", nil
	}
	name, path := envTracesEndpoint, []string{}
	if env(name) == "" {
		name, path = envEndpoint, []string{"v1", "traces"}
	}
	if env(name) == "" {
		return "", nil
	}
	u, err := url.Parse(env(name))
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("%s is not a URL: write it like https://collector.example:4318", name)
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return "", fmt.Errorf("%s=%s is not encrypted: use https://, or a collector at a loopback address", name, u.Redacted())
	}
	if p := cmp.Or(env(envTracesProtocol), env(envProtocol), httpProtobuf); p != httpProtobuf {
		return "", fmt.Errorf("%s=%q is not supported: use %s, which collectors receive at port 4318", envProtocol, p, httpProtobuf)
	}
	return u.JoinPath(path...).String(), nil
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// ratioOf returns the part of the requests without a parent that is sampled.
func ratioOf(env func(string) string) (float64, error) {
	text := env(envSamplerArg)
	if text == "" {
		return defaultRatio, nil
	}
	ratio, err := strconv.ParseFloat(text, 64)
	if err != nil || !(ratio >= 0 && ratio <= 1) {
		return 0, fmt.Errorf("%s=%q is not a number from 0 to 1", envSamplerArg, text)
	}
	return ratio, nil
}
