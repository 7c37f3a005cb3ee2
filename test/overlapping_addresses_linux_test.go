// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/tlsutil"
)

// TestOverlappingAddresses federates two datacenters with the same subnet and
// the same server address. Their only common network is the WAN between their
// gateways. With Envoys, the federation may take three seconds from the start of
// the first process. The test kills the leader of the primary during writes.
func TestOverlappingAddresses(t *testing.T) { overGateways(t, overlappingAddresses, lab.AllEnvoys) }

func overlappingAddresses(t *testing.T, envoys lab.Envoys) {
	l := lab.New(t)
	l.Envoys = envoys
	capture := lab.StartCapture(t, l.WAN)
	dc1, dc2 := l.Add(3, 1), l.Add(1, 1)
	if a, b := dc1.Servers[0].LAN, dc2.Servers[0].LAN; a != b {
		t.Fatalf("servers of the lab have the addresses %s and %s, want the same address", a, b)
	}
	noRoute(t, dc2.Servers[0].NS, net.JoinHostPort(dc1.Gateways[0].WAN, strconv.Itoa(lab.WANPort)))
	stalls, began := lab.WatchStalls(t), time.Now()
	dc1.Start()
	dc2.Start()
	all := slices.Concat(dc1.Servers, dc2.Servers)
	took := testutil.Await(t, 30*time.Second, "federation", func(ctx context.Context) error {
		for _, s := range all {
			if err := federated(ctx, s, 4, "dc1", "dc2"); err != nil {
				return err
			}
		}
		return nil
	})
	total := stalls.Awake(began)
	t.Logf("federated %v after the last process was ready, and %v after the start of the first", took, total)
	if envoys != lab.NoEnvoy && total > 3*time.Second {
		t.Errorf("federation took %v from the start of the first process, want at most 3s", total)
	}
	sameResponseBothWays(t, dc1.Servers[1], dc2.Servers[0])

	if envoys == lab.NoEnvoy || chaos() {
		t.Run("leader killed during writes", func(t *testing.T) { killLeaderDuringWrites(t, l, dc1, dc2) })
	}

	for _, s := range dc2.Servers {
		s.Stop()
	}
	for _, s := range dc1.Servers {
		s.Stop()
	}
	report := capture.Check(t, lab.WANPort)
	if report.Records == 0 {
		t.Error("capture of the WAN has 0 TLS records, want some")
	}
	t.Logf("WAN: %d flows, %d bytes in %d TLS records, all to or from port %d", len(report.Flows), report.Bytes,
		report.Records, lab.WANPort)
}

// noRoute fails the test if a namespace can connect to an address.
func noRoute(t *testing.T, ns, addr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if c, err := lab.DialIn(ns)(ctx, "tcp", addr); err == nil {
		c.Close()
		t.Fatalf("%s is reachable from %s, want no route in the lab", addr, ns)
	}
}

// federated returns nil if a server has the given number of alive WAN members
// and a federation state with a healthy gateway of each datacenter.
func federated(ctx context.Context, s *lab.Node, members int, dcs ...string) error {
	var ms []api.Member
	if err := s.Get(ctx, "/v1/agent/members?wan=1", &ms); err != nil {
		return err
	}
	alive := 0
	for _, m := range ms {
		if m.Status == api.MemberAlive {
			alive++
		}
	}
	if alive != members {
		return fmt.Errorf("%s has %d alive members, want %d", s.Name, alive, members)
	}
	var states []api.FederationState
	if err := s.Get(ctx, "/v1/internal/federation-states", &states); err != nil {
		return err
	}
	for _, dc := range dcs {
		if !slices.ContainsFunc(states, func(st api.FederationState) bool {
			return st.Datacenter == dc && slices.ContainsFunc(st.MeshGateways, api.MeshGateway.Healthy)
		}) {
			return fmt.Errorf("%s has no healthy gateway of %s", s.Name, dc)
		}
	}
	return nil
}

