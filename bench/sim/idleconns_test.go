// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"context"
	"net"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/wanfed"
)

// TestIdleConnectionCost measures the cost of the idle gRPC connections that a
// wanfed server keeps to other datacenters. The simulated servers do not keep
// them.
func TestIdleConnectionCost(t *testing.T) {
	if os.Getenv("WANFED_BENCH") == "" {
		t.Skip("a measurement, not a test: set WANFED_BENCH=1 to run it")
	}
	testutil.Bubble(t, func(t *testing.T) {
		const n = 300
		w := newWorld(t, 2, 1)
		for _, s := range w.sites {
			w.start(s)
		}
		defer func() {
			w.close()
			time.Sleep(drainTime)
		}()
		w.converge(t)
		time.Sleep(*settle)
		without := w.read()
		openConnections(t, w.sites[0].servers[0], w.sites[1].dc, n)
		with := w.read()
		time.Sleep(idleTime)
		after := w.read()
		const ends = 2 * n
		t.Logf("per end of an idle connection: %.0f KiB of heap and stacks, %.1f goroutines, %.1f B/s",
			(with.heap-without.heap)/ends/1024, (with.goroutines-without.goroutines)/ends,
			float64(after.bytes-with.bytes)/ends/idleTime.Seconds())
	})
}

// openConnections opens connections as package server does. They stay open
// until the test ends.
func openConnections(t *testing.T, v *server, dc string, connections int) {
	for range connections {
		cc, err := api.NewGRPCClient(func(ctx context.Context) (net.Conn, error) {
			return v.dialer.Dial(ctx, wanfed.Target{DC: dc}, wanfed.ProtoGRPC)
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cc.Close() })
		_, err = healthpb.NewHealthClient(cc).Check(t.Context(), &healthpb.HealthCheckRequest{},
			grpc.WaitForReady(true))
		if err != nil {
			t.Fatal(err)
		}
	}
}
