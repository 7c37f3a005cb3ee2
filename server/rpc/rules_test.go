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
		"server here":   {Role: tlsutil.RoleServer, DC: "dc1", Node: "srv1"},
		"server far":    {Role: tlsutil.RoleServer, DC: "dc2", Node: "srv1"},
		"gateway here":  {Role: tlsutil.RoleGateway, DC: "dc1", Node: "gw1"},
		"gateway far":   {Role: tlsutil.RoleGateway, DC: "dc2", Node: "gw1"},
		"client here":   {Role: tlsutil.RoleClient, DC: "dc1", Node: "client"},
		"client far":    {Role: tlsutil.RoleClient, DC: "dc2", Node: "client"},
		"operator here": {Role: tlsutil.RoleOperator, DC: "dc1", Node: "cli"},
		"operator far":  {Role: tlsutil.RoleOperator, DC: "dc2", Node: "cli"},
		"unknown role":  {Role: "root", DC: "dc1", Node: "x"},
	}
	var (
		anyServer    = []string{"server here", "server far"}
		anyOperator  = []string{"operator here", "operator far"}
		operatorHere = []string{"operator here"}
		trusted      = slices.Concat(anyServer, anyOperator)
		everyone     = append([]string{"gateway here", "client here"}, trusted...)
	)
	for _, tt := range []struct {
		method  string
		allowed []string
	}{
		{pb.FederationService_Apply_FullMethodName, trusted},
		{pb.FederationService_List_FullMethodName, everyone},
		{pb.ResourceService_Write_FullMethodName, append([]string{"server here"}, anyOperator...)},
		{pb.ResourceService_Read_FullMethodName, append([]string{"client here"}, trusted...)},
		{pb.StoreService_Commit_FullMethodName, []string{"server here"}},
		{pb.StoreService_ReadIndex_FullMethodName, []string{"server here"}},
		{pb.GatewayService_Register_FullMethodName, []string{"gateway here"}},
		{pb.GatewayService_Watch_FullMethodName, []string{"gateway here"}},
		{pb.ReplicationService_Follow_FullMethodName, anyServer},
		{pb.ServerService_Query_FullMethodName, trusted},
		{pb.KeyringService_Exchange_FullMethodName, anyServer},
		{pb.KeyringService_Change_FullMethodName, anyOperator},
		{pb.KeyringService_List_FullMethodName, anyOperator},
		{pb.KeyringService_Give_FullMethodName, anyOperator},
		{pb.OperatorService_ListPeersHere_FullMethodName, operatorHere},
		{pb.OperatorService_RemovePeer_FullMethodName, operatorHere},
		{pb.OperatorService_SaveSnapshot_FullMethodName, operatorHere},
		{pb.OperatorService_RestoreSnapshot_FullMethodName, operatorHere},
	} {
		for name, p := range peers {
			err := rules[tt.method].allow(p, tt.method, dc)
			if want := slices.Contains(tt.allowed, name); (err == nil) != want {
				t.Errorf("allow(%s, %s) = %v, want allowed = %v", name, tt.method, err, want)
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
				t.Errorf("%s/%s has no rule", svc.ServiceName, m.MethodName)
			}
		}
		for _, m := range svc.Streams {
			method := "/" + svc.ServiceName + "/" + m.StreamName
			r, ok := rules[method]
			if !ok {
				t.Errorf("%s has no rule", method)
			}
			if r.Leader && m.ClientStreams && m.ServerStreams {
				t.Errorf("%s is bidirectional and for the leader: such streams cannot be relayed", method)
			}
		}
	}
	if _, ok := rules[healthpb.Health_Check_FullMethodName]; !ok {
		t.Error("the health check has no rule")
	}
}

func TestRules_ListsEachMethodOnce(t *testing.T) {
	all := Rules()
	if len(all) != len(rules) {
		t.Errorf("Rules() has %d rules, want %d", len(all), len(rules))
	}
	sorted := slices.IsSortedFunc(all, func(a, b Rule) int {
		if a.Method < b.Method {
			return -1
		}
		return 1
	})
	if !sorted {
		t.Errorf("Rules() = %v, want them ordered by method, each once", all)
	}
}

func TestMessagesOf(t *testing.T) {
	for method := range rules {
		if _, _, err := messagesOf(method); err != nil {
			t.Errorf("messagesOf(%s) = %v, want nil", method, err)
		}
	}
	if _, _, err := messagesOf("/wanfed.v1.FederationService/Nope"); err == nil {
		t.Error("messagesOf() = nil for an unknown method, want an error")
	}
}
