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

// TestService_DefaultAuthorization checks the calls that each role may make.
func TestService_DefaultAuthorization(t *testing.T) {
	f := newFixture(t, nil)
	f.write(node(t, "a", ""))
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
		f.as(tc.role, tc.dc)
		_, read := f.Read(t.Context(), &pb.ReadRequest{Id: id})
		_, list := f.List(t.Context(), &pb.ListRequest{Type: nodeType})
		_, write := f.Write(t.Context(), &pb.WriteRequest{Resource: node(t, "a", "")})
		_, del := f.Delete(t.Context(), &pb.DeleteRequest{Id: &pb.ID{Type: nodeType, Name: "none"}})
		for _, call := range []struct {
			name    string
			err     error
			allowed bool
		}{{"Read", read, tc.read}, {"List", list, tc.read}, {"Write", write, tc.write}, {"Delete", del, tc.write}} {
			if (call.err == nil) != call.allowed || !call.allowed && status.Code(call.err) != codes.PermissionDenied {
				t.Errorf("%s() by a %v of %s = %v, want allowed: %t", call.name, tc.role, tc.dc, call.err, call.allowed)
			}
		}
	}
	f.peer.Store(nil)
	_, err := f.Read(t.Context(), &pb.ReadRequest{Id: id})
	f.check(err, codes.PermissionDenied, resource.ErrDenied, "no certificate")
	stream, err := f.WatchList(t.Context(), &pb.WatchListRequest{Type: nodeType})
	if err == nil {
		_, err = stream.Recv()
	}
	f.check(err, codes.PermissionDenied, resource.ErrDenied, "no certificate")
}

// TestService_WatchList checks the events of a stream, and its end.
func TestService_WatchList(t *testing.T) {
	f := newFixture(t, nil)
	a := f.write(node(t, "a", ""))
	f.write(node(t, "b", ""))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := f.WatchList(ctx, &pb.WatchListRequest{Type: nodeType, NamePrefix: "a"})
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
		t.Errorf("first event = %v, want an upsert of %v", ev, a)
	}
	if ev := next(); ev.GetEndOfSnapshot() == nil {
		t.Errorf("second event = %v, want the end of the snapshot", ev)
	}
	if _, err := f.Delete(t.Context(), &pb.DeleteRequest{Id: a.Id}); err != nil {
		t.Fatal(err)
	}
	if ev := next(); ev.GetDelete().GetResource().GetId().GetUid() != a.Id.Uid {
		t.Errorf("event after Delete() = %v, want a delete of %v", ev, a)
	}
	cancel()
	if _, err := stream.Recv(); !errors.Is(resource.FromStatus(err), context.Canceled) {
		t.Errorf("Recv() after cancel = %v, want Canceled", err)
	}
}

// TestService_CheckName checks that all requests apply the CheckName of their
// type.
func TestService_CheckName(t *testing.T) {
	f := newFixture(t, nil)
	r, err := resource.NewNamed(keyType, "a/ b*", resource.CheckUTF8Name, &pb.Node{Node: "x"})
	if err != nil {
		t.Fatal(err)
	}
	r.Id.Uid = ""
	stored := f.write(r)
	if got, err := f.Read(t.Context(), &pb.ReadRequest{Id: resource.ID(keyType, "a/ b*")}); err != nil ||
		!proto.Equal(got.Resource, stored) {
		t.Errorf("Read(a/ b*) = %v, %v, want %v", got, err, stored)
	}
	for prefix, want := range map[string]int{"a/ ": 1, "a/b": 0, "*": 0} {
		out, err := f.List(t.Context(), &pb.ListRequest{Type: keyType, NamePrefix: prefix})
		if err != nil || len(out.GetResources()) != want {
			t.Errorf("List(%q) = %v, %v, want %d resources", prefix, out, err, want)
		}
	}
	if _, err := f.Delete(t.Context(), &pb.DeleteRequest{Id: resource.ID(keyType, "a/ b*")}); err != nil {
		t.Errorf("Delete(a/ b*) = %v, want nil", err)
	}
	for _, bad := range []string{"", "a\x00", strings.Repeat("x", resource.MaxUTF8NameLen+1)} {
		if _, err := f.Read(t.Context(),
			&pb.ReadRequest{Id: resource.ID(keyType, bad)}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("Read(%.10q) = %v, want InvalidArgument", bad, err)
		}
		_, err := f.List(t.Context(), &pb.ListRequest{Type: keyType, NamePrefix: bad})
		if bad != "" && status.Code(err) != codes.InvalidArgument {
			t.Errorf("List(%.10q) = %v, want InvalidArgument", bad, err)
		}
	}
	if _, err := f.Read(t.Context(),
		&pb.ReadRequest{Id: resource.ID(nodeType, "a/b")}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("Read(a/b) of a type with the default rule = %v, want InvalidArgument", err)
	}
}

// TestCheckListSize checks that a list fails if and only if its encoding is
// larger than the limit.
func TestCheckListSize(t *testing.T) {
	all := []*pb.Resource{node(t, "a", ""), node(t, "b", strings.Repeat("x", 1000)), node(t, "c", "")}
	for _, response := range []proto.Message{&pb.ListResponse{Resources: all}, &pb.ListByOwnerResponse{Resources: all},
		&pb.ListResponse{}} {
		size := proto.Size(response)
		if err := resource.CheckListSize(response, size); err != nil {
			t.Errorf("CheckListSize() of %d bytes with limit %d = %v, want nil", size, size, err)
		}
		if size == 0 {
			continue
		}
		if err := resource.CheckListSize(response, size-1); status.Code(err) != codes.ResourceExhausted ||
			!strings.Contains(err.Error(), "use a name prefix") {
			t.Errorf("CheckListSize() of %d bytes with limit %d = %v, want ResourceExhausted", size, size-1, err)
		}
	}
	if err := resource.CheckListSize(&pb.ReadResponse{Resource: all[1]}, 1); err != nil {
		t.Errorf("CheckListSize() of another response = %v, want nil", err)
	}
}
