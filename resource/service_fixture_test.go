// SPDX-License-Identifier: MPL-2.0

package resource_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

var (
	fsType   = &pb.Type{Group: "federation", GroupVersion: "v1", Kind: "FederationState"}
	nodeType = &pb.Type{Group: "catalog", GroupVersion: "v1", Kind: "Node"}
	hostType = &pb.Type{Group: "catalog", GroupVersion: "v1", Kind: "Host"}
	keyType  = &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Key"}

	// zoneType and zoneV2Type are two versions of one type.
	zoneType   = &pb.Type{Group: "catalog", GroupVersion: "v1", Kind: "Zone"}
	zoneV2Type = &pb.Type{Group: "catalog", GroupVersion: "v2", Kind: "Zone"}
)

// fixture is a client of a Service in dc1, over gRPC in memory.
type fixture struct {
	*testing.T
	pb.ResourceServiceClient
	backend resource.Backend
	peer    atomic.Pointer[tlsutil.Peer] // the caller; nil: a caller without a certificate
	primary atomic.Bool                  // whether dc1 is the primary
}

// as sets the caller of the following calls.
func (f *fixture) as(role tlsutil.Role, dc string) {
	f.peer.Store(&tlsutil.Peer{Role: role, Node: "n", DC: dc})
}

// newFixture serves b, or a new store if b is nil. The changes modify the
// configuration of the Service.
func newFixture(t *testing.T, b resource.Backend, changes ...func(*resource.ServiceConfig)) *fixture {
	t.Helper()
	if b == nil {
		s := resourcetest.NewStore()
		t.Cleanup(func() { s.Close() })
		b = s
	}
	registry := resource.NewRegistry()
	if err := registerTypes(registry); err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, backend: b}
	f.primary.Store(true)
	f.as(tlsutil.RoleServer, "dc1")
	cfg := resource.ServiceConfig{
		Backend: b, Registry: registry, DC: "dc1", Primary: f.primary.Load,
		Peer: func(context.Context) (tlsutil.Peer, error) {
			if p := f.peer.Load(); p != nil {
				return *p, nil
			}
			return tlsutil.Peer{}, errors.New("no certificate")
		},
	}
	for _, change := range changes {
		change(&cfg)
	}
	svc, err := resource.NewService(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l := bufconn.Listen(64 << 10) // not a socket, because of synctest
	srv := grpc.NewServer(grpc.MaxRecvMsgSize(2 * resource.MaxSize))
	pb.RegisterResourceServiceServer(srv, svc)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() { srv.Stop(); <-served })
	cc, err := grpc.NewClient("passthrough:///fixture", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	f.ResourceServiceClient = pb.NewResourceServiceClient(cc)
	return f
}

// registerTypes adds the types of the tests to a registry.
func registerTypes(reg *resource.Registry) error {
	for _, r := range []resource.Registration{
		{Type: fsType, Message: &pb.FederationState{}, Federated: true, Scope: resource.ScopeCluster},
		{Type: nodeType, Message: &pb.Node{}},
		{Type: keyType, Message: &pb.Node{}, CheckName: resource.CheckUTF8Name},
		{Type: zoneType, Message: &pb.Node{}, Scope: resource.ScopePartition},
		{Type: zoneV2Type, Message: &pb.Node{}, Scope: resource.ScopePartition},
		{
			Type: hostType, Message: &pb.Node{},
			Mutate: func(r *pb.Resource) error {
				n, err := resource.Decode[*pb.Node](r)
				if err != nil || n.Address != "" {
					return err
				}
				n.Address = "127.0.0.1"
				r.Data, err = anypb.New(n)
				return err
			},
			Validate: func(r *pb.Resource) error {
				n, err := resource.Decode[*pb.Node](r)
				if err == nil && n.Node != r.Id.Name {
					err = fmt.Errorf("data.node %q: must be the resource's name", n.Node)
				}
				return err
			},
			Authorize: func(p tlsutil.Peer, verb resource.Verb, r *pb.Resource) error {
				if p.Role == tlsutil.RoleGateway && verb == resource.VerbWrite && r.Id.Name != p.Node {
					return errors.New("a gateway may write only itself")
				}
				return nil
			},
		},
	} {
		if err := reg.Register(r); err != nil {
			return err
		}
	}
	return nil
}

func data(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func node(t testing.TB, name, address string) *pb.Resource {
	return &pb.Resource{Id: &pb.ID{Type: nodeType, Name: name}, Data: data(t, &pb.Node{Node: name, Address: address})}
}

// write writes r and returns the stored resource.
func (f *fixture) write(r *pb.Resource) *pb.Resource {
	f.Helper()
	out, err := f.Write(f.Context(), &pb.WriteRequest{Resource: r})
	if err != nil {
		f.Fatal(err)
	}
	return out.GetResource()
}

// fails checks the error of a write of r. See check.
func (f *fixture) fails(r *pb.Resource, code codes.Code, want error, text string) {
	f.Helper()
	_, err := f.Write(f.Context(), &pb.WriteRequest{Resource: r})
	f.check(err, code, want, text)
}

// check checks that err has the code, is the error want of package resource,
// and contains text.
func (f *fixture) check(err error, code codes.Code, want error, text string) {
	f.Helper()
	if status.Code(err) != code || !errors.Is(resource.FromStatus(err), want) ||
		!strings.Contains(fmt.Sprint(err), text) {
		f.Errorf("call of the service = %v, want code %v, error %q and text %q", err, code, want, text)
	}
}
