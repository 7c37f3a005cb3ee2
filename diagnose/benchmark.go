// SPDX-License-Identifier: MPL-2.0

package diagnose

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/api"
)

// benchmarkPath is the path of the requests of Benchmark: every server has
// federation states, and any caller that reads the status may read them.
const benchmarkPath = "/v1/internal/federation-states"

// BenchmarkConfig configures Benchmark.
type BenchmarkConfig struct {
	// Client calls the local server, which forwards the requests. Required.
	Client *api.Client
	// Datacenter responds to the requests. Required.
	Datacenter string
	// Duration is the time in which requests start: half of it for latency, and
	// half for throughput. Required.
	Duration time.Duration
	// Rate bounds the requests per second in both halves. Required.
	Rate int
	// Timeout bounds one request. A later response is lost. Required.
	Timeout time.Duration
}

// parallel is the number of requests in flight that measure the throughput.
const parallel = 16

// latencyRate bounds the rate of the requests that measure the latency. They do
// not queue behind each other.
const latencyRate = 20

// BenchmarkResult is the result of Benchmark. Times are in seconds.
type BenchmarkResult struct {
	Datacenter string `json:"datacenter"`
	Requests   int    `json:"requests"`
	// Lost is the number of requests without a response in time, or with an
	// error.
	Lost      int    `json:"lost"`
	LastError string `json:"last_error,omitempty"`

	// The latency of one request at a time, of those with a response.
	Min float64 `json:"min"`
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`

	// The throughput of 16 requests at a time. Bytes are those of the bodies of
	// the responses.
	RequestsPerSecond float64 `json:"requests_per_second"`
	BytesPerSecond    float64 `json:"bytes_per_second"`
}

// Benchmark sends requests to another datacenter through the local server and
// the gateways, until cfg.Duration is over or ctx ends. The requests are reads
// that any server serves from memory.
func Benchmark(ctx context.Context, cfg BenchmarkConfig) BenchmarkResult {
	half := cfg.Duration / 2
	one := cfg.load(ctx, 1, min(latencyRate, cfg.Rate), half)
	many := cfg.load(ctx, parallel, cfg.Rate, half)
	res := BenchmarkResult{
		Datacenter: cfg.Datacenter, Requests: one.sent + many.sent, Lost: one.lost + many.lost,
		LastError: one.lastError,
	}
	if many.lastError != "" {
		res.LastError = many.lastError
	}
	slices.Sort(one.latencies)
	for _, p := range []struct {
		to       *float64
		quantile float64
	}{{&res.Min, 0}, {&res.P50, 0.5}, {&res.P90, 0.9}, {&res.P99, 0.99}, {&res.Max, 1}} {
		*p.to = quantile(one.latencies, p.quantile).Seconds()
	}
	if many.took > 0 {
		res.RequestsPerSecond = float64(len(many.latencies)) / many.took.Seconds()
		res.BytesPerSecond = float64(many.bytes) / many.took.Seconds()
	}
	return res
}

// quantile returns the quantile q, from 0 to 1, of sorted values: the smallest
// value that at least this fraction does not exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	i := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// load is the result of requests.
type load struct {
	sent, lost int
	lastError  string
	latencies  []time.Duration // of the responses
	bytes      int
	took       time.Duration
}

// load sends requests with a number of workers for a time, at most rate per
// second.
func (cfg BenchmarkConfig) load(ctx context.Context, workers, rate int, d time.Duration) (l load) {
	start := time.Now()
	timeUp := time.After(d)
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	var mu sync.Mutex
	var all sync.WaitGroup
	next := make(chan struct{})
	for range workers {
		all.Go(func() {
			for range next {
				began := time.Now()
				rctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
				body, err := cfg.Client.Body(rctx, benchmarkPath+"?dc="+cfg.Datacenter)
				cancel()
				if ctx.Err() != nil {
					continue // the end of the benchmark is not a loss
				}
				mu.Lock()
				if l.sent++; err != nil {
					l.lost++
					l.lastError = describe(err)
				} else {
					l.latencies = append(l.latencies, time.Since(began))
					l.bytes += len(body)
				}
				mu.Unlock()
			}
		})
	}
	for done := false; !done; {
		select {
		case <-ctx.Done():
			done = true
		case <-timeUp:
			done = true
		case <-tick.C:
			select {
			case next <- struct{}{}:
			case <-ctx.Done():
			case <-timeUp:
				done = true
			}
		}
	}
	close(next)
	all.Wait()
	l.took = time.Since(start)
	return l
}
