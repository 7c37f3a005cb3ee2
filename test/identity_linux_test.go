// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

// attempt is one call and its expected outcome.
type attempt struct {
	name string
	by   string // identity of the certificate: role/dc/node
	at   *site
	call func(ctx context.Context, cc *grpc.ClientConn) error
	code codes.Code
	want string // part of the error's text
}

// refuseCalls tries calls that are forbidden for certificates of all roles, and
// some that are permitted.
func refuseCalls(t *testing.T, l *loopback, dc1, dc2 *site) {
	before := stateOf(t, dc1, "dc2")
	conns := map[string]*grpc.ClientConn{}
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	for _, a := range attempts(dc1, dc2) {
		t.Run(fmt.Sprintf("%s by %s at %s", a.name, strings.ReplaceAll(a.by, "/", " "), a.at.dc), func(t *testing.T) {
			key := a.by + " at " + a.at.dc
			if conns[key] == nil {
				role, rest, _ := strings.Cut(a.by, "/")
				dc, node, _ := strings.Cut(rest, "/")
				conns[key] = l.callOutliving(a.at.server.Addr, "server."+a.at.dc+".wanfed",
					tlsutil.Role(role), node, dc)
			}
			log := logOf(a.at.server.Process).mark(t)
			err := a.call(ctx, conns[key])
			if status.Code(err) != a.code || !strings.Contains(status.Convert(err).Message(), a.want) {
				t.Fatalf("call = %v, want %v: %s", err, a.code, a.want)
			}
			if strings.Contains(status.Convert(err).Message(), "\n") {
				t.Errorf("error has several lines, want one: %v", err)
			}
			if a.code == codes.PermissionDenied {
				log.await(t, `msg="call refused".* peer=`+a.by)
				if all, err := log.lines(`msg="call refused"`); err != nil || len(all) != 1 {
					t.Errorf("log lines = %q, %v, want one", all, err)
				}
			}
		})
	}
	if n := metric(t, dc1.server.HTTP,
		`wanfed_calls_refused_total{method="/wanfed.v1.FederationService/Apply",role="server"}`); n < 2 {
		t.Errorf("refused calls of Apply by servers = %v, want at least 2", n)
	}
	if after := stateOf(t, dc1, "dc2"); after != before {
		t.Errorf("federation state of dc2 = %s, want unchanged %s", after, before)
	}
}

