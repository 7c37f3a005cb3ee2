// SPDX-License-Identifier: MPL-2.0

package resource_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// TestServicePeers checks the default authorization.
func TestServicePeers(t *testing.T) {
	g := newRig(t, nil)
	g.write(node(t, "a", ""))
	id := &pb.ID{Type: nodeType, Name: "a"}
	for _, tc := range []struct {
		role        tlsutil.Role
		dc          string
		read, write bool
	}{
		{tlsutil.RoleServer, "dc1", true, true}, {tlsutil.RoleOperator, "dc1", true, true},
		{tlsutil.RoleGateway, "dc1", true, false}, {tlsutil.RoleClient, "dc1", true, false},
		{tlsutil.RoleServer, "dc2", true, false}, {tlsutil.RoleOperator, "dc2", true, true},
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
				t.Errorf("call of %v of %s = %v", tc.role, tc.dc, c.err)
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
		t.Errorf("first event = %v, want an upsert", ev)
	}
	if ev := next(); ev.GetEndOfSnapshot() == nil {
		t.Errorf("event = %v, want end of snapshot", ev)
	}
	if _, err := g.Delete(t.Context(), &pb.DeleteRequest{Id: a.Id}); err != nil {
		t.Fatal(err)
	}
	if ev := next(); ev.GetDelete().GetResource().GetId().GetUid() != a.Id.Uid {
		t.Errorf("event = %v, want a delete", ev)
	}
	cancel()
	if _, err := stream.Recv(); !errors.Is(resource.FromStatus(err), context.Canceled) {
		t.Errorf("Recv() after cancel = %v, want Canceled", err)
	}
	out, err := g.List(t.Context(), &pb.ListRequest{Type: nodeType, Tenancy: &pb.Tenancy{Partition: "*", Namespace: "*"}})
	if err != nil || len(out.GetResources()) != 1 {
		t.Errorf("List() = %v, %v", out, err)
	}
}

// TestServiceCheckName checks that all requests apply the name rule of their type.
func TestServiceCheckName(t *testing.T) {
	g := newRig(t, nil)
	r, err := resource.NewNamed(keyType, "a/ b*", resource.CheckUTF8Name, &pb.Node{Node: "x"})
	if err != nil {
		t.Fatal(err)
	}
	r.Id.Uid = ""
	stored := g.write(r)
	if got, err := g.Read(t.Context(), &pb.ReadRequest{Id: resource.ID(keyType, "a/ b*")}); err != nil || !proto.Equal(got.Resource, stored) {
		t.Errorf("Read() = %v, %v", got, err)
	}
	for prefix, want := range map[string]int{"a/ ": 1, "a/b": 0, "*": 0} {
		out, err := g.List(t.Context(), &pb.ListRequest{Type: keyType, NamePrefix: prefix})
		if err != nil || len(out.GetResources()) != want {
			t.Errorf("List(%q) = %v, %v", prefix, out, err)
		}
	}
	if _, err := g.Delete(t.Context(), &pb.DeleteRequest{Id: resource.ID(keyType, "a/ b*")}); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "a\x00", strings.Repeat("x", resource.MaxUTF8NameLen+1)} {
		if _, err := g.Read(t.Context(), &pb.ReadRequest{Id: resource.ID(keyType, bad)}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("write of name %.10q = %v, want InvalidArgument", bad, err)
		}
		_, err := g.List(t.Context(), &pb.ListRequest{Type: keyType, NamePrefix: bad})
		if bad != "" && status.Code(err) != codes.InvalidArgument {
			t.Errorf("List(%.10q) = %v, want InvalidArgument", bad, err)
		}
	}
	if _, err := g.Read(t.Context(), &pb.ReadRequest{Id: resource.ID(nodeType, "a/b")}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("name of a type with another rule = %v, want InvalidArgument", err)
	}
}

// TestCheckListSize checks that a list fails if and only if its encoding is larger
// than the limit.
func TestCheckListSize(t *testing.T) {
	all := []*pb.Resource{node(t, "a", ""), node(t, "b", strings.Repeat("x", 1000)), node(t, "c", "")}
	for _, answer := range []proto.Message{&pb.ListResponse{Resources: all}, &pb.ListByOwnerResponse{Resources: all}, &pb.ListResponse{}} {
		size := proto.Size(answer)
		if err := resource.CheckListSize(answer, size); err != nil {
			t.Errorf("CheckListSize() of %d bytes with limit %d = %v", size, size, err)
		}
		if size == 0 {
			continue
		}
		if err := resource.CheckListSize(answer, size-1); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "use a name prefix") {
			t.Errorf("CheckListSize() of %d bytes with limit %d = %v", size, size-1, err)
		}
	}
	if err := resource.CheckListSize(&pb.ReadResponse{Resource: all[1]}, 1); err != nil {
		t.Errorf("CheckListSize() of another response = %v, want nil", err)
	}
}
