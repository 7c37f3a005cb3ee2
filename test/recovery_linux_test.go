// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/tlsutil"
)

const (
	// promptly bounds a recovery after the path exists again, on a busy
	// machine. An idle machine needs a fraction of it. A recovery that waits
	// for a timer of 30 s or 60 s takes longer.
	promptly = 8 * time.Second
	// failure bounds the time in which the WAN pool marks a dead member failed:
	// 20 s to 40 s of suspicion after one or two probes.
	failure = 60 * time.Second
	// pollTimeout bounds one request of a poll. It is shorter than a dial over
	// a dead path, so that the poll does not measure that dial.
	pollTimeout = 2 * time.Second
)

// chaos reports whether the long variants are enabled.
func chaos() bool { return os.Getenv("WANFED_CHAOS") != "" }

// onlyChaos skips a long variant unless it is enabled.
func onlyChaos(t *testing.T) {
	t.Helper()
	if !chaos() {
		t.Skip("takes minutes; run it with WANFED_CHAOS=1 or make chaos")
	}
}

// longer returns the first duration in long variants, and the second otherwise.
func longer(long, short time.Duration) time.Duration {
	if chaos() {
		return long
	}
	return short
}

// outage waits while something is down. The duration of an outage is part of
// the test: backoffs grow with it.
func outage(t *testing.T, d time.Duration) {
	t.Helper()
	t.Logf("outage of %v", d)
	<-time.After(d)
}

// awaitWhole waits until whole returns nil, and logs how long that took.
func awaitWhole(t *testing.T, l *lab.Lab, limit time.Duration, what string) time.Duration {
	t.Helper()
	took := testutil.Await(t, limit, what, func(ctx context.Context) error { return whole(ctx, l) })
	t.Logf("%s: whole after %v", what, took.Round(time.Millisecond))
	return took
}

// whole returns nil if every running server has a complete view of the
// federation. All servers are alive, and the federation state of each
// datacenter lists its gateways as healthy with their addresses. Each
// datacenter also serves requests from each other one.
func whole(ctx context.Context, l *lab.Lab) error {
	for _, s := range l.Running() {
		if err := wholeFor(ctx, l, s); err != nil {
			return fmt.Errorf("%s: %w", s.WANName(), err)
		}
	}
	return nil
}

func wholeFor(ctx context.Context, l *lab.Lab, s *lab.Node) error {
	if err := allAlive(ctx, l, s); err != nil {
		return err
	}
	states, err := statesOf(ctx, s)
	if err != nil {
		return err
	}
	for _, dc := range l.Datacenters() {
		if err := stateShows(states[dc.Name], dc); err != nil {
			return err
		}
		if len(l.Running(dc)) == 0 {
			continue
		}
		if err := servesRequests(ctx, s, dc); err != nil {
			return err
		}
	}
	return nil
}

// allAlive returns nil if the WAN pool of server s lists every running server
// as alive at its address.
func allAlive(ctx context.Context, l *lab.Lab, s *lab.Node) error {
	members, err := wanMembers(ctx, s)
	if err != nil {
		return err
	}
	for _, other := range l.Running() {
		switch m, ok := members[other.WANName()]; {
		case !ok:
			return fmt.Errorf("%s is not a member", other.WANName())
		case m.Status != api.MemberAlive:
			return fmt.Errorf("%s is %s, want alive", other.WANName(), m.Status)
		case m.Addr != other.LAN:
			return fmt.Errorf("%s has the address %s, want %s", other.WANName(), m.Addr, other.LAN)
		}
	}
	return nil
}

// staysAlive fails the test if a running server sees another one not alive
// within d. It repeats a request that times out on a busy machine.
func staysAlive(t *testing.T, l *lab.Lab, d time.Duration) {
	t.Helper()
	const most = 3 // consecutive requests that may time out
	late := map[*lab.Node]int{}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(d); ; {
		select {
		case <-end:
			if !slices.ContainsFunc(l.Running(), func(s *lab.Node) bool { return late[s] > 0 }) {
				return
			}
			end = time.After(0) // some request is still being repeated
		case <-tick.C:
		}
		for _, s := range l.Running() {
			err := allAlive(t.Context(), l, s)
			if late[s]++; err == nil {
				late[s] = 0
			} else if !errors.Is(err, context.DeadlineExceeded) || late[s] >= most {
				t.Fatalf("%s: %v", s.WANName(), err)
			}
		}
	}
}

func wanMembers(ctx context.Context, s *lab.Node) (map[string]api.Member, error) {
	var list []api.Member
	if err := poll(ctx, s, "/v1/agent/members?wan=1", &list); err != nil {
		return nil, err
	}
	out := map[string]api.Member{}
	for _, m := range list {
		out[m.Name] = m
	}
	return out, nil
}

