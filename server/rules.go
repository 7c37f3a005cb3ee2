// SPDX-License-Identifier: MPL-2.0

package server

import (
	"fmt"
	"slices"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionoldpb "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

// rule says who may call a gRPC method and where it is answered. What a caller may do to one record is decided by the
// record's type, after this.
type rule struct {
	// anywhere lists roles that may call from any datacenter, here those that may from this one.
	anywhere, here []tlsutil.Role
	// leader: answered by this datacenter's leader; others forward.
	leader bool
	// waits: while there is no leader it waits for one, if it needs what only a leader knows. Nothing was done then.
	waits bool
	// again: doing it twice is doing it once, so a forward that broke may be repeated.
	again bool
	// large: its answer may be, so it is made in turns. It does not wait for changes, or gives the turn up meanwhile.
	large bool
	// vouched: a server of another datacenter may call for an operator of its own, if Config.RemoteWritesFrom has it.
	vouched bool
}

var (
	operators = []tlsutil.Role{tlsutil.RoleOperator}
	servers   = []tlsutil.Role{tlsutil.RoleServer}
	trusted   = []tlsutil.Role{tlsutil.RoleServer, tlsutil.RoleOperator}
	everyone  = tlsutil.Roles
	readers   = []tlsutil.Role{tlsutil.RoleServer, tlsutil.RoleClient, tlsutil.RoleOperator} // a gateway reads its snapshot, and federation states

	readHere     = rule{anywhere: trusted, here: readers, vouched: true, waits: true, large: true} // a server of another datacenter reads for who asks it
	readAnywhere = rule{anywhere: trusted, here: everyone}
	writeHere    = rule{anywhere: operators, here: servers, leader: true, vouched: true}
	gatewayRead  = rule{here: []tlsutil.Role{tlsutil.RoleGateway}}
	gatewayWrite = rule{here: []tlsutil.Role{tlsutil.RoleGateway}, leader: true, again: true}
	serversOnly  = rule{anywhere: servers}
	serversHere  = rule{here: servers}
)

var rules = map[string]rule{
	pb.ResourceService_Read_FullMethodName:              readHere,
	pb.ResourceService_List_FullMethodName:              readHere,
	pb.ResourceService_ListByOwner_FullMethodName:       readHere,
	pb.ResourceService_WatchList_FullMethodName:         readHere,
	pb.ResourceService_Write_FullMethodName:             writeHere,
	pb.ResourceService_Delete_FullMethodName:            writeHere,
	pb.ResourceService_WriteStatus_FullMethodName:       writeHere,
	pb.ResourceService_MutateAndValidate_FullMethodName: {anywhere: operators, here: servers, vouched: true},

	// What a server asks of its leader's store: it has authorized its caller.
	pb.StoreService_Commit_FullMethodName:    serversHere,
	pb.StoreService_ReadIndex_FullMethodName: serversHere,

	// A server of another datacenter may call Apply: whose state it may write is decided there, by its certificate.
	pb.FederationService_Apply_FullMethodName:            {anywhere: trusted, leader: true, again: true},
	pb.FederationService_Get_FullMethodName:              readAnywhere,
	pb.FederationService_List_FullMethodName:             readAnywhere,
	pb.FederationService_ListMeshGateways_FullMethodName: readAnywhere,

	pb.GatewayService_Register_FullMethodName:   gatewayWrite,
	pb.GatewayService_Deregister_FullMethodName: gatewayWrite,
	pb.GatewayService_Watch_FullMethodName:      gatewayRead,

	pb.CheckService_Report_FullMethodName: {anywhere: operators, here: servers, leader: true, again: true},

	pb.ReplicationService_Follow_FullMethodName: serversOnly,
	pb.ServerService_Exchange_FullMethodName:    serversOnly,
	pb.ServerService_Query_FullMethodName:       {anywhere: trusted, vouched: true, large: true},

	pb.KeyringService_Change_FullMethodName:   {anywhere: operators, leader: true, again: true},
	pb.KeyringService_List_FullMethodName:     {anywhere: operators},
	pb.KeyringService_Give_FullMethodName:     {anywhere: operators},
	pb.KeyringService_Exchange_FullMethodName: serversOnly,

	pb.OperatorService_ListPeers_FullMethodName:       {here: operators, leader: true, again: true},
	pb.OperatorService_ListPeersHere_FullMethodName:   {here: operators},
	pb.OperatorService_RemovePeer_FullMethodName:      {here: operators, leader: true},
	pb.OperatorService_TransferLeader_FullMethodName:  {here: operators, leader: true},
	pb.OperatorService_SaveSnapshot_FullMethodName:    {here: operators, leader: true},
	pb.OperatorService_RestoreSnapshot_FullMethodName: {here: operators, leader: true},

	healthpb.Health_Check_FullMethodName: readAnywhere,
	healthpb.Health_Watch_FullMethodName: readAnywhere,
	healthpb.Health_List_FullMethodName:  readAnywhere,

	// What services there are is no secret.
	reflectionpb.ServerReflection_ServerReflectionInfo_FullMethodName:    readAnywhere,
	reflectionoldpb.ServerReflection_ServerReflectionInfo_FullMethodName: readAnywhere,
}

// allow says whether peer p may call method in datacenter dc; the error is for people.
func (r rule) allow(p tlsutil.Peer, method, dc string) error {
	if slices.Contains(r.anywhere, p.Role) || (p.DC == dc && slices.Contains(r.here, p.Role)) {
		return nil
	}
	if p.DC != dc && slices.Contains(r.here, p.Role) {
		return fmt.Errorf("%v may not call %s in %s: only a %s of %s may", p, method, dc, p.Role, dc)
	}
	err := fmt.Errorf("%v may not call %s: its certificate's role is %s", p, method, p.Role)
	if slices.Contains(r.here, tlsutil.RoleOperator) || slices.Contains(r.anywhere, tlsutil.RoleOperator) {
		return fmt.Errorf("%w; make an operator's with: wanfed tls cert create --cli --dc %s", err, dc)
	}
	return err
}
