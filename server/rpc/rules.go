// SPDX-License-Identifier: MPL-2.0

package rpc

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionalphapb "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/ratelog"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// Rule lists the roles that may call a gRPC method, and defines which server
// serves the method. For resources, the type of the resource then decides which
// operations the caller may perform.
type Rule struct {
	// Method is the full name: "/package.Service/Method".
	Method string
	// Anywhere lists the roles that may call from any datacenter.
	Anywhere []tlsutil.Role
	// Here lists the roles that may call from this datacenter.
	Here []tlsutil.Role
	// Leader is true if the leader of this datacenter serves the call. Other
	// servers forward the call to the leader.
	Leader bool
	// WaitsForLeader is true if any server serves the call. If the call needs
	// the leader, it waits while the datacenter has no leader.
	WaitsForLeader bool
	// Idempotent is true if two executions of the call have the effect of one.
	// A forwarded call is repeated if its connection breaks.
	Idempotent bool
	// Large is true if the response may be large, so that the call needs a
	// slot. The service either never waits for a change, or waits inside
	// limit.Pause.
	Large bool
	// Delegable is true if a server of another datacenter may make the call for
	// an operator of that datacenter. Config.AllowRemoteWritesFrom must list
	// the datacenter.
	Delegable bool
}

var (
	operators        = []tlsutil.Role{tlsutil.RoleOperator}
	servers          = []tlsutil.Role{tlsutil.RoleServer}
	gateways         = []tlsutil.Role{tlsutil.RoleGateway}
	serversOperators = []tlsutil.Role{tlsutil.RoleServer, tlsutil.RoleOperator}
	// readers lacks gateways: a gateway reads its snapshot and federation
	// states.
	readers = []tlsutil.Role{tlsutil.RoleServer, tlsutil.RoleClient, tlsutil.RoleOperator}

	// A server of another datacenter reads for its clients.
	readRecords  = Rule{Anywhere: serversOperators, Here: readers, Delegable: true, WaitsForLeader: true, Large: true}
	writeRecords = Rule{Anywhere: operators, Here: servers, Leader: true, Delegable: true}
	readAnywhere = Rule{Anywhere: serversOperators, Here: tlsutil.Roles}
	gatewayRead  = Rule{Here: gateways}
	gatewayWrite = Rule{Here: gateways, Leader: true, Idempotent: true}
	anyServer    = Rule{Anywhere: servers}
	serverHere   = Rule{Here: servers}
)

// rules has the rule of each method. The key is the method. Rules sets the
// field Method.
var rules = map[string]Rule{
	pb.ResourceService_Read_FullMethodName:              readRecords,
	pb.ResourceService_List_FullMethodName:              readRecords,
	pb.ResourceService_ListByOwner_FullMethodName:       readRecords,
	pb.ResourceService_WatchList_FullMethodName:         readRecords,
	pb.ResourceService_Write_FullMethodName:             writeRecords,
	pb.ResourceService_Delete_FullMethodName:            writeRecords,
	pb.ResourceService_WriteStatus_FullMethodName:       writeRecords,
	pb.ResourceService_MutateAndValidate_FullMethodName: {Anywhere: operators, Here: servers, Delegable: true},

	// Servers call these on the store of their leader, for callers that they
	// have authorized.
	pb.StoreService_Commit_FullMethodName:    serverHere,
	pb.StoreService_ReadIndex_FullMethodName: serverHere,

	// A server of another datacenter may call Apply. Its certificate decides
	// whose state it may write.
	pb.FederationService_Apply_FullMethodName:            {Anywhere: serversOperators, Leader: true, Idempotent: true},
	pb.FederationService_Get_FullMethodName:              readAnywhere,
	pb.FederationService_List_FullMethodName:             readAnywhere,
	pb.FederationService_ListMeshGateways_FullMethodName: readAnywhere,

	pb.GatewayService_Register_FullMethodName:   gatewayWrite,
	pb.GatewayService_Deregister_FullMethodName: gatewayWrite,
	pb.GatewayService_Watch_FullMethodName:      gatewayRead,

	pb.CheckService_Report_FullMethodName: {Anywhere: operators, Here: servers, Leader: true, Idempotent: true},

	pb.ReplicationService_Follow_FullMethodName: anyServer,
	pb.ServerService_Exchange_FullMethodName:    anyServer,
	pb.ServerService_Query_FullMethodName:       {Anywhere: serversOperators, Delegable: true, Large: true},

	pb.KeyringService_Change_FullMethodName:   {Anywhere: operators, Leader: true, Idempotent: true},
	pb.KeyringService_List_FullMethodName:     {Anywhere: operators},
	pb.KeyringService_Give_FullMethodName:     {Anywhere: operators},
	pb.KeyringService_Exchange_FullMethodName: anyServer,

	pb.OperatorService_ListPeers_FullMethodName:       {Here: operators, Leader: true, Idempotent: true},
	pb.OperatorService_ListPeersHere_FullMethodName:   {Here: operators},
	pb.OperatorService_RemovePeer_FullMethodName:      {Here: operators, Leader: true},
	pb.OperatorService_TransferLeader_FullMethodName:  {Here: operators, Leader: true},
	pb.OperatorService_SaveSnapshot_FullMethodName:    {Here: operators, Leader: true},
	pb.OperatorService_RestoreSnapshot_FullMethodName: {Here: operators, Leader: true},

	healthpb.Health_Check_FullMethodName: readAnywhere,
	healthpb.Health_Watch_FullMethodName: readAnywhere,
	healthpb.Health_List_FullMethodName:  readAnywhere,

	// The list of services is not a secret.
	reflectionpb.ServerReflection_ServerReflectionInfo_FullMethodName:      readAnywhere,
	reflectionalphapb.ServerReflection_ServerReflectionInfo_FullMethodName: readAnywhere,
}

