// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
)

// TestNothingLeaks restarts what is far of a server, again and again, and compares its goroutines and open files before and after.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	l := lab.New(t)
	dc1, dc2 := l.Add(1, 1), l.Add(1, 1)
	dc1.Start()
	dc2.Start()
	awaitWhole(t, l, promptly, "start")
	cycle := func(gateways, servers int) {
		for range gateways {
			dc2.Gateways[0].Kill()
			dc2.Gateways[0].StartGateway()
			testutil.Await(t, promptly, "gateway restarted", func(ctx context.Context) error { return whole(ctx, l) })
		}
		for range servers {
			lab.One(dc2).Kill()
			lab.One(dc2).StartServer()
			testutil.Await(t, promptly, "server restarted", func(ctx context.Context) error { return whole(ctx, l) })
		}
	}
	cycle(2, 1) // what is made once
	goroutines, files := usage(t, lab.One(dc1))
	through, err := dc1.Gateways[0].OpenFiles()
	if err != nil {
		t.Fatal(err)
	}
	cycle(20, 5)

	var g, f, th int
	took := testutil.Await(t, 90*time.Second, "as many goroutines and files as before", func(context.Context) error {
		if g, f = usage(t, lab.One(dc1)); g > goroutines+slack || f > files+slack {
			return fmt.Errorf("%d goroutines and %d files; there were %d and %d", g, f, goroutines, files)
		}
		if th, err = dc1.Gateways[0].OpenFiles(); err != nil || th > through+slack {
			return fmt.Errorf("the gateway has %d files, there were %d: %w", th, through, err)
		}
		return nil
	})
	t.Logf("server before: %d goroutines, %d files; after: %d and %d. Its gateway: %d files, %d. Reached %v after the last restart",
		goroutines, files, g, f, through, th, took.Round(time.Millisecond))
}

// slack is what comes and goes: connections for requests, streams of gossip.
const slack = 8

func usage(t *testing.T, s *lab.Node) (goroutines, files int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pollTimeout)
	defer cancel()
	g, err := s.Metric(ctx, "go_goroutines")
	if err != nil {
		t.Fatal(err)
	}
	if files, err = s.OpenFiles(); err != nil {
		t.Fatal(err)
	}
	return int(g), files
}
