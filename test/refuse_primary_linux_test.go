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

// refuseOtherPrimary starts dc3, which is configured with the primary dc9 and
// with a gateway of dc1. dc1 has a federation state of dc3, so servers of both
// connect to each other. Each refuses the other and logs the reason. dc1 and
// dc2 are not affected. dc3 joins when its configuration is corrected.
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

	// The gateway of dc1 has no route to dc9. This error of dc3 names dc9 only.
	logOf(dc3.server.Process).await(t, `level=WARN .* err=".*dial server\.dc9\.wanfed in datacenter dc9: .*has no `+
		`route to, or no certificate for, the requested name`)
	for i, s := range healthy {
		reason := fmt.Sprintf(`reports the primary datacenter \\"dc9\\", %s reports \\"dc1\\": set the same `+
			`primary_datacenter everywhere`, s.dc)
		logs[i].await(t, `level=WARN msg="cannot join in the WAN pool" dc=`+s.dc+
			` node=srv1 peer=\*\.dc3 err="srv1\.dc3 `+reason+`"$`)
		// a retry with the same error logs at debug
		logs[i].await(t, `level=DEBUG msg="cannot join in the WAN pool" .*`+reason)
		if all, err := logs[i].lines(`level=(WARN|ERROR) .*reports the primary`); err != nil || len(all) != 1 {
			t.Errorf("%s logs %d lines, %v, want one: %q", s.dc, len(all), err, all)
		}
	}
	merge := `msg="memberlist: Failed push/pull merge: srv1\.dc[12] reports the primary datacenter \\"dc1\\", dc3 ` +
		`reports \\"dc9\\": .*`
	logOf(dc3.server.Process).await(t, `level=DEBUG `+merge) // a repeated error logs at debug
	refused, err := logOf(dc3.server.Process).lines(`level=ERROR (` + merge + `)`)
	if err != nil || len(refused) == 0 {
		t.Fatalf("dc3 logs %q, %v, want at least one refused merge at level error", refused, err)
	}
	for i, line := range refused {
		if slices.ContainsFunc(refused[:i], func(other []string) bool { return other[1] == line[1] }) {
			t.Errorf("dc3 logs an error twice at level error, want once: %s", line[1])
		}
	}

	t.Run("shown in the status", func(t *testing.T) {
		st, err := dc1.status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(st.Datacenters, func(d api.DatacenterStatus) bool { return d.Name == "dc3" })
		if i < 0 ||
			!strings.Contains(st.Datacenters[i].LastError,
				`srv1.dc3 reports the primary datacenter "dc9", dc1 reports "dc1"`) {
			t.Errorf("status of dc1 = %+v, want the refusal as last error of dc3", st.Datacenters)
		}
	})
	t.Run("other datacenters not affected", func(t *testing.T) {
		l.federated(healthy...)
		put(stateWith("dc3", "192.0.2.3:1", dc3.gateway.WAN)) // replication still works
		testutil.Await(t, waitLimit, "dc2 has the new state", func(ctx context.Context) error {
			states, err := dc2.states(ctx)
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(states, func(s api.FederationState) bool {
				return s.Datacenter == "dc3" && s.MeshGateways[0].Service.TaggedAddresses["lan"].Address == "192.0.2.3"
			}) {
				return fmt.Errorf("dc2 has the states %+v", states)
			}
			return nil
		})
		for i, s := range healthy {
			for _, bad := range []string{`msg="member (failed|left)"`, `msg="member alive".* peer=srv1\.dc3`,
				`level=ERROR`, `msg="no longer leading`} {
				if all, err := logs[i].lines(bad); err != nil || len(all) > 0 {
					t.Errorf("%s logs %q, %v, want no such line", s.dc, all, err)
				}
			}
		}
	})
	t.Run("joins when corrected", func(t *testing.T) {
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

// stateWith returns a federation state with one gateway.
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
