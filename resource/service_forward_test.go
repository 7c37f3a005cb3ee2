// SPDX-License-Identifier: MPL-2.0

package resource_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

// withVersion returns the federation state of dc7 as a compare-and-swap.
func withVersion(t *testing.T, gateway, version string) *pb.Resource {
	r := federationState(t, "dc7", gateway)
	r.Version = version
	return r
}

// TestForwardWrite checks that a client of a secondary can write a federated
// type, and can read the result immediately.
func TestForwardWrite(t *testing.T) {
	f := newFederation(t)
	created := f.write(federationState(t, "dc7", "gw1"))
	if got := f.read(created.Id); !proto.Equal(got, created) || got.PrimaryModifyIndex == 0 || got.Version == "" {
		t.Errorf("Read() = %v, want the replica %v", got, created)
	}
	second := f.write(withVersion(t, "gw2", created.Version))
	if gatewayOf(t, f.read(created.Id)) != "gw2" || second.Version == created.Version ||
		second.Id.Uid != created.Id.Uid {
		t.Errorf("Write() with the version of the replica = %v, want another version of %v", second, created)
	}
}

// TestForwardWrite_Conflict checks that a compare-and-swap with an old version
// fails, even before the replica of the new version has arrived.
func TestForwardWrite_Conflict(t *testing.T) {
	f := newFederation(t)
	first := f.write(federationState(t, "dc7", "gw1"))
	second := f.write(federationState(t, "dc7", "gw2"))
	f.fails(withVersion(t, "gw3", first.Version), codes.Aborted, resource.ErrConflict,
		"its version is "+second.Version+", not "+first.Version)

	release := f.holdReplication()
	f.primaryDC.write(federationState(t, "dc7", "gw3"))
	f.fails(withVersion(t, "gw4", second.Version), codes.Aborted, resource.ErrConflict,
		"in the primary datacenter dc1: ")
	release()
	testutil.Eventually(t, 10*time.Second, func() bool { return gatewayOf(t, f.read(first.Id)) == "gw3" },
		"the replica of the write in the primary")

	_, err := f.Delete(t.Context(), &pb.DeleteRequest{Id: first.Id, Version: second.Version})
	f.check(err, codes.Aborted, resource.ErrConflict, "")
	f.fails(withVersion(t, "gw4", "99999"), codes.Aborted, resource.ErrConflict, "not 99999")
	absent := federationState(t, "dc9", "gw1")
	absent.Version = first.Version
	f.fails(absent, codes.Aborted, resource.ErrConflict, "it does not exist")
}

// TestForwardWrite_NewVersion checks that a forwarded write with NewVersion only
// creates.
func TestForwardWrite_NewVersion(t *testing.T) {
	f := newFederation(t)
	f.write(withVersion(t, "gw1", resource.NewVersion))
	f.fails(withVersion(t, "gw2", resource.NewVersion), codes.Aborted, resource.ErrConflict, "not 0")
}

// TestForwardWrite_OtherEpoch checks that a version of another epoch is refused,
// even if the new primary has a version with the same number.
func TestForwardWrite_OtherEpoch(t *testing.T) {
	f := newFederation(t)
	release := f.holdReplication()
	defer release()
	r := federationState(t, "dc7", "gw1")
	r.Id.Uid, r.Id.Tenancy, r.Generation, r.PrimaryEpoch = resource.NewUID(), &pb.Tenancy{}, "g", 2
	stored, err := f.primaryDC.backend.Commit(t.Context(), resource.PutOp(r, ""))
	if err != nil {
		t.Fatal(err)
	}
	old := proto.CloneOf(stored[0])
	old.Data = federationState(t, "dc7", "gw0").Data
	old.PrimaryModifyIndex, old.PrimaryEpoch = stored[0].ModifyIndex, 1
	replica, err := f.backend.Commit(t.Context(), resource.ReplicaOp(old))
	if err != nil {
		t.Fatal(err)
	}
	late := resource.PrimaryVersionPrefix + stored[0].Version
	for _, version := range []string{replica[0].Version, late + "@1"} {
		f.fails(withVersion(t, "gw2", version), codes.Aborted, resource.ErrConflict, "is of epoch 2 of the primary, not 1")
		_, err := f.Delete(t.Context(), &pb.DeleteRequest{Id: old.Id, Version: version})
		f.check(err, codes.Aborted, resource.ErrConflict, "is of epoch 2 of the primary, not 1")
	}
	f.fails(withVersion(t, "gw2", late+"@x"), codes.InvalidArgument, resource.ErrInvalid, "must be as it was read")
	release()
	f.write(withVersion(t, "gw2", late+"@2"))
	if got := f.read(old.Id); gatewayOf(t, got) != "gw2" {
		t.Errorf("Read() = %v, want gateway gw2", got)
	}
}

