// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// refuseOtherPrimary starts dc3, whose server takes dc9 for the primary
// although it is given dc1's gateway. dc1 knows dc3 from a record of better
// days, so that servers of both meet. Neither lets the other in, both say why,
// and dc1 and dc2 go on as if nothing had happened; when dc3 is mended it
// joins.
func refuseOtherPrimary(t *testing.T, l *loopback, dc1, dc2 *site) {
	healthy := []*site{dc1, dc2}
	logs := []*logFile{logOf(dc1.server.Process).mark(t), logOf(dc2.server.Process).mark(t)}
	dc3 := l.start("dc3", "dc9", dc1.gateway.WAN)
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	cc := l.call(t, dc1.server.Addr, "server.dc1.wanfed", tlsutil.RoleServer, "srv1", "dc3")
	put := func(s *pb.FederationState) {
		t.Helper()
		if _, err := pb.NewFederationServiceClient(cc).Apply(ctx, &pb.ApplyFederationStateRequest{
			Op: pb.ApplyFederationStateRequest_OP_UPSERT, State: s,
		}); err != nil {
			t.Fatal(err)
		}
	}
	put(stateWith("dc3", dc3.gateway.LAN, dc3.gateway.WAN))

	// dc3 cannot use dc1's gateway for a primary that is not there. That alone
	// names only dc9.
	logOf(dc3.server.Process).await(t, `level=WARN .* err=".*dial server\.dc9\.wanfed in datacenter dc9: .*has no route to, or no certificate for, the requested name`)
	for i, s := range healthy {
		says := fmt.Sprintf(`says the primary datacenter is \\"dc9\\", %s says \\"dc1\\": set the same primary_datacenter everywhere`, s.dc)
		logs[i].await(t, `level=WARN msg="cannot join in the WAN pool" dc=`+s.dc+` node=srv1 peer=\*\.dc3 err="srv1\.dc3 `+says+`"$`)
		logs[i].await(t, `level=DEBUG msg="cannot join in the WAN pool" .*`+says) // it tries again, and has no more news
		if all, err := logs[i].lines(`level=(WARN|ERROR) .*says the primary`); err != nil || len(all) != 1 {
			t.Errorf("%s: %d lines, %v, want one: %q", s.dc, len(all), err, all)
		}
	}
	merge := `msg="memberlist: Failed push/pull merge: srv1\.dc[12] says the primary datacenter is \\"dc1\\", dc3 says \\"dc9\\": .*`
	logOf(dc3.server.Process).await(t, `level=DEBUG `+merge) // a second time
	refused, err := logOf(dc3.server.Process).lines(`level=ERROR (` + merge + `)`)
	if err != nil || len(refused) == 0 {
		t.Fatalf("%v, %q", err, refused)
	}
	for i, line := range refused {
		if slices.ContainsFunc(refused[:i], func(other []string) bool { return other[1] == line[1] }) {
			t.Errorf("shown twice: %s", line[1])
		}
	}

	t.Run("status says it", func(t *testing.T) {
		st, err := dc1.status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(st.Datacenters, func(d api.DatacenterStatus) bool { return d.Name == "dc3" })
		if i < 0 || !strings.Contains(st.Datacenters[i].LastError, `srv1.dc3 says the primary datacenter is "dc9", dc1 says "dc1"`) {
			t.Errorf("status of dc1: %+v", st.Datacenters)
		}
	})
	t.Run("the others are not disturbed", func(t *testing.T) {
		l.federated(healthy...)
		put(stateWith("dc3", "192.0.2.3:1", dc3.gateway.WAN)) // replication goes on
		testutil.Await(t, waitLimit, "dc2 has the new state", func(ctx context.Context) error {
			states, err := dc2.states(ctx)
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(states, func(s api.FederationState) bool {
				return s.Datacenter == "dc3" && s.MeshGateways[0].Service.TaggedAddresses["lan"].Address == "192.0.2.3"
			}) {
				return fmt.Errorf("states: %+v", states)
			}
			return nil
		})
		for i, s := range healthy {
			for _, bad := range []string{`msg="member (failed|left)"`, `msg="member alive".* peer=srv1\.dc3`, `level=ERROR`, `msg="no longer leading`} {
				if all, err := logs[i].lines(bad); err != nil || len(all) > 0 {
					t.Errorf("%s: %v %q", s.dc, err, all)
				}
			}
		}
	})
	t.Run("mended", func(t *testing.T) {
		stop, cancel := context.WithTimeout(t.Context(), waitLimit)
		defer cancel()
		for _, p := range []interface{ Stop(context.Context) error }{dc3.gateway, dc3.server} {
			if err := p.Stop(stop); err != nil {
				t.Error(err)
			}
		}
		began := time.Now()
		dc3 = l.start("dc3", "dc1", dc1.gateway.WAN)
		l.federated(dc1, dc2, dc3)
		t.Logf("federated %v after the start", time.Since(began))
	})
}

// stateWith is a federation state with one gateway.
func stateWith(dc, lan, wan string) *pb.FederationState {
	address := func(addr string) *pb.Address {
		host, port, _ := net.SplitHostPort(addr)
		n, _ := strconv.ParseUint(port, 10, 16)
		return &pb.Address{Address: host, Port: uint32(n)}
	}
	return &pb.FederationState{Datacenter: dc, MeshGateways: []*pb.MeshGateway{{
		Node: &pb.Node{Node: "gw1", Datacenter: dc, Address: address(lan).Address},
		Service: &pb.Service{
			Node: "gw1", Id: "gw1", Service: "mesh-gateway", Kind: "mesh-gateway",
			TaggedAddresses: map[string]*pb.Address{"lan": address(lan), "wan": address(wan)},
		},
	}}}
}
