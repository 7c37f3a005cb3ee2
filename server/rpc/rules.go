// SPDX-License-Identifier: MPL-2.0

package rpc

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionalphapb "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/ratelog"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// rule lists the roles that may call a gRPC method, and defines which server
// serves the method. For a resource, its type then decides which operations the
// caller may perform.
type rule struct {
	// anywhere lists the roles that may call from any datacenter.
	anywhere []tlsutil.Role
	// acting lists the roles that may call from this datacenter, and from the
	// datacenters whose operators and users act here: policy.Engine.ActsHere.
	acting []tlsutil.Role
	// here lists the roles that may call from this datacenter.
	here []tlsutil.Role
	// leader is true if the leader of this datacenter serves the call. Other
	// servers forward the call to the leader.
	leader bool
	// waitsForLeader is true if any server serves the call. The call waits
	// while it needs the leader and the datacenter has no leader.
	waitsForLeader bool
	// idempotent is true if two executions of the call have the effect of one.
	// A forwarded call is repeated if its connection breaks.
	idempotent bool
	// large is true if the response may be large. The call then needs a slot.
	// The service either never waits for a change, or waits inside limit.Pause.
	large bool
	// delegable is true if a server of another datacenter may make the call for
	// a caller of that datacenter. The rights are those of policy.Engine.
	delegable bool
	// recorded is true if each call is given to policy.Engine.Record. Calls of
	// other methods, such as heartbeats, are recorded only if they commit or are
	// refused.
	recorded bool
	// metered is true if the bytes of the requests of each datacenter are limited:
	// see byteLimit.
	metered bool
}

var (
	operators        = []tlsutil.Role{tlsutil.RoleOperator}
	servers          = []tlsutil.Role{tlsutil.RoleServer}
	gateways         = []tlsutil.Role{tlsutil.RoleGateway}
	users            = []tlsutil.Role{tlsutil.RoleOperator, tlsutil.RoleUser}
	serversOperators = []tlsutil.Role{tlsutil.RoleServer, tlsutil.RoleOperator}
	serversSync      = []tlsutil.Role{tlsutil.RoleServer, tlsutil.RoleSync}
	// enrolled have certificates of enrolment.
	enrolled = []tlsutil.Role{tlsutil.RoleServer, tlsutil.RoleGateway, tlsutil.RoleOperator}
	// readers have a role that may read resources. A gateway reads only its
	// snapshot and federation states.
	readers = []tlsutil.Role{tlsutil.RoleServer, tlsutil.RoleClient, tlsutil.RoleOperator, tlsutil.RoleSync,
		tlsutil.RoleUser, tlsutil.RoleAnonymous}
	// allButUsers have rights without a policy.
	allButUsers = []tlsutil.Role{tlsutil.RoleServer, tlsutil.RoleGateway, tlsutil.RoleClient, tlsutil.RoleOperator,
		tlsutil.RoleSync}

	// The resource service decides for each resource: see package policy.
	readResources  = rule{anywhere: readers, delegable: true, waitsForLeader: true, large: true}
	writeResources = rule{acting: users, here: serversSync, leader: true, delegable: true, recorded: true}
	readAnywhere   = rule{anywhere: serversOperators, here: allButUsers}
	introspection  = rule{anywhere: serversOperators, here: tlsutil.Roles}
	gatewayRead    = rule{here: gateways}
	gatewayWrite   = rule{here: gateways, leader: true, idempotent: true}
	leases         = rule{acting: users, here: serversSync, leader: true, idempotent: true}
	reports        = rule{acting: users, here: servers, leader: true, idempotent: true}
	checkReports   = rule{acting: users, here: serversSync, leader: true, idempotent: true}
	anyServer      = rule{anywhere: servers}
	serverHere     = rule{here: servers}
)