// TestForwardWrite_LocalStatus checks that a status exists only in its
// datacenter. It changes the version of the replica, which a compare-and-swap
// accepts.
func TestForwardWrite_LocalStatus(t *testing.T) {
	f := newFederation(t)
	created := f.write(federationState(t, "dc7", "gw1"))
	withStatus, err := f.WriteStatus(t.Context(), &pb.WriteStatusRequest{
		Id: created.Id, Key: "k", Status: &pb.Status{ObservedGeneration: "1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := f.write(withVersion(t, "gw2", withStatus.Resource.Version)); got.Status["k"] == nil ||
		gatewayOf(t, got) != "gw2" {
		t.Errorf("Write() with the version of the status = %v, want gateway gw2 and the status k", got)
	}
	remote, err := f.primaryDC.Read(t.Context(), &pb.ReadRequest{Id: created.Id})
	if err != nil || len(remote.Resource.Status) != 0 {
		t.Errorf("Read() in the primary = %v, %v, want no status", remote, err)
	}
}

// TestForwardDelete checks that a deletion has an effect in the secondary when
// its response arrives, and that Delete is idempotent.
func TestForwardDelete(t *testing.T) {
	f := newFederation(t)
	created := f.write(federationState(t, "dc7", "gw1"))
	for _, id := range []*pb.ID{created.Id, created.Id, {Type: fsType, Name: "never"}} {
		if _, err := f.Delete(t.Context(), &pb.DeleteRequest{Id: id}); err != nil {
			t.Errorf("Delete(%s) = %v, want nil", id.Name, err)
		}
		_, err := f.Read(t.Context(), &pb.ReadRequest{Id: id})
		f.check(err, codes.NotFound, resource.ErrNotFound, "")
	}
	if _, err := f.Delete(t.Context(), &pb.DeleteRequest{Id: created.Id, Version: "5"}); err != nil {
		t.Errorf("Delete() of a deleted resource with a version = %v, want nil", err)
	}
}

// TestForwardWrite_Lag checks that the wait for a replica is bounded. The
// response then has a version that a compare-and-swap accepts.
func TestForwardWrite_Lag(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		f := newFederation(t)
		release := f.holdReplication()
		start := time.Now()
		got := f.write(federationState(t, "dc7", "gw1"))
		if took := time.Since(start); took != time.Second {
			t.Errorf("Write() without a replica took %v, want %v", took, time.Second)
		}
		if !strings.HasPrefix(got.Version, resource.PrimaryVersionPrefix) || got.PrimaryModifyIndex == 0 ||
			got.ModifyIndex != 0 {
			t.Errorf("Write() without a replica = %v, want the version and the index of the primary", got)
		}
		next := withVersion(t, "gw2", got.Version)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		out, err := f.Write(ctx, &pb.WriteRequest{Resource: next})
		if err != nil {
			t.Fatalf("Write() with version %s and a short deadline = %v, want nil", got.Version, err)
		}
		f.fails(next, codes.Aborted, resource.ErrConflict, "read it and try again")
		release()
		got = f.write(withVersion(t, "gw3", out.Resource.Version))
		if strings.HasPrefix(got.Version, resource.PrimaryVersionPrefix) {
			t.Errorf("Write() with a replica = %v, want a version of the secondary", got)
		}
	})
}

// TestForwardDelete_Finalizers checks that the replica of a resource with
// finalizers gets a deletion timestamp.
func TestForwardDelete_Finalizers(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		f := newFederation(t)
		r := federationState(t, "dc7", "gw1")
		resourcetest.AddFinalizer(r, "f")
		r = f.write(r)
		for range 2 {
			if _, err := f.Delete(t.Context(), &pb.DeleteRequest{Id: r.Id}); err != nil {
				t.Fatal(err)
			}
		}
		r = proto.CloneOf(f.read(r.Id))
		if _, marked := resource.Terminating(r); !marked {
			t.Fatalf("Read() after Delete() = %v, want a deletion timestamp", r)
		}
		f.fails(federationState(t, "dc7", "gw2"), codes.FailedPrecondition, resource.ErrTerminating,
			"in the primary datacenter dc1: ")
		resourcetest.RemoveFinalizer(r, "f")
		start := time.Now()
		f.write(r)
		_, err := f.Read(t.Context(), &pb.ReadRequest{Id: r.Id})
		f.check(err, codes.NotFound, resource.ErrNotFound, "")
		if took := time.Since(start); took != 0 {
			t.Errorf("Write() without the last finalizer took %v, want 0", took)
		}
	})
}