// stateOf returns a federation state as text.
func stateOf(t *testing.T, s *site, dc string) string {
	t.Helper()
	states, err := s.states(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range states {
		if st.Datacenter == dc {
			return fmt.Sprintf("%+v", st)
		}
	}
	return "none"
}

// callOutliving opens a connection that several subtests share.
func (l *loopback) callOutliving(addr, sni string, role tlsutil.Role, node, dc string) *grpc.ClientConn {
	return l.call(l.t, addr, sni, role, node, dc)
}

// apply returns a call that writes or deletes the federation state of dc. md is
// the metadata of the call.
func apply(op pb.ApplyFederationStateRequest_Op, dc string,
	md ...string) func(context.Context, *grpc.ClientConn) error {
	return func(ctx context.Context, cc *grpc.ClientConn) error {
		state := numbered(dc, 1)
		if op == pb.ApplyFederationStateRequest_OP_DELETE {
			state = &pb.FederationState{Datacenter: dc}
		}
		ctx = metadata.AppendToOutgoingContext(ctx, md...)
		_, err := pb.NewFederationServiceClient(cc).Apply(ctx, &pb.ApplyFederationStateRequest{Op: op, State: state})
		return err
	}
}

// register returns a call that registers a gateway. md is the metadata of the
// call.
func register(md ...string) func(context.Context, *grpc.ClientConn) error {
	return func(ctx context.Context, cc *grpc.ClientConn) error {
		ctx = metadata.AppendToOutgoingContext(ctx, md...)
		_, err := pb.NewGatewayServiceClient(cc).Register(ctx, &pb.RegisterGatewayRequest{
			Lan: "192.0.2.1:1", Wan: "192.0.2.1:2",
		})
		return err
	}
}

func deregister(ctx context.Context, cc *grpc.ClientConn) error {
	_, err := pb.NewGatewayServiceClient(cc).Deregister(ctx, &pb.DeregisterGatewayRequest{})
	return err
}

func watchGateway(ctx context.Context, cc *grpc.ClientConn) error {
	stream, err := pb.NewGatewayServiceClient(cc).Watch(ctx, &pb.WatchGatewayRequest{})
	if err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

// follow opens a replication stream and waits for its first message.
func follow(ctx context.Context, cc *grpc.ClientConn) error {
	stream, err := pb.NewReplicationServiceClient(cc).Follow(ctx)
	if err != nil {
		return err
	}
	hello := &pb.FollowHello{Types: []*pb.Type{stateType}}
	if err := stream.Send(&pb.FollowRequest{Part: &pb.FollowRequest_Hello{Hello: hello}}); err != nil &&
		!errors.Is(err, io.EOF) {
		return err
	}
	_, err = stream.Recv()
	return err
}

// query sends a request of the HTTP API as a server of another datacenter does.
func query(ctx context.Context, cc *grpc.ClientConn) error {
	_, err := pb.NewServerServiceClient(cc).Query(ctx, &pb.QueryRequest{Path: "/v1/status/leader"})
	return err
}

var (
	stateType = &pb.Type{Group: "federation", GroupVersion: "v1", Kind: "FederationState"}
	keyType   = &pb.Type{Group: "kv", GroupVersion: "v1", Kind: "Entry"}
	nodeType  = &pb.Type{Group: "catalog", GroupVersion: "v1", Kind: "Node"}
)

func writeRecord(typ *pb.Type, name string, data proto.Message) func(context.Context, *grpc.ClientConn) error {
	return func(ctx context.Context, cc *grpc.ClientConn) error {
		a, err := anypb.New(data)
		if err != nil {
			return err
		}
		_, err = pb.NewResourceServiceClient(cc).Write(ctx,
			&pb.WriteRequest{Resource: &pb.Resource{Id: &pb.ID{Type: typ, Name: name}, Data: a}})
		return err
	}
}

func removeRecord(typ *pb.Type, name string) func(context.Context, *grpc.ClientConn) error {
	return func(ctx context.Context, cc *grpc.ClientConn) error {
		_, err := pb.NewResourceServiceClient(cc).Delete(ctx, &pb.DeleteRequest{Id: &pb.ID{Type: typ, Name: name}})
		return err
	}
}

func listRecords(typ *pb.Type) func(context.Context, *grpc.ClientConn) error {
	return func(ctx context.Context, cc *grpc.ClientConn) error {
		_, err := pb.NewResourceServiceClient(cc).List(ctx, &pb.ListRequest{Type: typ})
		return err
	}
}

// attempts returns all calls. They run in this order: some depend on the effect
// of the ones before them.
func attempts(dc1, dc2 *site) (all []attempt) {
	const (
		upsert   = pb.ApplyFederationStateRequest_OP_UPSERT
		del      = pb.ApplyFederationStateRequest_OP_DELETE
		behalf   = "wanfed-on-behalf"
		denied   = codes.PermissionDenied
		notHere  = codes.FailedPrecondition
		notAlive = "dc7" // a datacenter without processes
	)
	add := func(at *site, code codes.Code, want, name string, call func(context.Context, *grpc.ClientConn) error,
		by ...string) {
		for _, p := range by {
			all = append(all, attempt{name, p, at, call, code, want})
		}
	}
	ofOthers := []string{"gateway/dc1/gw1", "gateway/dc2/gw1", "client/dc1/client"}

	// Only the servers of a datacenter, and operators, may write its federation
	// state.
	add(dc1, denied,
		"may not write the federation state of dc2: a server may write only the state of its own datacenter",
		"upsert dc2",
		apply(upsert, "dc2"), "server/dc3/srv1", "server/dc1/srv1")
	add(dc1, denied, "may not call /wanfed.v1.FederationService/Apply: its certificate's role is", "upsert dc2",
		apply(upsert, "dc2"), ofOthers...)
	add(dc1, denied, "may not call", "delete dc2", apply(del, "dc2"), ofOthers...)
	add(dc1, denied,
		"may not delete federation states: create an operator's certificate with: wanfed tls cert create --operator",
		"delete dc2",
		apply(del, "dc2"), "server/dc3/srv1", "server/dc2/srv1")
	add(dc1, codes.FailedPrecondition, "dc2 is alive in the WAN pool", "delete dc2", apply(del, "dc2"), "cli/dc1/cli",
		"server/dc1/srv1")
	add(dc1, denied, "may not call /wanfed.v1.FederationService/Apply in dc1: operators of dc3 act only in dc3: use a certificate "+
		"of dc1", "delete dc2", apply(del, "dc2"), "cli/dc3/cli")
	add(dc1, codes.InvalidArgument, "not a DNS label", "upsert a name that is not a label", apply(upsert, "dc.2"),
		"cli/dc1/cli")
	add(dc1, codes.InvalidArgument, "op is", "no operation", apply(0, "dc3"), "server/dc3/srv1")
	add(dc2, notHere, "dc2 is not the primary: federation states are written in dc1", "upsert dc2",
		apply(upsert, "dc2"), "server/dc2/srv1", "cli/dc2/cli")
	add(dc1, codes.OK, "", "upsert its own", apply(upsert, notAlive), "server/dc7/srv1")
	add(dc1, codes.OK, "", "delete a dead one", apply(del, notAlive), "cli/dc1/cli")
	add(dc1, codes.OK, "", "upsert its own again", apply(upsert, notAlive), "server/dc7/srv1")
	add(dc1, codes.OK, "", "delete a dead one", apply(del, notAlive), "server/dc1/srv1")

	// An invalid federation state is refused from every role.
	for what, bad := range map[string]*pb.FederationState{
		`host "a b" is neither an IP address nor a DNS name`: stateWith("dc3", "192.0.2.1:1", "a b:2"),
		"0.0.0.0 is unspecified":                             stateWith("dc3", "192.0.2.1:1", "0.0.0.0:2"),
		"port is not a number":                               stateWith("dc3", "192.0.2.1:1", "192.0.2.1:0"),
		`gateway gw1 is in datacenter "dc4"`: {
			Datacenter: "dc3", MeshGateways: stateWith("dc4", "192.0.2.1:1", "192.0.2.1:2").MeshGateways,
		},
	} {
		add(dc1, codes.InvalidArgument, what, "upsert", func(ctx context.Context, cc *grpc.ClientConn) error {
			_, err := pb.NewFederationServiceClient(cc).Apply(ctx,
				&pb.ApplyFederationStateRequest{Op: upsert, State: bad})
			return err
		}, "server/dc3/srv1", "cli/dc1/cli")
		add(dc1, codes.InvalidArgument, what, "write", writeRecord(stateType, "dc3", bad), "cli/dc1/cli")
	}
	add(dc1, codes.InvalidArgument, "WAN address", "register nowhere",
		func(ctx context.Context, cc *grpc.ClientConn) error {
			_, err := pb.NewGatewayServiceClient(cc).Register(ctx, &pb.RegisterGatewayRequest{
				Lan: "192.0.2.1:1", Wan: "0.0.0.0:8443",
			})
			return err
		}, "gateway/dc1/gw5")
	add(dc1, codes.InvalidArgument, "meta has 5001 bytes", "register with much",
		func(ctx context.Context, cc *grpc.ClientConn) error {
			_, err := pb.NewGatewayServiceClient(cc).Register(ctx, &pb.RegisterGatewayRequest{
				Lan: "192.0.2.1:1", Wan: "192.0.2.1:2", Meta: map[string]string{"m": strings.Repeat("x", 5000)},
			})
			return err
		}, "gateway/dc1/gw5")

	// A delegated identity is accepted only from a server of the same
	// datacenter.
	for _, as := range []string{"server/dc2/srv1", "cli/dc1/cli", "server/dc1/srv1"} {
		forged := strings.ReplaceAll(as, "/", " ")
		add(dc1, denied, "may not write the federation state of dc2", "upsert dc2 as "+forged,
			apply(upsert, "dc2", behalf, as), "server/dc3/srv1")
		add(dc1, denied, "may not call", "upsert dc2 as "+forged, apply(upsert, "dc2", behalf, as), "gateway/dc1/gw1",
			"client/dc1/client")
		add(dc1, denied, "may not delete", "delete dc2 as "+forged, apply(del, "dc2", behalf, as), "server/dc3/srv1")
	}
	add(dc1, denied, "may not call", "register as another's gateway", register(behalf, "gateway/dc1/gw1"),
		"server/dc3/srv1", "gateway/dc2/gw1")
	add(dc1, codes.InvalidArgument, "metadata wanfed-on-behalf is not role/dc/node", "upsert with a malformed identity",
		apply(upsert, "dc2", behalf, "x"), "server/dc1/srv1")

	// A gateway may register only in its own datacenter.
	const gatewayElsewhere = "only gateways of dc1 may"
	add(dc1, denied, gatewayElsewhere, "register", register(), "gateway/dc2/gw1")
	add(dc1, denied, gatewayElsewhere, "deregister", deregister, "gateway/dc2/gw1")
	add(dc1, denied, gatewayElsewhere, "watch", watchGateway, "gateway/dc2/gw1")
	for name, call := range map[string]func(context.Context, *grpc.ClientConn) error{
		"register": register(), "deregister": deregister, "watch": watchGateway,
	} {
		add(dc1, denied, "may not call", name, call, "server/dc1/srv1", "server/dc2/srv1", "client/dc1/client",
			"cli/dc1/cli")
	}
	add(dc1, codes.OK, "", "watch", watchGateway, "gateway/dc1/gw1")

	// Resources of a federated type are written in the primary, and the
	// resource service applies the same rules.
	state := numbered("dc2", 1)
	add(dc1, denied, "only servers of dc1 may", "write a federation state", writeRecord(stateType, "dc2", state),
		"server/dc2/srv1", "server/dc3/srv1")
	add(dc1, denied, "may not write the federation state of dc2", "write a federation state",
		writeRecord(stateType, "dc2", state), "server/dc1/srv1")
	add(dc1, denied, "may not call", "write a federation state", writeRecord(stateType, "dc2", state), ofOthers...)
	add(dc1, denied, "may not", "delete a federation state", removeRecord(stateType, "dc2"),
		append(ofOthers, "server/dc1/srv1", "server/dc2/srv1")...)
	add(dc1, codes.InvalidArgument, `data.datacenter is "dc2" in a resource called "dc3"`,
		"write a state under another name", writeRecord(stateType, "dc3", state), "cli/dc1/cli")
	for name, call := range map[string]func(context.Context, *grpc.ClientConn) error{
		"write": writeRecord(stateType, "dc2", state), "delete": removeRecord(stateType, "dc2"),
	} { // which goes to the primary
		name += " a federation state in a secondary"
		add(dc2, denied, "only servers of dc1 may", name, call, "server/dc2/srv1")
		add(dc2, denied, "dc1 does not accept writes through servers of dc2", name, call, "cli/dc2/cli")
		add(dc2, denied, "operators of dc1 act only in dc1: use a certificate of dc2", name, call, "cli/dc1/cli")
	}
	add(dc2, denied, "may not call", "write a federation state in a secondary", writeRecord(stateType, "dc2", state),
		"server/dc1/srv1", "gateway/dc2/gw1", "client/dc2/client")
	node := &pb.Node{Node: "n1", Address: "192.0.2.1", Datacenter: "dc1"}
	add(dc1, denied, "may not call", "write a node", writeRecord(nodeType, "n1", node), "server/dc2/srv1",
		"gateway/dc1/gw1", "client/dc1/client")
	add(dc1, denied, "may not call", "list nodes", listRecords(nodeType), "gateway/dc1/gw1", "gateway/dc2/gw1")
	add(dc1, codes.OK, "", "list nodes", listRecords(nodeType), "client/dc1/client", "server/dc2/srv1", "client/dc2/client")
	add(dc1, denied, "may not list kv/v1/Entry of dc1", "list keys", listRecords(keyType), "server/dc2/srv1",
		"client/dc2/client", "cli/dc2/cli", "sync/dc2/sync1")
	add(dc1, denied, "no rule of policy joe permits it", "list keys", listRecords(keyType), "user/dc1/joe")
	add(dc1, codes.OK, "", "list keys", listRecords(keyType), "client/dc1/client", "sync/dc1/sync1")

	// Only servers may follow. Servers and operators may query.
	add(dc1, denied, "may not call", "follow", follow, append(ofOthers, "cli/dc1/cli", "cli/dc2/cli")...)
	add(dc1, denied, "may not call", "query", query, append(ofOthers, "cli/dc1/cli", "cli/dc2/cli")...)
	add(dc1, codes.OK, "", "follow", follow, "server/dc3/srv1")
	add(dc1, codes.OK, "", "query", query, "server/dc3/srv1")
	add(dc2, notHere, "cannot be followed: it is not the primary", "follow", follow, "server/dc3/srv1")

	add(dc1, denied, "may not call", "health", func(ctx context.Context, cc *grpc.ClientConn) error {
		_, err := healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{})
		return err
	}, "gateway/dc2/gw1", "client/dc2/client")
	add(dc1, codes.Unimplemented, "unknown", "no such method", func(ctx context.Context, cc *grpc.ClientConn) error {
		return cc.Invoke(ctx, "/wanfed.v1.FederationService/Steal", &pb.GetFederationStateRequest{},
			&pb.GetFederationStateResponse{})
	}, "server/dc3/srv1")
	return all
}
