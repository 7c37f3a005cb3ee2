// SPDX-License-Identifier: MPL-2.0

package rpc

import (
	"slices"
	"testing"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/tlsutil"
)

func TestRules_Allow(t *testing.T) {
	const dc = "dc1"
	peers := map[string]tlsutil.Peer{"unknown role": {Role: "root", DC: "dc1", Node: "x"}}
	for _, role := range append([]tlsutil.Role{tlsutil.RoleAnonymous}, tlsutil.Roles...) {
		for _, dc := range []string{"dc1", "dc2", "dc3"} {
			peers[role.String()+" "+dc] = tlsutil.Peer{Role: role, DC: dc, Node: "n"}
		}
	}
	// The operators of dc3 act in dc1.
	engine := policy.New(policy.Config{DC: dc, OperatorsFrom: func() []string { return []string{"dc3"} }})
	of := func(role string, dcs ...string) (out []string) {
		for _, dc := range dcs {
			out = append(out, role+" "+dc)
		}
		return out
	}
	var (
		servers     = of("server", "dc1", "dc2", "dc3")
		acting      = of("operator", "dc1", "dc3")
		users       = slices.Concat(acting, of("user", "dc1", "dc3"))
		serverDC1   = []string{"server dc1"}
		serversSync = []string{"server dc1", "sync dc1"}
		operatorDC1 = []string{"operator dc1"}
		gatewayDC1  = []string{"gateway dc1"}
		readers     = slices.Concat(servers)
	)
	for _, role := range []string{"client", "operator", "sync", "user", "anonymous"} {
		readers = append(readers, of(role, "dc1", "dc2", "dc3")...)
	}
	anywhere := slices.Concat(servers, of("operator", "dc1", "dc2", "dc3"), []string{"gateway dc1", "client dc1", "sync dc1"})
	for _, tt := range []struct {
		method  string
		allowed []string
	}{
		{pb.FederationService_Apply_FullMethodName, slices.Concat(servers, users)}, // the service decides,
		{pb.FederationService_Replace_FullMethodName, acting},
		{pb.FederationService_List_FullMethodName, anywhere},
		{healthpb.Health_Check_FullMethodName, append([]string{"user dc1"}, anywhere...)},
		{pb.ResourceService_Write_FullMethodName, slices.Concat(serversSync, users)},
		{pb.ResourceService_Delete_FullMethodName, slices.Concat(serversSync, users)},
		{pb.ResourceService_Read_FullMethodName, readers}, // the service decides
		{pb.LeaseService_Acquire_FullMethodName, slices.Concat(serversSync, users)},
		{pb.SessionService_Renew_FullMethodName, slices.Concat(serverDC1, users)},
		{pb.StoreService_Commit_FullMethodName, serverDC1},
		{pb.StoreService_ReadIndex_FullMethodName, serverDC1},
		{pb.GatewayService_Register_FullMethodName, gatewayDC1},
		{pb.GatewayService_Watch_FullMethodName, gatewayDC1},
		{pb.ReplicationService_Follow_FullMethodName, servers},
		{pb.ServerService_Query_FullMethodName, servers},
		{pb.ServerService_Identify_FullMethodName, serverDC1},
		{pb.KeyringService_Exchange_FullMethodName, servers},
		{pb.KeyringService_Change_FullMethodName, acting},
		{pb.KeyringService_List_FullMethodName, acting},
		{pb.KeyringService_Give_FullMethodName, acting},
		{pb.OperatorService_ListPeers_FullMethodName, slices.Concat(serverDC1, operatorDC1)},
		{pb.OperatorService_ListPeersHere_FullMethodName, operatorDC1},
		{pb.OperatorService_RemovePeer_FullMethodName, operatorDC1},
		{pb.OperatorService_SaveSnapshot_FullMethodName, slices.Concat(serverDC1, operatorDC1)},
		{pb.OperatorService_SaveSnapshotHere_FullMethodName, operatorDC1},
		{pb.OperatorService_Digest_FullMethodName, serverDC1},
		{pb.OperatorService_RestoreSnapshot_FullMethodName, operatorDC1},
	} {
		for name, p := range peers {
			err := rules[tt.method].allow(engine, policy.Caller{Peer: p}, tt.method, dc)
			if want := slices.Contains(tt.allowed, name); (err == nil) != want {
				t.Errorf("allow(%s, %s) in dc1 = %v, want allowed = %v", name, tt.method, err, want)
			}
		}
	}
}

func TestRules_CoverEveryMethod(t *testing.T) {
	for _, svc := range []grpc.ServiceDesc{
		pb.FederationService_ServiceDesc, pb.ResourceService_ServiceDesc, pb.StoreService_ServiceDesc,
		pb.ReplicationService_ServiceDesc, pb.GatewayService_ServiceDesc, pb.ServerService_ServiceDesc,
		pb.KeyringService_ServiceDesc, pb.OperatorService_ServiceDesc, pb.CheckService_ServiceDesc,
	} {
		for _, m := range svc.Methods {
			if _, ok := rules["/"+svc.ServiceName+"/"+m.MethodName]; !ok {
				t.Errorf("rules has no rule of %s/%s, want one", svc.ServiceName, m.MethodName)
			}
		}
		for _, m := range svc.Streams {
			method := "/" + svc.ServiceName + "/" + m.StreamName
			r, ok := rules[method]
			if !ok {
				t.Errorf("rules has no rule of %s, want one", method)
			}
			if r.leader && m.ClientStreams && m.ServerStreams {
				t.Errorf("%s is bidirectional and served by the leader, but relay supports only one-way streams",
					method)
			}
		}
	}
	if _, ok := rules[healthpb.Health_Check_FullMethodName]; !ok {
		t.Error("rules has no rule of the health check, want one")
	}
}

func TestMessagesOf(t *testing.T) {
	for method := range rules {
		if _, _, err := messagesOf(method); err != nil {
			t.Errorf("messagesOf(%s) = %v, want nil", method, err)
		}
	}
	if _, _, err := messagesOf("/wanfed.v1.FederationService/Nope"); err == nil {
		t.Errorf("messagesOf() of an unknown method = %v, want an error", err)
	}
}
