// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/tlsutil"
)

// TestServer_Restart kills the only server of a datacenter with SIGKILL and
// starts it again: at once, while the others still see it alive, and after they
// marked it failed. The primary's server finds the secondaries through its own
// store.
func TestServer_Restart(t *testing.T) {
	t.Parallel()
	for _, victim := range []string{"dc1", "dc2"} {
		for _, failed := range []bool{false, true} {
			when := map[bool]string{false: "at once", true: "after it was marked failed"}[failed]
			t.Run(fmt.Sprintf("%s %s", victim, when), func(t *testing.T) {
				t.Parallel()
				if failed && victim == "dc2" {
					onlyChaos(t) // TestDeadDatacenter covers a secondary that comes back
				}
				l := lab.New(t)
				dc1, dc2 := l.Add(1, 1), l.Add(1, 1)
				dc1.Start()
				dc2.Start()
				awaitWhole(t, l, promptly, "start")
				srv, other := dc1.Servers[0], dc2.Servers[0]
				if victim == "dc2" {
					srv, other = other, srv
				}
				before := recordsOf(t, l, srv)

				srv.Kill()
				if failed {
					awaitStatus(t, failure, srv, api.MemberFailed, other)
				}
				srv.StartServer()
				awaitWhole(t, l, promptly, "restart "+when)
				staysAlive(t, l, longer(60*time.Second, 3*time.Second)) // the long time exceeds the failure detection
				sameRecords(t, before, recordsOf(t, l, srv))
				sameEverywhere(t, l)
			})
		}
	}
}

// TestFederation_Restart kills all processes of the primary, or of the
// federation, with SIGKILL and starts them again on their data.
func TestFederation_Restart(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		killed []int // datacenters in the order of their start; 0 is the pause
		pause  time.Duration
		always bool
	}{
		{"primary", []int{1}, 0, true},
		{"primary after a while", []int{1}, 20 * time.Second, false},
		{"all, primary first", []int{1, 2, 3}, 0, false},
		{"all, primary last", []int{3, 2, 1}, 0, true},
		{"all, primary long after", []int{2, 3, 0, 1}, 20 * time.Second, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if !tc.always {
				onlyChaos(t)
			}
			l := lab.New(t)
			for range 3 {
				l.Add(1, 1)
			}
			for _, dc := range l.Datacenters() {
				dc.Start()
			}
			awaitWhole(t, l, promptly, "start")
			acked := writeNumbers(t, l, l.Datacenters()[0].Servers[0], 20)
			before := map[*lab.Datacenter]records{}
			for _, dc := range l.Datacenters() {
				before[dc] = recordsOf(t, l, dc.Servers[0])
			}

			for _, n := range tc.killed {
				if n > 0 {
					l.Datacenters()[n-1].Kill()
				}
			}
			if len(tc.killed) == 1 { // the secondaries do without the primary
				steady(t, lab.One(l.Datacenters()[1]), lab.One(l.Datacenters()[2]))
				outage(t, tc.pause)
			}
			for _, n := range tc.killed {
				if n == 0 {
					outage(t, tc.pause)
					continue
				}
				l.Datacenters()[n-1].Start()
			}
			awaitWhole(t, l, promptly, "restart of "+tc.name)
			for dc, was := range before {
				sameRecords(t, was, recordsOf(t, l, dc.Servers[0]))
			}
			sameEverywhere(t, l)
			if got := numberIn(t, recordsOf(t, l, l.Datacenters()[0].Servers[0])["dc9"]); got != acked {
				t.Errorf("number after the restart = %d, want %d, the last acknowledged", got, acked)
			}
		})
	}
}

// writeNumbers writes the state of dc9 n times at the primary, with the numbers
// 1 to n, and returns n. dc9 exists only as a certificate.
func writeNumbers(t *testing.T, l *lab.Lab, s *lab.Node, n int) int {
	t.Helper()
	cc := connect(t, l, tlsutil.RoleServer, "dc9", "srv1", s.NS, s.ServerAddr(),
		tlsutil.ServerName("", s.DC().Name, "wanfed"))
	defer cc.Close()
	for i := 1; i <= n; i++ {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := pb.NewFederationServiceClient(cc).Apply(ctx, &pb.ApplyFederationStateRequest{
			Op: pb.ApplyFederationStateRequest_OP_UPSERT, State: numbered("dc9", i),
		})
		cancel()
		if err != nil {
			t.Fatalf("Apply() of dc9 with number %d = %v, want nil", i, err)
		}
	}
	return n
}

func numberIn(t *testing.T, r *pb.Resource) int {
	t.Helper()
	state := &pb.FederationState{}
	if err := r.GetData().UnmarshalTo(state); err != nil {
		t.Fatalf("record of dc9: %v", err)
	}
	return numberOf(state)
}

// sameEverywhere fails the test unless every replica equals the primary's
// resource in uid, index and content.
func sameEverywhere(t *testing.T, l *lab.Lab) {
	t.Helper()
	dcs := l.Datacenters()
	want := recordsOf(t, l, dcs[0].Servers[0])
	for _, dc := range dcs[1:] {
		for name, replica := range recordsOf(t, l, dc.Servers[0]) {
			orig := want[name]
			if orig == nil || orig.Id.Uid != replica.Id.Uid || orig.ModifyIndex != replica.PrimaryModifyIndex ||
				!proto.Equal(orig.Data, replica.Data) {
				t.Errorf("replica %s in %s = %v, want %v", name, dc.Name, replica, orig)
			}
		}
	}
}
