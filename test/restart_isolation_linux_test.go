// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
)

// restartLimit is the longest time from the start of the last server until its
// datacenter is whole.
const restartLimit = 5 * time.Second

// grown is a datacenter that was started with one server, and to which other
// servers were added.
type grown struct {
	*loopback
	servers []*diskServer
}

// grow starts one server without retry_join. Then it adds servers with
// retry_join and without bootstrap_expect until there are n.
func (l *loopback) grow(t *testing.T, n int) *grown {
	t.Helper()
	g := &grown{loopback: l}
	for i := range n {
		port := unusedPort(t)
		s := l.newDiskServer(t, fmt.Sprintf("srv%d", i+1), func(c *subprocess.ServerConfig) {
			c.Port = port
			if i > 0 {
				c.RetryJoin = []string{g.servers[0].server.Addr}
			}
		})
		s.start()
		g.servers = append(g.servers, s)
		if i == 0 {
			g.awaitWhole(t, waitLimit)
		}
	}
	g.awaitWhole(t, waitLimit)
	return g
}

// awaitWhole waits until each server has a leader, and lists all servers as
// voters and as alive members.
func (g *grown) awaitWhole(t *testing.T, timeout time.Duration) time.Duration {
	t.Helper()
	return testutil.Await(t, timeout, fmt.Sprintf("%d servers in one group", len(g.servers)),
		func(ctx context.Context) error {
			for _, s := range g.servers {
				st, err := (&site{dc: "dc1", server: s.server}).status(ctx)
				if err != nil {
					return err
				}
				if err := isWhole(st, len(g.servers)); err != nil {
					return fmt.Errorf("%s: %w", s.config.Node, err)
				}
			}
			return nil
		})
}

// isWhole returns an error unless the Raft group has a leader and n voters, and
// all n servers are alive in the LAN pool.
func isWhole(st api.Status, n int) error {
	voters := fmt.Sprintf("%d voters", n)
	if n == 1 {
		voters = "1 voter"
	}
	for _, c := range st.Components {
		if c.Name == "raft" && (c.State != "ok" || !strings.HasSuffix(c.Detail, voters)) {
			return fmt.Errorf("raft is %s: %s, want %s", c.State, c.Detail, voters)
		}
		if c.Name == "lan pool" && !strings.HasPrefix(c.Detail, fmt.Sprintf("%d of %d ", n, n)) {
			return fmt.Errorf("lan pool is %s: %s, want %d members", c.State, c.Detail, n)
		}
	}
	return nil
}

// stopClean ends the server with SIGTERM and waits for its end.
func (d *diskServer) stopClean() {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	if err := d.server.Stop(ctx); err != nil {
		d.t.Errorf("stop %s: %v", d.config.Node, err)
	}
}

// TestRestart restarts servers of datacenters that were grown from one server.
// Each server has no retry_join, or one with an outdated address, and must find
// the others. WANFED_RESTARTS is the number of random sequences.
func TestRestart(t *testing.T) {
	t.Parallel()
	testutil.Cluster(t)
	sequences := 6
	if n, err := strconv.Atoi(os.Getenv("WANFED_RESTARTS")); err == nil {
		sequences = n
	}
	groups := map[int]*grown{3: newLoopback(t).grow(t, 3), 5: newLoopback(t).grow(t, 5)}
	t.Run("clean restart of the first server", func(t *testing.T) {
		first := groups[3].servers[0]
		first.stopClean()
		first.start()
		t.Logf("whole after %v", groups[3].awaitWhole(t, restartLimit))
	})
	for i := range sequences {
		n := 3 + 2*(i%2)
		t.Run(fmt.Sprintf("sequence %d of %d servers", i, n), func(t *testing.T) {
			groups[n].restart(t, rand.New(rand.NewPCG(1, uint64(i))))
		})
	}
}

// restart stops a random number of servers, changes their retry_join, starts
// them again, and waits until the datacenter is whole.
func (g *grown) restart(t *testing.T, random *rand.Rand) {
	order := random.Perm(len(g.servers))[:1+random.IntN(len(g.servers))]
	for _, i := range order {
		if s := g.servers[i]; random.IntN(2) == 0 {
			s.stopClean()
		} else {
			s.server.Kill()
		}
	}
	random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, i := range order {
		s := g.servers[i]
		s.config.RetryJoin = nil
		if random.IntN(2) == 0 {
			s.config.RetryJoin = []string{net.JoinHostPort("127.0.0.1", strconv.Itoa(unusedPort(t)))}
		}
		s.start()
	}
	took := g.awaitWhole(t, restartLimit)
	t.Logf("restart of servers %v: whole after %v", order, took.Round(time.Millisecond))
}

// TestRetryJoin_NeverBootstraps starts a server with retry_join and without
// bootstrap_expect, and no other server. It must not form a group alone.
func TestRetryJoin_NeverBootstraps(t *testing.T) {
	t.Parallel()
	testutil.Cluster(t)
	l := newLoopback(t)
	first := unusedPort(t)
	joining := l.newDiskServer(t, "srv2", func(c *subprocess.ServerConfig) {
		c.RetryJoin = []string{net.JoinHostPort("127.0.0.1", strconv.Itoa(first))}
	})
	joining.start()
	var raft api.ComponentStatus
	testutil.Await(t, waitLimit, "a status of raft", func(ctx context.Context) error {
		st, err := (&site{dc: "dc1", server: joining.server}).status(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(st.Components, func(c api.ComponentStatus) bool { return c.Name == "raft" })
		raft = st.Components[i]
		return nil
	})
	if raft.State != "no leader" || !strings.Contains(raft.Detail, "retry_join") {
		t.Errorf("raft = %q: %q, want no leader with the setting retry_join", raft.State, raft.Detail)
	}
	if status, answer, _ := joining.request(http.MethodPut, "key", []byte("value")); status == http.StatusOK {
		t.Errorf("write at a server without a group = %d %s, want an error", status, answer)
	}
	if _, err := os.Stat(filepath.Join(joining.data(), "raft")); err != nil {
		t.Fatal(err)
	}
	l.newDiskServer(t, "srv1", func(c *subprocess.ServerConfig) { c.Port = first }).start()
	joining.awaitPut("a leader after the first server started")
}
