// SPDX-License-Identifier: MPL-2.0

package resource_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
	"github.com/wanfed/wanfed/tlsutil"
)

var (
	fsType   = &pb.Type{Group: "federation", GroupVersion: "v1", Kind: "FederationState"}
	nodeType = &pb.Type{Group: "catalog", GroupVersion: "v1", Kind: "Node"}
	hostType = &pb.Type{Group: "catalog", GroupVersion: "v1", Kind: "Host"}
)

// rig is a service over gRPC. Who calls is what the test says; certificates are tested where they are read.
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

// newRig serves b, or, without one, a new memory store.
func newRig(t *testing.T, b resource.Backend) *rig {
	t.Helper()
	if b == nil {
		s := memory.New()
		t.Cleanup(func() { s.Close() })
		b = s
	}
	g := &rig{T: t, backend: b}
	g.primary.Store(true)
	g.as(tlsutil.RoleServer, "dc1")
	svc, err := resource.NewService(resource.ServiceConfig{
		Backend: b, Registry: registry(t), DC: "dc1", Primary: g.primary.Load,
		Peer: func(context.Context) (tlsutil.Peer, error) {
			if p := g.peer.Load(); p != nil {
				return *p, nil
			}
			return tlsutil.Peer{}, errors.New("no certificate")
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	pb.RegisterResourceServiceServer(srv, svc)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() { srv.Stop(); <-served })
	cc, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
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
		{Type: fsType, Message: &pb.FederationState{}, Federated: true},
		{Type: nodeType, Message: &pb.Node{}},
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

// fails writes r, which must fail with code, want and a text that has text.
func (g *rig) fails(r *pb.Resource, code codes.Code, want error, text string) {
	g.Helper()
	_, err := g.Write(g.Context(), &pb.WriteRequest{Resource: r})
	g.check(err, code, want, text)
}

func (g *rig) check(err error, code codes.Code, want error, text string) {
	g.Helper()
	if status.Code(err) != code || !errors.Is(resource.FromStatus(err), want) || !strings.Contains(fmt.Sprint(err), text) {
		g.Errorf("got %v; want %v, %v and %q", err, code, want, text)
	}
}

func TestServiceWrite(t *testing.T) {
	g := newRig(t, nil)
	given := node(t, "a", "10.0.0.1")
	given.Metadata = map[string]string{"k": "v"}
	given.PrimaryModifyIndex, given.CreateIndex, given.Generation = 7, 7, "mine"
	first := g.write(given)
	if len(first.Id.Uid) != 26 || len(first.Generation) != 26 || first.Version == "" || first.PrimaryModifyIndex != 0 ||
		first.CreateIndex == 7 || first.Metadata["k"] != "v" || first.Id.Tenancy.GetNamespace() != "default" {
		t.Errorf("created %v", first)
	}

	// A controller's status stays, and the generation with it.
	withStatus := proto.CloneOf(first)
	withStatus.Status = map[string]*pb.Status{"c": {ObservedGeneration: first.Generation}}
	if _, err := g.backend.Commit(t.Context(), resource.PutOp(withStatus, first.Version)); err != nil {
		t.Fatal(err)
	}
	same := g.write(node(t, "a", "10.0.0.1")) // no version, no metadata
	if same.Generation != first.Generation || same.Id.Uid != first.Id.Uid || same.Version == first.Version ||
		same.Status["c"] == nil || len(same.Metadata) != 0 {
		t.Errorf("same data written: %v", same)
	}
	changed := proto.CloneOf(same)
	changed.Data = data(t, &pb.Node{Node: "a", Address: "10.0.0.2"})
	changed.Status = nil
	second := g.write(changed) // compare-and-swap
	if second.Generation == first.Generation || second.Status["c"] == nil {
		t.Errorf("other data written: %v", second)
	}

	g.fails(changed, codes.Aborted, resource.ErrConflict, `write catalog/v1/Node "a": resource was changed meanwhile: its version is `+second.Version+", not "+same.Version)
	r := node(t, "b", "")
	r.Version = "12"
	g.fails(r, codes.Aborted, resource.ErrConflict, "there is none")
	r = node(t, "b", "")
	r.Id.Uid = first.Id.Uid
	g.fails(r, codes.FailedPrecondition, resource.ErrWrongUID, "there is none")
	r = node(t, "a", "")
	r.Id.Uid = resource.NewUID()
	g.fails(r, codes.FailedPrecondition, resource.ErrWrongUID, second.Id.Uid)
}

func TestServiceRefuses(t *testing.T) {
	g := newRig(t, nil)
	with := func(change func(r *pb.Resource)) *pb.Resource {
		r := node(t, "a", "")
		change(r)
		return r
	}
	for text, r := range map[string]*pb.Resource{
		`invalid name "A": must be`:                                     with(func(r *pb.Resource) { r.Id.Name = "A" }),
		`invalid type "//": is not registered`:                          with(func(r *pb.Resource) { r.Id = nil }),
		`invalid type "catalog/v2/Node": is not registered; known are `: with(func(r *pb.Resource) { r.Id.Type = &pb.Type{Group: "catalog", GroupVersion: "v2", Kind: "Node"} }),
		`invalid tenancy.partition "x": must be "default"`:              with(func(r *pb.Resource) { r.Id.Tenancy = &pb.Tenancy{Partition: "x"} }),
		`invalid tenancy.namespace "*": must be "default"`:              with(func(r *pb.Resource) { r.Id.Tenancy = &pb.Tenancy{Namespace: "*"} }),
		`its type is "", not "wanfed.v1.Node"`:                          with(func(r *pb.Resource) { r.Data = nil }),
		`its type is "wanfed.v1.Check", not "wanfed.v1.Node"`:           with(func(r *pb.Resource) { r.Data = data(t, &pb.Check{}) }),
		`not a wanfed.v1.Node`:                                          with(func(r *pb.Resource) { r.Data.Value = []byte{0xff} }),
		`invalid version "*"`:                                           with(func(r *pb.Resource) { r.Version = "*" }),
		`invalid owner catalog/v1/Node "none": must be stored`:          with(func(r *pb.Resource) { r.Owner = &pb.ID{Type: nodeType, Name: "none"} }),
		`owner: invalid name "B"`:                                       with(func(r *pb.Resource) { r.Owner = &pb.ID{Type: nodeType, Name: "B"} }),
		`owner: invalid type "//"`:                                      with(func(r *pb.Resource) { r.Owner = &pb.ID{Name: "b"} }),
		`data.node "a": must be the resource's name`: with(func(r *pb.Resource) {
			r.Id.Type, r.Id.Name = hostType, "b"
		}),
	} {
		g.fails(r, codes.InvalidArgument, resource.ErrInvalid, text)
	}
	if _, err := g.List(t.Context(), &pb.ListRequest{Type: nodeType, NamePrefix: "A"}); true {
		g.check(err, codes.InvalidArgument, resource.ErrInvalid, `name_prefix "A"`)
	}
	if _, err := g.List(t.Context(), &pb.ListRequest{Type: nodeType, Tenancy: &pb.Tenancy{Partition: "x"}}); true {
		g.check(err, codes.InvalidArgument, resource.ErrInvalid, `tenancy.partition "x"`)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), resource.ConsistencyKey, "sometimes")
	if _, err := g.List(ctx, &pb.ListRequest{Type: nodeType}); true {
		g.check(err, codes.InvalidArgument, resource.ErrInvalid, `"sometimes": must be "consistent" or "stale"`)
	}
	if _, err := g.Read(t.Context(), &pb.ReadRequest{Id: &pb.ID{Type: nodeType, Name: "a"}}); true {
		g.check(err, codes.NotFound, resource.ErrNotFound, `catalog/v1/Node "a": resource not found`)
	}
	if _, err := resource.NewService(resource.ServiceConfig{}); err == nil || strings.Count(err.Error(), "is required") != 5 {
		t.Errorf("a service without anything: %v", err)
	}
}

func TestServiceHooks(t *testing.T) {
	g := newRig(t, nil)
	host := func(name string) *pb.Resource {
		return &pb.Resource{Id: &pb.ID{Type: hostType, Name: name}, Data: data(t, &pb.Node{Node: name})}
	}
	n, err := resource.Decode[*pb.Node](g.write(host("n")))
	if err != nil || n.Address != "127.0.0.1" {
		t.Errorf("mutated to %v, %v", n, err)
	}
	g.as(tlsutil.RoleGateway, "dc1") // its node is n
	g.write(host("n"))
	g.fails(host("other"), codes.PermissionDenied, resource.ErrDenied, "gateway/dc1/n may not write catalog/v1/Host: a gateway may write itself alone")
}

// TestServicePeers: what a type without rules of its own allows.
func TestServicePeers(t *testing.T) {
	g := newRig(t, nil)
	g.write(node(t, "a", ""))
	id := &pb.ID{Type: nodeType, Name: "a"}
	for _, tc := range []struct {
		role        tlsutil.Role
		dc          string
		read, write bool
	}{
		{tlsutil.RoleServer, "dc1", true, true}, {tlsutil.RoleCLI, "dc1", true, true},
		{tlsutil.RoleGateway, "dc1", true, false}, {tlsutil.RoleClient, "dc1", true, false},
		{tlsutil.RoleServer, "dc2", true, false}, {tlsutil.RoleCLI, "dc2", true, false},
		{tlsutil.RoleGateway, "dc2", false, false}, {tlsutil.RoleClient, "dc2", false, false},
	} {
		g.as(tc.role, tc.dc)
		_, read := g.Read(t.Context(), &pb.ReadRequest{Id: id})
		_, list := g.List(t.Context(), &pb.ListRequest{Type: nodeType})
		_, write := g.Write(t.Context(), &pb.WriteRequest{Resource: node(t, "a", "")})
		_, del := g.Delete(t.Context(), &pb.DeleteRequest{Id: &pb.ID{Type: nodeType, Name: "none"}})
		for _, c := range []struct {
			err  error
			good bool
		}{{read, tc.read}, {list, tc.read}, {write, tc.write}, {del, tc.write}} {
			if (c.err == nil) != c.good || !c.good && status.Code(c.err) != codes.PermissionDenied {
				t.Errorf("%v/%s: %v", tc.role, tc.dc, c.err)
			}
		}
	}
	g.peer.Store(nil)
	_, err := g.Read(t.Context(), &pb.ReadRequest{Id: id})
	g.check(err, codes.PermissionDenied, resource.ErrDenied, "no certificate")
	stream, err := g.WatchList(t.Context(), &pb.WatchListRequest{Type: nodeType})
	if err == nil {
		_, err = stream.Recv()
	}
	g.check(err, codes.PermissionDenied, resource.ErrDenied, "no certificate")
}

func TestServiceFederated(t *testing.T) {
	g := newRig(t, nil)
	fs := &pb.Resource{Id: &pb.ID{Type: fsType, Name: "dc2"}, Data: data(t, &pb.FederationState{Datacenter: "dc2"})}
	g.write(fs)
	g.primary.Store(false)
	g.fails(fs, codes.FailedPrecondition, resource.ErrFederated, "federation/v1/FederationState is federated: write it in the primary datacenter")
	_, err := g.Delete(t.Context(), &pb.DeleteRequest{Id: fs.Id})
	g.check(err, codes.FailedPrecondition, resource.ErrFederated, "write it in the primary datacenter")
	g.write(node(t, "a", "")) // not federated
	if _, err := g.Read(t.Context(), &pb.ReadRequest{Id: fs.Id}); err != nil {
		t.Error(err)
	}
}

func TestServiceOwner(t *testing.T) {
	g := newRig(t, nil)
	owner := g.write(node(t, "o", ""))
	child := node(t, "c", "")
	child.Owner = &pb.ID{Type: nodeType, Name: "o"} // by name: the one stored now
	stored := g.write(child)
	if stored.Owner.GetUid() != owner.Id.Uid {
		t.Errorf("owner %v, want uid %s", stored.Owner, owner.Id.Uid)
	}
	g.write(child)                      // the same owner
	again := g.write(node(t, "c", "x")) // none: it stays
	if !proto.Equal(again.Owner, stored.Owner) {
		t.Errorf("owner %v", again.Owner)
	}
	child.Owner = &pb.ID{Type: nodeType, Name: "other"}
	g.fails(child, codes.InvalidArgument, resource.ErrInvalid, "must be as it was at creation")

	for _, ctx := range []context.Context{t.Context(), resource.WithConsistency(t.Context(), resource.Strong)} {
		for _, id := range []*pb.ID{owner.Id, {Type: nodeType, Name: "o"}} {
			out, err := g.ListByOwner(ctx, &pb.ListByOwnerRequest{Owner: id})
			if err != nil || len(out.GetResources()) != 1 || out.GetResources()[0].Id.Name != "c" {
				t.Errorf("ListByOwner %v: %v, %v", id, out, err)
			}
		}
	}
	if _, err := g.Delete(t.Context(), &pb.DeleteRequest{Id: owner.Id}); err != nil {
		t.Fatal(err)
	}
	_, err := g.Read(t.Context(), &pb.ReadRequest{Id: stored.Id})
	g.check(err, codes.NotFound, resource.ErrNotFound, "")
}

func TestServiceDelete(t *testing.T) {
	g := newRig(t, nil)
	r := g.write(node(t, "a", ""))
	byName := &pb.ID{Type: nodeType, Name: "a"}
	_, err := g.Delete(t.Context(), &pb.DeleteRequest{Id: byName, Version: "1"})
	g.check(err, codes.Aborted, resource.ErrConflict, "its version is "+r.Version)
	for _, req := range []*pb.DeleteRequest{
		{Id: &pb.ID{Type: nodeType, Name: "a", Uid: resource.NewUID()}}, // an earlier one: gone
		{Id: byName, Version: r.Version},
		{Id: byName, Version: r.Version},
		{Id: byName},
	} {
		if _, err := g.Delete(t.Context(), req); err != nil {
			t.Errorf("delete %v: %v", req, err)
		}
	}
	_, err = g.Read(t.Context(), &pb.ReadRequest{Id: byName})
	g.check(err, codes.NotFound, resource.ErrNotFound, "")
}

func TestServiceWatch(t *testing.T) {
	g := newRig(t, nil)
	a := g.write(node(t, "a", ""))
	g.write(node(t, "b", ""))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := g.WatchList(ctx, &pb.WatchListRequest{Type: nodeType, NamePrefix: "a"})
	if err != nil {
		t.Fatal(err)
	}
	next := func() *pb.WatchEvent {
		t.Helper()
		ev, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return ev
	}
	if ev := next(); !proto.Equal(ev.GetUpsert().GetResource(), a) {
		t.Errorf("snapshot %v", ev)
	}
	if ev := next(); ev.GetEndOfSnapshot() == nil {
		t.Errorf("end of snapshot %v", ev)
	}
	if _, err := g.Delete(t.Context(), &pb.DeleteRequest{Id: a.Id}); err != nil {
		t.Fatal(err)
	}
	if ev := next(); ev.GetDelete().GetResource().GetId().GetUid() != a.Id.Uid {
		t.Errorf("delete %v", ev)
	}
	cancel()
	if _, err := stream.Recv(); !errors.Is(resource.FromStatus(err), context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	out, err := g.List(t.Context(), &pb.ListRequest{Type: nodeType, Tenancy: &pb.Tenancy{Partition: "*", Namespace: "*"}})
	if err != nil || len(out.GetResources()) != 1 {
		t.Errorf("list: %v, %v", out, err)
	}
}

// TestServiceConcurrent: writes without a version all land, though each is a compare-and-swap.
func TestServiceConcurrent(t *testing.T) {
	g := newRig(t, nil)
	g.write(node(t, "a", ""))
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 20 {
				if _, err := g.Write(t.Context(), &pb.WriteRequest{Resource: node(t, "a", "")}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// scripted answers eventual reads with what was true before, and strong ones and commits as the store does: a new leader
// that has not applied everything yet. It fails commits while errs has errors.
type scripted struct {
	resource.Backend
	stale *pb.Resource
	errs  []error
	tries int
}

func (s *scripted) Read(ctx context.Context, c resource.Consistency, id *pb.ID) (*pb.Resource, error) {
	if c == resource.Eventual && s.stale != nil {
		return s.stale, nil
	}
	return s.Backend.Read(ctx, c, id)
}

func (s *scripted) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	s.tries++
	if len(s.errs) > 0 {
		err := s.errs[0]
		s.errs = s.errs[1:]
		return nil, err
	}
	return s.Backend.Commit(ctx, ops...)
}

// TestServiceStale: a read that is out of date refuses nobody.
func TestServiceStale(t *testing.T) {
	store := memory.New()
	defer store.Close()
	b := &scripted{Backend: store}
	g := newRig(t, b)
	first := g.write(node(t, "a", "1"))
	second := g.write(node(t, "a", "2"))
	b.stale = first
	r := node(t, "a", "3")
	r.Version = second.Version
	if got := g.write(r); got.Version == second.Version {
		t.Errorf("written %v", got)
	}
}

// TestServiceRetry: conflicts are tried again within bounds, and only where the client asked for no version; other errors not
// at all.
func TestServiceRetry(t *testing.T) {
	store := memory.New()
	defer store.Close()
	b := &scripted{Backend: store}
	g := newRig(t, b)
	first := g.write(node(t, "a", "1"))
	conflicts := func(n int) (errs []error) {
		for range n {
			errs = append(errs, fmt.Errorf("race: %w", resource.ErrConflict))
		}
		return errs
	}
	b.tries, b.errs = 0, conflicts(7)
	g.write(node(t, "a", "2"))
	if b.tries != 8 {
		t.Errorf("%d tries", b.tries)
	}
	b.errs = conflicts(8)
	g.fails(node(t, "a", "3"), codes.Aborted, resource.ErrConflict, "race")

	r := node(t, "a", "4")
	stored, _ := store.Read(t.Context(), resource.Strong, first.Id)
	r.Version = stored.Version
	b.tries, b.errs = 0, conflicts(1)
	g.fails(r, codes.Aborted, resource.ErrConflict, "race")
	b.errs = []error{resource.ErrNotLeader}
	g.fails(node(t, "a", "5"), codes.Unavailable, resource.ErrNotLeader, "not the leader")
	b.errs = []error{resource.ErrUnknownOutcome}
	g.fails(node(t, "a", "6"), codes.Unknown, resource.ErrUnknownOutcome, "unknown")
	if b.tries != 3 {
		t.Errorf("%d tries, want 1 each", b.tries)
	}
}
