// SPDX-License-Identifier: MPL-2.0

package rpc

import (
	"slices"
	"testing"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

func TestRules_Allow(t *testing.T) {
	const dc = "dc1"
	peers := map[string]tlsutil.Peer{
		"server dc1":   {Role: tlsutil.RoleServer, DC: "dc1", Node: "srv1"},
		"server dc2":   {Role: tlsutil.RoleServer, DC: "dc2", Node: "srv1"},
		"gateway dc1":  {Role: tlsutil.RoleGateway, DC: "dc1", Node: "gw1"},
		"gateway dc2":  {Role: tlsutil.RoleGateway, DC: "dc2", Node: "gw1"},
		"client dc1":   {Role: tlsutil.RoleClient, DC: "dc1", Node: "client"},
		"client dc2":   {Role: tlsutil.RoleClient, DC: "dc2", Node: "client"},
		"sync dc1":     {Role: tlsutil.RoleSync, DC: "dc1", Node: "sync1"},
		"sync dc2":     {Role: tlsutil.RoleSync, DC: "dc2", Node: "sync1"},
		"operator dc1": {Role: tlsutil.RoleOperator, DC: "dc1", Node: "cli"},
		"operator dc2": {Role: tlsutil.RoleOperator, DC: "dc2", Node: "cli"},
		"unknown role": {Role: "root", DC: "dc1", Node: "x"},
	}
	var (
		anyServer   = []string{"server dc1", "server dc2"}
		anyOperator = []string{"operator dc1", "operator dc2"}
		operatorDC1 = []string{"operator dc1"}
		trusted     = slices.Concat(anyServer, anyOperator)
		everyone    = append([]string{"gateway dc1", "client dc1", "sync dc1"}, trusted...)
	)
	for _, tt := range []struct {
		method  string
		allowed []string
	}{
		{pb.FederationService_Apply_FullMethodName, trusted},
		{pb.FederationService_List_FullMethodName, everyone},
		{pb.ResourceService_Write_FullMethodName, append([]string{"server dc1", "sync dc1"}, anyOperator...)},
		{pb.ResourceService_Delete_FullMethodName, append([]string{"server dc1", "sync dc1"}, anyOperator...)},
		{pb.ResourceService_Read_FullMethodName, append([]string{"client dc1", "sync dc1"}, trusted...)},
		{pb.LeaseService_Acquire_FullMethodName, append([]string{"server dc1", "sync dc1"}, anyOperator...)},
		{pb.SessionService_Renew_FullMethodName, append([]string{"server dc1"}, anyOperator...)},
		{pb.StoreService_Commit_FullMethodName, []string{"server dc1"}},
		{pb.StoreService_ReadIndex_FullMethodName, []string{"server dc1"}},
		{pb.GatewayService_Register_FullMethodName, []string{"gateway dc1"}},
		{pb.GatewayService_Watch_FullMethodName, []string{"gateway dc1"}},
		{pb.ReplicationService_Follow_FullMethodName, anyServer},
		{pb.ServerService_Query_FullMethodName, trusted},
		{pb.ServerService_Identify_FullMethodName, []string{"server dc1"}},
		{pb.KeyringService_Exchange_FullMethodName, anyServer},
		{pb.KeyringService_Change_FullMethodName, anyOperator},
		{pb.KeyringService_List_FullMethodName, anyOperator},
		{pb.KeyringService_Give_FullMethodName, anyOperator},
		{pb.OperatorService_ListPeersHere_FullMethodName, operatorDC1},
		{pb.OperatorService_RemovePeer_FullMethodName, operatorDC1},
		{pb.OperatorService_SaveSnapshot_FullMethodName, []string{"server dc1", "operator dc1"}},
		{pb.OperatorService_SaveSnapshotHere_FullMethodName, operatorDC1},
		{pb.OperatorService_Digest_FullMethodName, []string{"server dc1"}},
		{pb.OperatorService_RestoreSnapshot_FullMethodName, operatorDC1},
	} {
		for name, p := range peers {
			err := rules[tt.method].allow(p, tt.method, dc)
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