func statesOf(ctx context.Context, s *lab.Node) (map[string]api.FederationState, error) {
	var list []api.FederationState
	if err := poll(ctx, s, "/v1/internal/federation-states", &list); err != nil {
		return nil, err
	}
	out := map[string]api.FederationState{}
	for _, st := range list {
		out[st.Datacenter] = st
	}
	return out, nil
}

// stateShows returns nil if the federation state lists every running gateway of
// dc as healthy and at its address.
func stateShows(st api.FederationState, dc *lab.Datacenter) error {
	for _, g := range dc.Gateways {
		if !g.Running() {
			continue
		}
		i := slices.IndexFunc(st.MeshGateways, func(m api.MeshGateway) bool { return m.Node.Node == g.Name })
		if i < 0 {
			return fmt.Errorf("state of %s lacks gateway %s", dc.Name, g.Name)
		}
		got := st.MeshGateways[i]
		if wan := got.Service.TaggedAddresses[catalog.TagWAN].Address; wan != g.WAN || !got.Healthy() {
			return fmt.Errorf("state of %s: gateway %s at %s, healthy %v; want %s, healthy", dc.Name, g.Name, wan,
				got.Healthy(), g.WAN)
		}
	}
	return nil
}

// servesRequests returns nil if dc returns its list of servers to a request
// through server s.
func servesRequests(ctx context.Context, s *lab.Node, dc *lab.Datacenter) error {
	var got, want []string
	if err := poll(ctx, s, "/v1/status/peers?dc="+dc.Name, &got); err != nil {
		return fmt.Errorf("peers of %s: %w", dc.Name, err)
	}
	for _, n := range dc.Servers {
		want = append(want, n.ServerAddr())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Errorf("peers of %s = %v, want %v", dc.Name, got, want)
	}
	return nil
}

// poll is Node.Get with the timeout of a poll.
func poll(ctx context.Context, s *lab.Node, path string, out any) error {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	return s.Get(ctx, path, out)
}

// awaitStatus waits until the servers in by see a member with the given status.
func awaitStatus(t *testing.T, limit time.Duration, member *lab.Node, status api.MemberStatus, by ...*lab.Node) {
	t.Helper()
	what := fmt.Sprintf("%s %s", member.WANName(), status)
	took := testutil.Await(t, limit, what, func(ctx context.Context) error {
		for _, s := range by {
			members, err := wanMembers(ctx, s)
			if err != nil {
				return err
			}
			if got := members[member.WANName()].Status; got != status {
				return fmt.Errorf("%s sees %s", s.WANName(), got)
			}
		}
		return nil
	})
	t.Logf("%s after %v", what, took.Round(time.Millisecond))
}

// records holds stored federation states by datacenter.
type records map[string]*pb.Resource

// recordsOf reads the federation states of a server with an operator's
// certificate.
func recordsOf(t *testing.T, l *lab.Lab, s *lab.Node) records {
	t.Helper()
	dc := s.DC().Name
	cc := connect(t, l, tlsutil.RoleOperator, dc, "operator", s.NS, s.ServerAddr(),
		tlsutil.ServerName("", dc, "wanfed"))
	defer cc.Close()
	out := records{}
	testutil.Await(t, promptly, "records of "+s.WANName(), func(ctx context.Context) error {
		resp, err := pb.NewResourceServiceClient(cc).List(ctx, &pb.ListRequest{Type: federation.StateType})
		if err != nil {
			return err
		}
		for _, r := range resp.Resources {
			out[r.Id.Name] = r
		}
		return nil
	})
	return out
}

// sameRecords fails the test unless after has every record of before with the
// same uid and without a lower index or generation.
func sameRecords(t *testing.T, before, after records) {
	t.Helper()
	for name, b := range before {
		a := after[name]
		switch {
		case a == nil:
			t.Errorf("record %s is missing", name)
		case a.Id.Uid != b.Id.Uid:
			t.Errorf("record %s has uid %s, want %s", name, a.Id.Uid, b.Id.Uid)
		case a.ModifyIndex < b.ModifyIndex || a.Generation < b.Generation && a.ModifyIndex == b.ModifyIndex:
			t.Errorf("record %s has index %d, generation %s; want at least %d, %s", name, a.ModifyIndex, a.Generation,
				b.ModifyIndex, b.Generation)
		}
		if err := replicaOf(a, b); err != nil {
			t.Errorf("record %s: %v", name, err)
		}
	}
}

func replicaOf(a, b *pb.Resource) error {
	if a.GetPrimaryModifyIndex() < b.GetPrimaryModifyIndex() {
		return errors.New("its primary index decreased")
	}
	var state pb.FederationState
	if err := a.GetData().UnmarshalTo(&state); err != nil {
		return err
	}
	return federation.ValidateState(&state)
}
