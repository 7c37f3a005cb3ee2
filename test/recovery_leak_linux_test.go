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

// TestServer_LeaksNothing restarts the other datacenter's gateway and server
// many times. It compares a server's goroutines and open files before and
// after.
func TestServer_LeaksNothing(t *testing.T) {
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
	cycle(2, 1) // allocates what is allocated once
	goroutines, files := usage(t, lab.One(dc1))
	through, err := dc1.Gateways[0].OpenFiles()
	if err != nil {
		t.Fatal(err)
	}
	cycle(20, 5)

	var g, f, th int
	took := testutil.Await(t, 90*time.Second, "no more goroutines and files than before", func(context.Context) error {
		if g, f = usage(t, lab.One(dc1)); g > goroutines+slack || f > files+slack {
			return fmt.Errorf("server has %d goroutines and %d files, want %d and %d", g, f, goroutines, files)
		}
		if th, err = dc1.Gateways[0].OpenFiles(); err != nil || th > through+slack {
			return fmt.Errorf("gateway has %d files, want %d: %w", th, through, err)
		}
		return nil
	})
	t.Logf("server before: %d goroutines, %d files; after: %d, %d; gateway before: %d files; after: %d; reached %v "+
		"after the last restart",
		goroutines, files, g, f, through, th, took.Round(time.Millisecond))
}

// slack is the number of short-lived goroutines and files: request connections
// and gossip streams.
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
