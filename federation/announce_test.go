// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

// claimReceiver is a secondary in a test of claims of the primary.
type claimReceiver struct {
	pb.FederationServiceClient
	clones   Clones
	received atomic.Int64
	down     bool
	rivals   []*pb.Claimant // reported in addition
}

// Claim implements pb.FederationServiceClient.
func (s *claimReceiver) Claim(
	_ context.Context, req *pb.ClaimRequest, _ ...grpc.CallOption,
) (*pb.ClaimResponse, error) {
	if s.down {
		return nil, errors.New("down")
	}
	s.received.Add(1)
	resp := s.clones.Claim(req, time.Now())
	resp.Rivals = append(resp.Rivals, s.rivals...)
	return resp, nil
}

// newAnnouncer returns a Claimant of a server of the primary, dc1, with the
// secondaries by name.
func newAnnouncer(t *testing.T, instance string, secondaries map[string]*claimReceiver) *Claimant {
	t.Helper()
	store := resourcetest.NewStore()
	t.Cleanup(func() { store.Close() })
	r, err := resource.New(GroupType, groupName, &pb.Group{Id: "g1"})
	if err == nil {
		_, err = store.Commit(t.Context(), resource.PutOp(r, resource.AnyVersion))
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewClaimant(ClaimantConfig{
		DC: "dc1", Node: "srv1", Primary: func() string { return "dc1" }, Backend: store, Instance: instance,
		Address: "10.0.0.5:8300",
		Client:  func(dc string) pb.FederationServiceClient { return secondaries[dc] },
		Datacenters: func() (dcs []string) {
			for dc := range secondaries {
				dcs = append(dcs, dc)
			}
			return dcs
		},
		PathsChanged: func() <-chan struct{} { return nil }, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestClaimant_Announce checks which of 100 datacenters receive claims, and how
// often.
func TestClaimant_Announce(t *testing.T) {
	secondaries := map[string]*claimReceiver{}
	for i := range 100 {
		secondaries[fmt.Sprintf("dc%03d", i+2)] = &claimReceiver{}
	}
	c := newAnnouncer(t, "x", secondaries)
	received := func() (dcs []string) {
		for dc, s := range secondaries {
			if s.received.Swap(0) > 0 {
				dcs = append(dcs, dc)
			}
		}
		slices.Sort(dcs)
		return dcs
	}
	check := func(want ...string) {
		t.Helper()
		if got := received(); !slices.Equal(got, want) {
			t.Errorf("datacenters with a claim = %v, want %v", got, want)
		}
	}
	announce := func() {
		t.Helper()
		if pause, ok := c.announce(t.Context(), "g1"); !ok || pause < announceInterval {
			t.Errorf("announce() = %v, %v, want at least %v", pause, ok, announceInterval)
		}
	}
	announce()
	check("dc002", "dc003", "dc004")
	secondaries["dc003"].down = true
	announce()
	check("dc002", "dc004")
	announce()
	check("dc002", "dc004", "dc005")
	delete(secondaries, "dc002")
	announce()
	check("dc004", "dc005", "dc006")
	if len(c.peers) != 4 {
		t.Errorf("datacenters in memory = %d, want 4", len(c.peers))
	}
}

// TestClaimant_Clones runs two claimants with one data directory, and one after
// the other with another one.
func TestClaimant_Clones(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		dc2 := &claimReceiver{}
		secondaries := map[string]*claimReceiver{"dc2": dc2}
		run := func(c *Claimant) (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); c.Run(ctx) }()
			return func() { cancel(); <-done }
		}
		former := newAnnouncer(t, "former", secondaries)
		run(former)()
		x, y := newAnnouncer(t, "x", secondaries), newAnnouncer(t, "y", secondaries)
		stopX := run(x)
		time.Sleep(time.Minute)
		if st := x.State(); st.Clones != "" || !st.Enabled || st.GroupID != "g1" {
			t.Errorf("State() of one process = %+v, want no clones", st)
		}
		before := dc2.received.Load()
		time.Sleep(time.Hour)
		if n := dc2.received.Load() - before; n < 500 || n > 720 {
			t.Errorf("claims in an hour = %d, want one per 5 to 6 s", n)
		}
		stopY := run(y)
		time.Sleep(8 * time.Second)
		for _, c := range []*Claimant{x, y} {
			if st := c.State(); !strings.Contains(st.Clones, "10.0.0.5:8300") || !st.Enabled {
				t.Errorf("State() of one of two processes = %+v, want the address in Clones", st)
			}
		}
		stopY()
		time.Sleep(claimTimeout + 8*time.Second)
		if st := x.State(); st.Clones != "" || len(st.Rivals) > 0 {
			t.Errorf("State() after the end of the clone = %+v, want no clones", st)
		}
		stopX()
	})
}