// rules has the rule of each method, "/package.Service/Method".
var rules = map[string]rule{
	pb.ResourceService_Read_FullMethodName:              readResources,
	pb.ResourceService_List_FullMethodName:              readResources,
	pb.ResourceService_ListByOwner_FullMethodName:       readResources,
	pb.ResourceService_WatchList_FullMethodName:         readResources,
	pb.ResourceService_Write_FullMethodName:             writeResources,
	pb.ResourceService_Delete_FullMethodName:            writeResources,
	pb.ResourceService_WriteStatus_FullMethodName:       writeResources,
	pb.ResourceService_MutateAndValidate_FullMethodName: {acting: users, here: serversSync, delegable: true},

	// A server calls these methods at its leader, for callers that the server
	// has authorized.
	pb.StoreService_Commit_FullMethodName:    serverHere,
	pb.StoreService_ReadIndex_FullMethodName: serverHere,

	// A server of another datacenter may call Apply, but may write only the
	// state of its own datacenter. The service checks this, and decides about
	// other callers by the policy.
	pb.FederationService_Apply_FullMethodName: {
		anywhere: servers, acting: users, leader: true, idempotent: true, recorded: true, metered: true,
	},
	pb.FederationService_Claim_FullMethodName:            {anywhere: servers, leader: true, idempotent: true},
	pb.FederationService_Replace_FullMethodName:          {acting: operators, leader: true, idempotent: true, recorded: true},
	pb.FederationService_Get_FullMethodName:              readAnywhere,
	pb.FederationService_List_FullMethodName:             readAnywhere,
	pb.FederationService_ListMeshGateways_FullMethodName: readAnywhere,

	pb.GatewayService_Register_FullMethodName:   gatewayWrite,
	pb.GatewayService_Deregister_FullMethodName: gatewayWrite,
	pb.GatewayService_Watch_FullMethodName:      gatewayRead,

	// Envoy proxies that are gateways.
	discoveryv3.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName: gatewayRead,
	discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName:  gatewayRead,

	pb.CheckService_Report_FullMethodName: checkReports,

	// The service decides by the present certificate of the caller.
	pb.EnrollmentService_Renew_FullMethodName:            {here: enrolled, recorded: true},
	pb.EnrollmentService_ListCertificates_FullMethodName: {anywhere: serversOperators},
	pb.EnrollmentService_ReissueCA_FullMethodName:        {anywhere: servers, recorded: true},

	pb.LeaseService_Acquire_FullMethodName: leases,
	pb.LeaseService_Renew_FullMethodName:   leases,
	pb.LeaseService_Release_FullMethodName: leases,
	pb.SessionService_Renew_FullMethodName: reports,

	pb.ReplicationService_Follow_FullMethodName:    anyServer,
	pb.ServerService_Exchange_FullMethodName:       anyServer,
	pb.ServerService_Identify_FullMethodName:       serverHere,
	pb.ServerService_DescribeCaller_FullMethodName: serverHere,
	pb.ServerService_Reachability_FullMethodName:   anyServer,
	pb.ServerService_Query_FullMethodName:          {anywhere: servers, large: true},

	pb.KeyringService_Change_FullMethodName:   {acting: operators, leader: true, idempotent: true, recorded: true},
	pb.KeyringService_List_FullMethodName:     {acting: operators},
	pb.KeyringService_Give_FullMethodName:     {acting: operators, recorded: true},
	pb.KeyringService_Exchange_FullMethodName: anyServer,

	pb.OperatorService_ListPeers_FullMethodName:        {here: serversOperators, leader: true, idempotent: true},
	pb.OperatorService_ListPeersHere_FullMethodName:    {here: operators},
	pb.OperatorService_RemovePeer_FullMethodName:       {here: operators, leader: true, recorded: true},
	pb.OperatorService_TransferLeader_FullMethodName:   {here: operators, leader: true, recorded: true},
	pb.OperatorService_SaveSnapshot_FullMethodName:     {here: serversOperators, leader: true, recorded: true},
	pb.OperatorService_Digest_FullMethodName:           serverHere,
	pb.OperatorService_SaveSnapshotHere_FullMethodName: {here: operators, recorded: true},
	pb.OperatorService_RestoreSnapshot_FullMethodName:  {here: operators, leader: true, recorded: true},
	pb.OperatorService_TakeOver_FullMethodName:         {here: operators, leader: true, recorded: true},
	pb.OperatorService_DescribeServer_FullMethodName:   {acting: operators},
	pb.OperatorService_WatchLog_FullMethodName:         {acting: operators, recorded: true},

	healthpb.Health_Check_FullMethodName: introspection,
	healthpb.Health_Watch_FullMethodName: introspection,
	healthpb.Health_List_FullMethodName:  introspection,

	// The list of services is not a secret.
	reflectionpb.ServerReflection_ServerReflectionInfo_FullMethodName:      introspection,
	reflectionalphapb.ServerReflection_ServerReflectionInfo_FullMethodName: introspection,
}

// allow returns nil if c may call method at a server with engine, of datacenter
// dc. The error has a remedy.
func (r rule) allow(engine *policy.Engine, c policy.Caller, method, dc string) error {
	switch {
	case slices.Contains(r.anywhere, c.Role),
		c.DC == dc && slices.Contains(r.here, c.Role),
		slices.Contains(r.acting, c.Role) && engine.ActsHere(c):
		return nil
	case c.DC != dc && slices.Contains(r.acting, c.Role):
		return fmt.Errorf("%v may not call %s in %s: %s", c, method, dc, engine.Remedy(c))
	case c.DC != dc && slices.Contains(r.here, c.Role):
		return fmt.Errorf("%v may not call %s in %s: only %ss of %s may", c, method, dc, c.Role, dc)
	}
	err := fmt.Errorf("%v may not call %s: its certificate's role is %s", c, method, c.Role)
	if slices.Contains(slices.Concat(r.here, r.acting, r.anywhere), tlsutil.RoleOperator) {
		return fmt.Errorf("%w; make an operator's with: wanfed tls cert create --operator --datacenter %s", err, dc)
	}
	return err
}

// DeniedCall is the key by which denied calls are counted. The number of keys
// is bounded, because a method without a rule is counted as unknownMethod.
type DeniedCall struct {
	Method string
	Role   tlsutil.Role
}

// unknownMethod stands for all methods without a rule. A peer could send any
// number of different method names.
const unknownMethod = "unknown"

// denials counts and logs denied calls. A forwarded call is counted by the
// server that serves it.
type denials struct {
	log *ratelog.Logger[DeniedCall]

	mu    sync.Mutex
	total map[DeniedCall]uint64
}

func newDenials(logger *slog.Logger) *denials {
	return &denials{log: ratelog.New[DeniedCall](logger), total: map[DeniedCall]uint64{}}
}

// record counts and logs a denied call.
func (d *denials) record(p tlsutil.Peer, method string, err error) {
	if _, known := rules[resource.CanonicalMethod(method)]; !known {
		method = unknownMethod
	}
	key := DeniedCall{method, p.Role}
	d.mu.Lock()
	d.total[key]++
	d.mu.Unlock()
	d.log.Log(key, slog.LevelWarn, "call refused", "peer", p.String(), "method", method,
		"err", status.Convert(err).Message())
}

func (d *denials) counts() map[DeniedCall]uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.total)
}