// TestForwardWrite_Refused checks errors of the secondary and of the primary.
func TestForwardWrite_Refused(t *testing.T) {
	f := newFederation(t)
	state := federationState(t, "dc7", "gw1")
	const remote = "in the primary datacenter dc1: "
	f.fails(&pb.Resource{Id: &pb.ID{Type: fsType, Name: "UPPER"}}, codes.InvalidArgument, resource.ErrInvalid, "name")
	f.as(tlsutil.RoleClient, "dc2")
	f.fails(state, codes.PermissionDenied, resource.ErrDenied, "only operators, and servers of datacenter dc2, may")
	f.as(tlsutil.RoleOperator, "dc2")
	f.primaryDC.as(tlsutil.RoleServer, "dc2")
	f.fails(state, codes.PermissionDenied, resource.ErrDenied, remote)
	_, err := f.MutateAndValidate(t.Context(), &pb.MutateAndValidateRequest{Resource: state})
	f.check(err, codes.PermissionDenied, resource.ErrDenied, remote)
	f.primaryDC.as(tlsutil.RoleOperator, "dc2")
	out, err := f.MutateAndValidate(t.Context(), &pb.MutateAndValidateRequest{Resource: state})
	if err != nil || out.Resource == nil {
		t.Errorf("MutateAndValidate() = %v, %v, want a resource", out, err)
	}
	state.Owner = &pb.ID{Type: nodeType, Name: "local"}
	f.fails(state, codes.InvalidArgument, resource.ErrInvalid, "must be of a federated type")
}

// dialAddr sets the address of the primary.
func (f *federation) dialAddr(addr net.Addr) {
	f.Helper()
	cc, err := grpc.NewClient(addr.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { cc.Close() })
	f.dial = func() (pb.ResourceServiceClient, error) { return pb.NewResourceServiceClient(cc), nil }
}

// TestForwardWrite_Unreachable checks that a call that was not sent to the
// primary writes nothing, and that the outcome of a call that was sent is
// unknown.
func TestForwardWrite_Unreachable(t *testing.T) {
	f := newFederation(t)
	before := f.write(federationState(t, "dc7", "gw1"))
	check := func(t *testing.T, code codes.Code, want error, text string) {
		t.Helper()
		f.fails(federationState(t, "dc7", "gw2"), code, want, text)
		_, err := f.Delete(t.Context(), &pb.DeleteRequest{Id: before.Id})
		f.check(err, code, want, text)
		if got := f.read(before.Id); !proto.Equal(got, before) {
			t.Errorf("Read() in the secondary = %v, want %v", got, before)
		}
	}
	t.Run("no path", func(t *testing.T) {
		f.dial = func() (pb.ResourceServiceClient, error) { return nil, errors.New("no path") }
		check(t, codes.Unavailable, resource.ErrUnreachable,
			"the primary datacenter cannot be reached: dc1: nothing was written")
	})
	t.Run("connection refused", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		f.dialAddr(l.Addr())
		check(t, codes.Unavailable, resource.ErrUnreachable, "dc1: nothing was written")
	})
	t.Run("server fails after it has received the call", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		srv := grpc.NewServer(grpc.UnaryInterceptor(
			func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
				return nil, status.Error(codes.Unavailable, "connection lost")
			}))
		pb.RegisterResourceServiceServer(srv, pb.UnimplementedResourceServiceServer{})
		served := make(chan error, 1)
		go func() { served <- srv.Serve(l) }()
		defer func() { srv.Stop(); <-served }()
		f.dialAddr(l.Addr())
		check(t, codes.Unknown, resource.ErrUnknownOutcome, "connection lost")
	})
}
