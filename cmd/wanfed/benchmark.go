// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/diagnose"
	"github.com/wanfed/wanfed/internal/output"
)

// Bounds of the flags of benchmark. They protect the datacenters.
const (
	maxBenchmark     = 10 * time.Minute
	maxBenchmarkRate = 2000
	// benchmarkTimeout bounds one request.
	benchmarkTimeout = 5 * time.Second
)

func newBenchmark() *cobra.Command {
	var cfg diagnose.BenchmarkConfig
	c := addReadFlags(&cobra.Command{
		Use:   "benchmark DC",
		Short: "Measure the path to a datacenter",
		Long: `Measure latency, throughput and loss of requests to another datacenter. The local
server forwards each request through the gateways, over the connections that it
uses for all requests. The requests read the federation states of the other
datacenter.

The first half of the time has one request at a time, at most 20 per second: the
latency. The second half has 16 requests at a time: the throughput. It is that of
small responses, not that of the link. A request without a response in 5 s, or
with an error, is lost.

The exit status is 1 if all requests are lost.`,
		Example: `  wanfed benchmark dc2
  wanfed benchmark dc2 --duration 1m --rate 50
  wanfed benchmark dc2 --output json | jq .p99`,
		Args: labelArg("DC", "datacenter"),
	}, func(cmd *cobra.Command, args []string, cl client, out output.Printer) error {
		switch {
		case cfg.Duration < time.Second || cfg.Duration > maxBenchmark:
			return usagef("--duration %v: must be 1s to %v", cfg.Duration, maxBenchmark)
		case cfg.Rate < 1 || cfg.Rate > maxBenchmarkRate:
			return usagef("--rate %d: must be 1 to %d", cfg.Rate, maxBenchmarkRate)
		}
		cfg.Client, cfg.Datacenter, cfg.Timeout = cl.Client, args[0], benchmarkTimeout
		if err := checkDatacenter(cmd.Context(), cl.Client, args[0], nil); err != nil {
			return err
		}
		if _, err := cl.Status(cmd.Context(), cl.opts); err != nil {
			return err
		}
		stop := output.Waiting(cmd.ErrOrStderr(), fmt.Sprintf("measuring for %v", cfg.Duration))
		r := diagnose.Benchmark(cmd.Context(), cfg)
		stop()
		if err := out.Print(r, func() error { return printBenchmark(out, r, cfg.Rate) }); err != nil {
			return err
		}
		if r.Lost == r.Requests {
			return fmt.Errorf("no response of %s; see: wanfed diagnose %s", args[0], args[0])
		}
		return nil
	})
	c.Flags().DurationVar(&cfg.Duration, "duration", 10*time.Second, "time of the measurement")
	c.Flags().IntVar(&cfg.Rate, "rate", 200, "maximum number of requests per second")
	c.ValidArgsFunction = completeArgs(completeDatacenters)
	return c
}

func printBenchmark(out output.Printer, r diagnose.BenchmarkResult, rate int) error {
	ms := func(s float64) string {
		return time.Duration(s * float64(time.Second)).Round(10 * time.Microsecond).String()
	}
	loss := 0.0
	if r.Requests > 0 {
		loss = 100 * float64(r.Lost) / float64(r.Requests)
	}
	rows := [][]string{
		{"Latency:", fmt.Sprintf("min %s, p50 %s, p90 %s, p99 %s, max %s", ms(r.Min), ms(r.P50), ms(r.P90), ms(r.P99), ms(r.Max))},
		{"Throughput:", fmt.Sprintf("%.0f requests/s (at most %d), %s/s", r.RequestsPerSecond, rate, output.Size(int64(r.BytesPerSecond)))},
		{"Loss:", fmt.Sprintf("%d of %d requests (%.1f %%)", r.Lost, r.Requests, loss)},
	}
	if r.LastError != "" {
		rows = append(rows, []string{"Last error:", r.LastError})
	}
	return output.WriteFields(out.W, rows)
}