// sameResponseBothWays requests the Raft peers of dc1 and dc2 through a server
// of the other datacenter. The response must equal that of a server in the
// datacenter.
func sameResponseBothWays(t *testing.T, a, b *lab.Node) {
	t.Helper()
	for _, pair := range [][2]*lab.Node{{a, b}, {b, a}} {
		from, to := pair[0], pair[1]
		dc := "dc1"
		if to == b {
			dc = "dc2"
		}
		testutil.Await(t, 10*time.Second, "request to "+dc, func(ctx context.Context) error {
			var there, here []string
			if err := from.Get(ctx, "/v1/status/peers?dc="+dc, &there); err != nil {
				return err
			}
			if err := to.Get(ctx, "/v1/status/peers", &here); err != nil {
				return err
			}
			if !slices.Equal(there, here) || len(here) == 0 {
				return fmt.Errorf("peers of %s = %v from the other datacenter, want %v", dc, there, here)
			}
			return nil
		})
	}
}

// killLeaderDuringWrites writes two federation states without pause: dc9's
// directly with acknowledgements, and dc2's through anti-entropy. It kills the
// leader of the primary with SIGKILL. No acknowledged write may be lost.
func killLeaderDuringWrites(t *testing.T, l *lab.Lab, dc1, dc2 *lab.Datacenter) {
	// A client with the certificate of a server of dc9 reaches the primary
	// through the gateway of dc2. dc9 has no servers.
	writer := connect(t, l, tlsutil.RoleServer, "dc9", "srv1", dc2.Servers[0].NS,
		net.JoinHostPort(dc2.Gateways[0].LAN, strconv.Itoa(lab.LANPort)), tlsutil.ServerName("", "dc1", "wanfed"))
	// A gateway of dc2 registers repeatedly with another number. The
	// anti-entropy of dc2 sends the number to the primary.
	gateway := connect(t, l, tlsutil.RoleGateway, "dc2", "gw9", dc2.Servers[0].NS,
		net.JoinHostPort(dc2.Servers[0].LAN, strconv.Itoa(lab.ServerPort)), tlsutil.ServerName("", "dc2", "wanfed"))

	leader := leaderOf(t, dc1)
	acked, failed, registered := 0, 0, 0
	killed, outage := time.Time{}, time.Duration(0)
	for i := 1; killed.IsZero() || time.Since(killed) < 5*time.Second; i++ {
		if acked == 50 && killed.IsZero() {
			leader.Process.Kill()
			killed = time.Now()
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		resp, err := pb.NewFederationServiceClient(writer).Apply(ctx, &pb.ApplyFederationStateRequest{
			Op: pb.ApplyFederationStateRequest_OP_UPSERT, State: numbered("dc9", i),
		})
		if err == nil {
			if got := numberOf(resp.State); got != i {
				t.Errorf("Apply() acknowledges number %d, want %d", got, i)
			}
			if !killed.IsZero() && outage == 0 {
				outage = time.Since(killed)
			}
			acked = i
		} else {
			failed++
		}
		if _, err := pb.NewGatewayServiceClient(gateway).Register(ctx, &pb.RegisterGatewayRequest{
			Lan: "10.10.0.199:8444", Wan: "198.18.2.199:8443", Meta: map[string]string{"number": strconv.Itoa(i)},
		}); err != nil {
			t.Fatalf("Register() at dc2, which has no fault, = %v, want nil", err)
		}
		registered = i
		cancel()
	}
	t.Logf("%d writes attempted, %d failed; first acknowledgement %v after the kill; last acknowledged %d, last "+
		"registered %d",
		registered, failed, outage, acked, registered)

	survivors := slices.DeleteFunc(slices.Clone(dc1.Servers), func(n *lab.Node) bool { return n == leader })
	wantNumber := func(who []*lab.Node, dc string, least int) {
		t.Helper()
		testutil.Await(t, 20*time.Second, fmt.Sprintf("number %d of %s", least, dc), func(ctx context.Context) error {
			for _, s := range who {
				var a api.FederationStateResponse
				if err := s.Get(ctx, "/v1/internal/federation-state/"+dc, &a); err != nil {
					return fmt.Errorf("%s: %w", s.Name, err)
				}
				if a.State == nil {
					return fmt.Errorf("%s has no state of %s", s.Name, dc)
				}
				if got := numberOfJSON(*a.State); got < least {
					return fmt.Errorf("%s has number %d of %s", s.Name, got, dc)
				}
			}
			return nil
		})
	}
	wantNumber(survivors, "dc9", acked)
	wantNumber(survivors, "dc2", registered)
	wantNumber(dc2.Servers, "dc9", acked)

	leader.StartServer()
	wantNumber([]*lab.Node{leader}, "dc9", acked)
	wantNumber([]*lab.Node{leader}, "dc2", registered)
	testutil.Await(t, 30*time.Second, "the restarted server alive at all servers", func(ctx context.Context) error {
		for _, s := range slices.Concat(dc1.Servers, dc2.Servers) {
			if err := federated(ctx, s, 4, "dc1", "dc2"); err != nil {
				return err
			}
		}
		return nil
	})
}

// connect returns a gRPC client with a new certificate. It dials addr from
// inside a namespace.
func connect(t *testing.T, l *lab.Lab, role tlsutil.Role, dc, node, ns, addr, sni string) *grpc.ClientConn {
	t.Helper()
	files, err := l.PKI.Issue(role, dc, node)
	if err != nil {
		t.Fatal(err)
	}
	id, err := tlsutil.Load(files, "wanfed", quiet)
	if err != nil {
		t.Fatal(err)
	}
	cc, err := api.NewGRPCClient(func(ctx context.Context) (net.Conn, error) {
		raw, err := lab.DialIn(ns)(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return handshake(ctx, raw, id.ClientConfig(sni, "h2"))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

// numbered returns the federation state of dc with number i in its metadata.
func numbered(dc string, i int) *pb.FederationState {
	return &pb.FederationState{Datacenter: dc, MeshGateways: []*pb.MeshGateway{{
		Node: &pb.Node{Node: "gw1", Datacenter: dc, Address: "10.10.0.101"},
		Service: &pb.Service{
			Node: "gw1", Id: "gw1", Service: "mesh-gateway", Kind: "mesh-gateway",
			Meta: map[string]string{"number": strconv.Itoa(i)},
			TaggedAddresses: map[string]*pb.Address{
				"lan": {Address: "10.10.0.101", Port: 8444}, "wan": {Address: "198.18.9.1", Port: 8443},
			},
		},
	}}}
}

// numberOf returns the largest number in the metadata of s, or -1.
func numberOf(s *pb.FederationState) int {
	best := -1
	for _, g := range s.GetMeshGateways() {
		if n, err := strconv.Atoi(g.GetService().GetMeta()["number"]); err == nil {
			best = max(best, n)
		}
	}
	return best
}

// numberOfJSON is numberOf for the JSON form of a federation state.
func numberOfJSON(s api.FederationState) int {
	best := -1
	for _, g := range s.MeshGateways {
		if n, err := strconv.Atoi(g.Service.Meta["number"]); err == nil {
			best = max(best, n)
		}
	}
	return best
}

// leaderOf waits until the first server of the datacenter reports a leader, and
// returns the leader.
func leaderOf(t *testing.T, dc *lab.Datacenter) *lab.Node {
	t.Helper()
	var leader *lab.Node
	testutil.Await(t, 10*time.Second, "leader of "+dc.Name, func(ctx context.Context) error {
		var addr string
		if err := dc.Servers[0].Get(ctx, "/v1/status/leader", &addr); err != nil {
			return err
		}
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return err
		}
		for _, s := range dc.Servers {
			if s.LAN == host {
				leader = s
				return nil
			}
		}
		return errors.New("leader " + addr + " is not a server of the lab")
	})
	return leader
}