// TestClaimant_InvalidClones checks that addresses which no server has sent are
// not repeated.
func TestClaimant_InvalidClones(t *testing.T) {
	long := strings.Repeat("a", 200) + ":1"
	dc2 := &claimReceiver{rivals: []*pb.Claimant{
		{Instance: "1", ServerAddress: "not an address"}, {Instance: "2", ServerAddress: long},
		{Instance: "3", ServerAddress: "10.0.0.6:8300", Gateways: []string{"bad"}},
		{Instance: "4", ServerAddress: "10.0.0.6:8300", Gateways: slices.Repeat([]string{"10.0.0.6:1"}, 99)},
	}}
	for i := range 100 {
		dc2.rivals = append(dc2.rivals, &pb.Claimant{
			Instance: fmt.Sprint("valid", i), ServerAddress: "10.0.0.7:8300", Gateways: []string{"10.0.0.7:8443"},
		})
	}
	c := newAnnouncer(t, "x", map[string]*claimReceiver{"dc2": dc2})
	c.announce(t.Context(), "g1")
	st := c.State()
	if len(st.Rivals) != maxClaims || !strings.Contains(st.Clones, "10.0.0.7:8443") ||
		strings.Contains(st.Clones, "10.0.0.6") {
		t.Errorf("State() = %d rivals, %q, want the %d first valid ones", len(st.Rivals), st.Clones, maxClaims)
	}
}

// TestService_ClaimInSecondary checks which servers may claim at a secondary.
func TestService_ClaimInSecondary(t *testing.T) {
	store := resourcetest.NewStore()
	t.Cleanup(func() { store.Close() })
	var peer tlsutil.Peer
	s, err := NewService(ServiceConfig{
		Backend: store, DC: "dc2", PrimaryDC: "dc1", Alive: func(string) bool { return true },
		Decide:  func(context.Context, resource.Access) error { return resource.ErrDenied },
		Peer:    func(context.Context) (tlsutil.Peer, error) { return peer, nil },
		Connect: func(string) (pb.FederationServiceClient, error) { return nil, errors.New("no connection") },
		Logger:  slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	request := func(dc, node string) *pb.ClaimRequest {
		return &pb.ClaimRequest{Datacenter: dc, Node: node, GroupId: "g1", Instance: "x", ServerAddress: "10.0.0.5:8300"}
	}
	long := request("dc1", "srv1")
	long.Nonce = strings.Repeat("n", maxClaimText+1)
	for _, tt := range []struct {
		name string
		peer tlsutil.Peer
		req  *pb.ClaimRequest
		want codes.Code
	}{
		{"server of the primary", tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc1", Node: "srv1"},
			request("dc1", "srv1"), codes.OK},
		{"long nonce", tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc1", Node: "srv1"}, long, codes.InvalidArgument},
		{"name of another server", tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc1", Node: "srv2"},
			request("dc1", "srv1"), codes.PermissionDenied},
		{"name of the primary", tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc3", Node: "srv1"},
			request("dc1", "srv1"), codes.PermissionDenied},
		{"gateway of the primary", tlsutil.Peer{Role: tlsutil.RoleGateway, DC: "dc1", Node: "srv1"},
			request("dc1", "srv1"), codes.PermissionDenied},
		{"server of another secondary", tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc3", Node: "srv1"},
			request("dc3", "srv1"), codes.FailedPrecondition},
		{"server of this datacenter", tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc2", Node: "srv1"},
			request("dc2", "srv1"), codes.FailedPrecondition},
	} {
		t.Run(tt.name, func(t *testing.T) {
			peer = tt.peer
			resp, err := s.Claim(t.Context(), tt.req)
			if status.Code(err) != tt.want || err == nil && (!resp.Accepted || resp.Nonce == "") {
				t.Errorf("Claim() = %v, %v, want %v", resp, err, tt.want)
			}
		})
	}
}
