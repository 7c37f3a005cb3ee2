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
	zoneType = &pb.Type{Group: "catalog", GroupVersion: "v1", Kind: "Zone"}

	keyType = &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Key"}

	zone2Type = &pb.Type{Group: "catalog", GroupVersion: "v2", Kind: "Zone"}
)

// rig is a service over gRPC. The test sets the caller; other packages test
// certificates.
type rig struct {
	*testing.T
	pb.ResourceServiceClient
	backend resource.Backend
	peer    atomic.Pointer[tlsutil.Peer]
	primary atomic.Bool
}

func (g *rig) as(role tlsutil.Role, dc string) {
	g.peer.Store(&tlsutil.Peer{Role: role, Node: "n", DC: dc})
}

// newRig serves b, or a new memory store if b is nil. Change may modify the config.
func newRig(t *testing.T, b resource.Backend, change ...func(*resource.ServiceConfig)) *rig {
	t.Helper()
	if b == nil {
		s := resourcetest.NewStore()
		t.Cleanup(func() { s.Close() })
		b = s
	}
	g := &rig{T: t, backend: b}
	g.primary.Store(true)
	g.as(tlsutil.RoleServer, "dc1")
	cfg := resource.ServiceConfig{
		Backend: b, Registry: registry(t), DC: "dc1", Primary: g.primary.Load,
		Peer: func(context.Context) (tlsutil.Peer, error) {
			if p := g.peer.Load(); p != nil {
				return *p, nil
			}
			return tlsutil.Peer{}, errors.New("no certificate")
		},
	}
	for _, f := range change {
		f(&cfg)
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
	cc, err := grpc.NewClient("passthrough:///rig", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	g.ResourceServiceClient = pb.NewResourceServiceClient(cc)
	return g
}

func registry(t *testing.T) *resource.Registry {
	t.Helper()
	reg := resource.NewRegistry()
	for _, r := range []resource.Registration{
		{Type: fsType, Message: &pb.FederationState{}, Federated: true, Scope: resource.ScopeCluster},
		{Type: nodeType, Message: &pb.Node{}},
		{Type: keyType, Message: &pb.Node{}, CheckName: resource.CheckUTF8Name},
		{Type: zoneType, Message: &pb.Node{}, Scope: resource.ScopePartition},
		{Type: zone2Type, Message: &pb.Node{}, Scope: resource.ScopePartition},
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
					return errors.New("a gateway may write itself alone")
				}
				return nil
			},
		},
	} {
		if err := reg.Register(r); err != nil {
			t.Fatal(err)
		}
	}
	return reg
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

func (g *rig) write(r *pb.Resource) *pb.Resource {
	g.Helper()
	out, err := g.Write(g.Context(), &pb.WriteRequest{Resource: r})
	if err != nil {
		g.Fatal(err)
	}
	return out.GetResource()
}

// fails checks that a write of r fails with code, with the error want, and with text
// in its text.
func (g *rig) fails(r *pb.Resource, code codes.Code, want error, text string) {
	g.Helper()
	_, err := g.Write(g.Context(), &pb.WriteRequest{Resource: r})
	g.check(err, code, want, text)
}

func (g *rig) check(err error, code codes.Code, want error, text string) {
	g.Helper()
	if status.Code(err) != code || !errors.Is(resource.FromStatus(err), want) || !strings.Contains(fmt.Sprint(err), text) {
		g.Errorf("Write() = %v, want %v, %v and %q", err, code, want, text)
	}
}
