// SPDX-License-Identifier: MPL-2.0

package server

import (
	"testing"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

func TestRules(t *testing.T) {
	const here = "dc1"
	peers := map[string]tlsutil.Peer{
		"server here":     {Role: tlsutil.RoleServer, DC: "dc1", Node: "srv1"},
		"server far":      {Role: tlsutil.RoleServer, DC: "dc2", Node: "srv1"},
		"gateway here":    {Role: tlsutil.RoleGateway, DC: "dc1", Node: "gw1"},
		"gateway far":     {Role: tlsutil.RoleGateway, DC: "dc2", Node: "gw1"},
		"client here":     {Role: tlsutil.RoleClient, DC: "dc1", Node: "client"},
		"client far":      {Role: tlsutil.RoleClient, DC: "dc2", Node: "client"},
		"operator here":   {Role: tlsutil.RoleOperator, DC: "dc1", Node: "cli"},
		"operator far":    {Role: tlsutil.RoleOperator, DC: "dc2", Node: "cli"},
		"unknown to wire": {Role: "root", DC: "dc1", Node: "x"},
	}
	tests := []struct {
		method string
		may    []string
	}{
		{pb.FederationService_Apply_FullMethodName, []string{"server here", "server far", "operator here", "operator far"}},
		{pb.FederationService_List_FullMethodName, []string{"server here", "server far", "gateway here", "client here", "operator here", "operator far"}},
		{pb.ResourceService_Write_FullMethodName, []string{"server here", "operator here", "operator far"}},
		{pb.ResourceService_Read_FullMethodName, []string{"server here", "server far", "client here", "operator here", "operator far"}},
		{pb.StoreService_Commit_FullMethodName, []string{"server here"}},
		{pb.StoreService_ReadIndex_FullMethodName, []string{"server here"}},
		{pb.GatewayService_Register_FullMethodName, []string{"gateway here"}},
		{pb.GatewayService_Watch_FullMethodName, []string{"gateway here"}},
		{pb.ReplicationService_Follow_FullMethodName, []string{"server here", "server far"}},
		{pb.ServerService_Query_FullMethodName, []string{"server here", "server far", "operator here", "operator far"}},
		{pb.KeyringService_Exchange_FullMethodName, []string{"server here", "server far"}},
		{pb.KeyringService_Change_FullMethodName, []string{"operator here", "operator far"}},
		{pb.KeyringService_List_FullMethodName, []string{"operator here", "operator far"}},
		{pb.KeyringService_Give_FullMethodName, []string{"operator here", "operator far"}},
		{pb.OperatorService_ListPeersHere_FullMethodName, []string{"operator here"}},
		{pb.OperatorService_RemovePeer_FullMethodName, []string{"operator here"}},
		{pb.OperatorService_SaveSnapshot_FullMethodName, []string{"operator here"}},
		{pb.OperatorService_RestoreSnapshot_FullMethodName, []string{"operator here"}},
	}
	for _, tt := range tests {
		may := map[string]bool{}
		for _, who := range tt.may {
			may[who] = true
		}
		for who, p := range peers {
			if err := rules[tt.method].allow(p, tt.method, here); (err == nil) != may[who] {
				t.Errorf("%s calls %s: %v", who, tt.method, err)
			}
		}
	}
}

func TestEveryMethodHasARule(t *testing.T) {
	for _, svc := range []grpc.ServiceDesc{
		pb.FederationService_ServiceDesc, pb.ResourceService_ServiceDesc, pb.StoreService_ServiceDesc, pb.ReplicationService_ServiceDesc,
		pb.GatewayService_ServiceDesc, pb.ServerService_ServiceDesc, pb.KeyringService_ServiceDesc, pb.OperatorService_ServiceDesc,
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
			if r.leader && m.ClientStreams && m.ServerStreams {
				t.Errorf("%s goes both ways and belongs to the leader: such streams are not handed on", method)
			}
		}
	}
	if _, ok := rules[healthpb.Health_Check_FullMethodName]; !ok {
		t.Error("health has no rule")
	}
}

func TestReplyOf(t *testing.T) {
	for method := range rules {
		if _, _, err := messagesOf(method); err != nil {
			t.Errorf("%s: %v", method, err)
		}
	}
	if _, err := replyOf("/wanfed.v1.FederationService/Nope"); err == nil {
		t.Error("an unknown method has an answer")
	}
}
