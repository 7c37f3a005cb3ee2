// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/tlsutil"
)

// refusal bounds the time until a write without a quorum is refused.
const refusal = 12 * time.Second

// TestQuorum_Secondary kills servers of a secondary with three servers: first
// the leader, whose successor must continue anti-entropy and replication, then
// one more, so that the quorum is lost.
func TestQuorum_Secondary(t *testing.T) {
	t.Parallel()
	l := lab.New(t)
	dc1, dc2 := l.Add(1, 1), l.Add(3, 1)
	dc1.Start()
	dc2.Start()
	awaitWhole(t, l, 2*promptly, "start")
	leader := leaderOf(t, dc2)
	leader.Kill()
	killed := time.Now()
	survivors := l.Running(dc2)

	writeNumbers(t, l, dc1.Servers[0], 1)
	awaitNumber(t, promptly, 1, survivors...)
	t.Logf("replication continues %v after the leader was killed", time.Since(killed).Round(time.Millisecond))
	dc2.Gateways[0].Stop()
	dc2.Gateways[0].ReAddress("198.18.2.71")
	dc2.Gateways[0].StartGateway()
	awaitShown(t, promptly, dc2, append(survivors, dc1.Servers[0])...)
	t.Logf("anti-entropy continues %v after the leader was killed", time.Since(killed).Round(time.Millisecond))

	second := leaderAmong(t, survivors)
	second.Kill()
	last := l.Running(dc2)[0]
	withoutQuorum(t, l, last)
	writeNumbers(t, l, dc1.Servers[0], 2)

	second.StartServer()
	awaitNumber(t, promptly, 2, last, second)
	leader.StartServer()
	awaitNumber(t, promptly, 2, dc2.Servers...)
	awaitWhole(t, l, promptly, "all servers of dc2 back")

	dc2.Kill()
	for _, s := range []*lab.Node{dc2.Servers[2], dc2.Servers[0], dc2.Servers[1]} {
		s.StartServer()
	}
	dc2.Gateways[0].StartGateway()
	awaitWhole(t, l, promptly, "all of dc2 killed and restarted")
	staysAlive(t, l, longer(60*time.Second, 2*time.Second))
	sameEverywhere(t, l)
}

// TestQuorum_Primary does the same to the primary, while a secondary writes.
func TestQuorum_Primary(t *testing.T) {
	t.Parallel()
	l := lab.New(t)
	dc1, dc2 := l.Add(3, 1), l.Add(1, 1)
	dc1.Start()
	dc2.Start()
	awaitWhole(t, l, 2*promptly, "start")
	leader := leaderOf(t, dc1)
	follower := dc1.Servers[slices.IndexFunc(dc1.Servers, func(n *lab.Node) bool { return n != leader })]
	follower.Kill()
	writeNumbers(t, l, leader, 1)
	awaitNumber(t, promptly, 1, append(l.Running(dc1), dc2.Servers...)...)
	outage(t, longer(40*time.Second, 12*time.Second))
	follower.StartServer()
	awaitNumber(t, promptly, 1, follower)
	follower.Kill()

	leader.Kill()
	last := l.Running(dc1)[0]
	withoutQuorum(t, l, last)
	gw := dc2.Gateways[0]
	gw.Stop()
	gw.ReAddress("198.18.2.71")
	gw.StartGateway()

	follower.StartServer()
	awaitShown(t, promptly, dc2, last, follower)
	leader.StartServer()
	awaitNumber(t, promptly, 1, dc1.Servers...)
	awaitWhole(t, l, promptly, "all servers of dc1 back")
	sameEverywhere(t, l)
}

// withoutQuorum checks a server that has lost the majority: it serves reads,
// and refuses writes within refusal with a clear error.
func withoutQuorum(t *testing.T, l *lab.Lab, s *lab.Node) {
	t.Helper()
	dc := s.DC().Name
	cc := connect(t, l, tlsutil.RoleGateway, dc, "gw9", s.NS, s.ServerAddr(), tlsutil.ServerName("", dc, "wanfed"))
	defer cc.Close()
	var took time.Duration
	var err error
	// The server needs a moment to notice the loss. If it led, the outcome of a
	// write in that moment is unknown.
	limit := time.Now().Add(2 * refusal)
	for err == nil || status.Code(err) == codes.Unknown && time.Now().Before(limit) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*refusal)
		began := time.Now()
		_, err = pb.NewGatewayServiceClient(cc).Deregister(ctx, &pb.DeregisterGatewayRequest{})
		took = time.Since(began)
		cancel()
	}
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no leader") || took > refusal {
		t.Errorf("write without a quorum = %v after %v, want Unavailable (no leader) within %v", err, took, refusal)
	}
	t.Logf("write without a quorum refused after %v: %v", took.Round(time.Millisecond), status.Convert(err).Message())
	testutil.Await(t, promptly, "reads without a quorum", func(ctx context.Context) error {
		states, err := statesOf(ctx, s)
		if err != nil {
			return err
		}
		for _, dc := range l.Datacenters() {
			if err := stateShows(states[dc.Name], dc); err != nil {
				return err
			}
			if len(l.Running(dc)) > 0 {
				if err := servesRequests(ctx, s, dc); err != nil {
					return err
				}
			}
		}
		var leader string
		if err := poll(ctx, s, "/v1/status/leader", &leader); err != nil || leader != "" {
			return errors.Join(err, errors.New("leader is still "+leader))
		}
		return nil
	})
}

// awaitNumber waits until the servers have the state of dc9 with the number
// want.
func awaitNumber(t *testing.T, limit time.Duration, want int, servers ...*lab.Node) {
	t.Helper()
	took := testutil.Await(t, limit, "record of dc9", func(ctx context.Context) error {
		for _, s := range servers {
			states, err := statesOf(ctx, s)
			if err != nil {
				return err
			}
			if got := numberOfJSON(states["dc9"]); got != want {
				return fmt.Errorf("%s has number %d, want %d", s.WANName(), got, want)
			}
		}
		return nil
	})
	t.Logf("record of dc9 at %d servers after %v", len(servers), took.Round(time.Millisecond))
}

// awaitShown waits until the servers have the current gateways of dc.
func awaitShown(t *testing.T, limit time.Duration, dc *lab.Datacenter, servers ...*lab.Node) {
	t.Helper()
	took := testutil.Await(t, limit, "gateways of "+dc.Name, func(ctx context.Context) error {
		for _, s := range servers {
			states, err := statesOf(ctx, s)
			if err != nil {
				return err
			}
			if err := stateShows(states[dc.Name], dc); err != nil {
				return err
			}
		}
		return nil
	})
	t.Logf("gateways of %s shown after %v", dc.Name, took.Round(time.Millisecond))
}

// leaderAmong waits until one of the servers leads, and returns it.
func leaderAmong(t *testing.T, servers []*lab.Node) *lab.Node {
	t.Helper()
	var leader *lab.Node
	testutil.Await(t, promptly, "a leader", func(ctx context.Context) error {
		var addr string
		if err := poll(ctx, servers[0], "/v1/status/leader", &addr); err != nil {
			return err
		}
		i := slices.IndexFunc(servers, func(n *lab.Node) bool { return n.ServerAddr() == addr })
		if i < 0 {
			return fmt.Errorf("leader is %q, want one of the given servers", addr)
		}
		leader = servers[i]
		return nil
	})
	return leader
}