// Rules returns the rules of all methods, ordered by method.
func Rules() []Rule {
	out := make([]Rule, 0, len(rules))
	for _, method := range slices.Sorted(maps.Keys(rules)) {
		r := rules[method]
		r.Method = method
		out = append(out, r)
	}
	return out
}

// allow returns nil if peer p may call method in datacenter dc. The error has a
// remedy.
func (r Rule) allow(p tlsutil.Peer, method, dc string) error {
	if slices.Contains(r.Anywhere, p.Role) || (p.DC == dc && slices.Contains(r.Here, p.Role)) {
		return nil
	}
	if p.DC != dc && slices.Contains(r.Here, p.Role) {
		return fmt.Errorf("%v may not call %s in %s: only %ss of %s may", p, method, dc, p.Role, dc)
	}
	err := fmt.Errorf("%v may not call %s: its certificate's role is %s", p, method, p.Role)
	if slices.Contains(r.Here, tlsutil.RoleOperator) || slices.Contains(r.Anywhere, tlsutil.RoleOperator) {
		return fmt.Errorf("%w; make an operator's with: wanfed tls cert create --operator --datacenter %s", err, dc)
	}
	return err
}

// DeniedCall is the key by which denied calls are counted. The number of values
// is bounded, because each method is a method of Rules or unknownMethod.
type DeniedCall struct {
	Method string
	Role   tlsutil.Role
}

// unknownMethod stands for all methods without a rule. A peer could send any
// number of different method names.
const unknownMethod = "unknown"

// denials counts and logs calls that were denied because of their caller.
type denials struct {
	log *ratelog.Logger[DeniedCall]

	mu    sync.Mutex
	total map[DeniedCall]uint64
}

func newDenials(logger *slog.Logger) *denials {
	return &denials{log: ratelog.New[DeniedCall](logger, 0), total: map[DeniedCall]uint64{}}
}

// note counts a call of p that ended with err, if err is a denial. A forwarded
// call is counted by the server that serves it.
func (d *denials) note(p tlsutil.Peer, method string, err error) {
	if status.Code(err) == codes.PermissionDenied {
		d.count(p, method, err)
	}
}

// count counts and logs a denied call.
func (d *denials) count(p tlsutil.Peer, method string, err error) {
	if _, known := rules[resource.CanonicalMethod(method)]; !known {
		method = unknownMethod
	}
	kind := DeniedCall{method, p.Role}
	d.mu.Lock()
	d.total[kind]++
	d.mu.Unlock()
	d.log.Log(kind, slog.LevelWarn, "call refused", "peer", p.String(), "method", method,
		"err", status.Convert(err).Message())
}

func (d *denials) counts() map[DeniedCall]uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.total)
}
