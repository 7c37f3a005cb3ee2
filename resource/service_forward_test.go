// SPDX-License-Identifier: MPL-2.0

package resource_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
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

// TestForwardWrites checks that a client of a secondary can write, and can read the
// result at once.
func TestForwardWrites(t *testing.T) {
	p := newPair(t)
	created := p.write(fed(t, "dc7", "gw1"))
	if got := p.read(created.Id); !proto.Equal(got, created) || got.PrimaryModifyIndex == 0 || got.Version == "" {
		t.Errorf("Read() = %v, want %v", got, created)
	}
	// Compare-and-swap with the version of the replica.
	next := fed(t, "dc7", "gw2")
	next.Version = created.Version
	second := p.write(next)
	if gatewayOf(t, p.read(created.Id)) != "gw2" || second.Version == created.Version || second.Id.Uid != created.Id.Uid {
		t.Errorf("second write = %v", second)
	}
	p.fails(next, codes.Aborted, resource.ErrConflict, "its version is "+second.Version+", not "+created.Version)
	// A concurrent write in the primary makes a compare-and-swap fail, also before
	// its replica arrives.
	release := p.hold()
	p.there.write(fed(t, "dc7", "gw3"))
	next.Version = second.Version
	p.fails(next, codes.Aborted, resource.ErrConflict, "in the primary datacenter dc1: ")
	release()
	testutil.Eventually(t, 10*time.Second, func() bool { return gatewayOf(t, p.read(created.Id)) == "gw3" },
		"the replica of the concurrent write")
	if _, err := p.Delete(t.Context(), &pb.DeleteRequest{Id: created.Id, Version: second.Version}); status.Code(err) != codes.Aborted {
		t.Errorf("Delete() with an old version = %v, want ErrConflict", err)
	}
	next.Version = "99999"
	p.fails(next, codes.Aborted, resource.ErrConflict, "not 99999")
	absent := fed(t, "dc9", "gw1")
	absent.Version = created.Version
	p.fails(absent, codes.Aborted, resource.ErrConflict, "it does not exist")

	// A status is local and makes a new version, which a compare-and-swap accepts.
	withStatus, err := p.WriteStatus(t.Context(), &pb.WriteStatusRequest{Id: created.Id, Key: "k", Status: &pb.Status{ObservedGeneration: "1"}})
	if err != nil {
		t.Fatal(err)
	}
	next.Version = withStatus.Resource.Version
	if got := p.write(next); got.Status["k"] == nil || gatewayOf(t, got) != "gw2" {
		t.Errorf("resource after a status = %v", got)
	}
	there, err := p.there.Read(t.Context(), &pb.ReadRequest{Id: created.Id})
	if err != nil || len(there.Resource.Status) != 0 {
		t.Errorf("resource in the primary = %v, %v, want no status", there, err)
	}
	// Deleted here when the response arrives. Deleting it again succeeds.
	for _, id := range []*pb.ID{created.Id, created.Id, {Type: fsType, Name: "never"}} {
		if _, err := p.Delete(t.Context(), &pb.DeleteRequest{Id: id}); err != nil {
			t.Error(err)
		}
		if _, err := p.Read(t.Context(), &pb.ReadRequest{Id: id}); status.Code(err) != codes.NotFound {
			t.Errorf("Read() after Delete() = %v, want ErrNotFound", err)
		}
	}
	if _, err := p.Delete(t.Context(), &pb.DeleteRequest{Id: created.Id, Version: "5"}); err != nil {
		t.Errorf("Delete() of a deleted resource with a version = %v, want nil", err)
	}
}

// TestForwardLag checks that a response does not wait long for the replica, and has a
// version that a compare-and-swap accepts.
func TestForwardLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		release := p.hold()
		began := time.Now()
		got := p.write(fed(t, "dc7", "gw1"))
		if took := time.Since(began); took != time.Second {
			t.Errorf("waited %v for a replica that does not arrive", took)
		}
		if !strings.HasPrefix(got.Version, resource.PrimaryVersionPrefix) || got.PrimaryModifyIndex == 0 || got.ModifyIndex != 0 {
			t.Errorf("Write() = %v, want a version of the primary", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		next := fed(t, "dc7", "gw2")
		next.Version = got.Version
		out, err := p.Write(ctx, &pb.WriteRequest{Resource: next})
		if err != nil {
			t.Fatalf("compare-and-swap with the version of the response, with a short deadline = %v", err)
		}
		p.fails(next, codes.Aborted, resource.ErrConflict, "read it and try again")
		release()
		next.Version = out.Resource.Version
		if got := p.write(next); strings.HasPrefix(got.Version, resource.PrimaryVersionPrefix) {
			t.Errorf("Write() when replicas arrive = %v, want a local version", got)
		}
	})
}

// TestForwardFinalizers checks that the replica of a resource with finalizers gets its
// deletion timestamp.
func TestForwardFinalizers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		r := fed(t, "dc7", "gw1")
		resourcetest.AddFinalizer(r, "f")
		r = p.write(r)
		for range 2 {
			if _, err := p.Delete(t.Context(), &pb.DeleteRequest{Id: r.Id}); err != nil {
				t.Fatal(err)
			}
		}
		r = proto.CloneOf(p.read(r.Id))
		if _, marked := resource.Terminating(r); !marked {
			t.Fatalf("replica has no deletion timestamp: %v", r)
		}
		p.fails(fed(t, "dc7", "gw2"), codes.FailedPrecondition, resource.ErrTerminating, "in the primary datacenter dc1: ")
		resourcetest.RemoveFinalizer(r, "f")
		began := time.Now()
		p.write(r)
		if _, err := p.Read(t.Context(), &pb.ReadRequest{Id: r.Id}); status.Code(err) != codes.NotFound || time.Since(began) != 0 {
			t.Errorf("Read() after the last finalizer = %v after %v, want ErrNotFound", err, time.Since(began))
		}
	})
}

// TestForwardRefusals checks errors of the secondary and of the primary.
func TestForwardRefusals(t *testing.T) {
	p := newPair(t)
	p.fails(&pb.Resource{Id: &pb.ID{Type: fsType, Name: "UPPER"}}, codes.InvalidArgument, resource.ErrInvalid, "name")
	p.as(tlsutil.RoleClient, "dc2")
	p.fails(fed(t, "dc7", "gw1"), codes.PermissionDenied, resource.ErrDenied, "only operators, and servers of datacenter dc2, may")
	p.as(tlsutil.RoleOperator, "dc2")
	p.there.as(tlsutil.RoleServer, "dc2")
	p.fails(fed(t, "dc7", "gw1"), codes.PermissionDenied, resource.ErrDenied, "in the primary datacenter dc1: ")
	_, err := p.MutateAndValidate(t.Context(), &pb.MutateAndValidateRequest{Resource: fed(t, "dc7", "gw1")})
	p.check(err, codes.PermissionDenied, resource.ErrDenied, "in the primary datacenter dc1: ")
	p.there.as(tlsutil.RoleOperator, "dc2")
	if dry, err := p.MutateAndValidate(t.Context(), &pb.MutateAndValidateRequest{Resource: fed(t, "dc7", "gw1")}); err != nil || dry.Resource == nil {
		t.Errorf("MutateAndValidate() = %v, %v", dry, err)
	}
	owned := fed(t, "dc7", "gw1")
	owned.Owner = &pb.ID{Type: nodeType, Name: "local"}
	p.fails(owned, codes.InvalidArgument, resource.ErrInvalid, "must be of a federated type")
}

// TestForwardUnreachable checks that an unreachable primary writes nothing, and that
// the outcome is unknown if it may have written.
func TestForwardUnreachable(t *testing.T) {
	p := newPair(t)
	before := p.write(fed(t, "dc7", "gw1"))
	check := func(code codes.Code, want error, text string) {
		t.Helper()
		p.fails(fed(t, "dc7", "gw2"), code, want, text)
		_, err := p.Delete(t.Context(), &pb.DeleteRequest{Id: before.Id})
		p.check(err, code, want, text)
		if got := p.read(before.Id); !proto.Equal(got, before) {
			t.Errorf("Read() in the secondary = %v, want ErrNotFound", got)
		}
	}
	p.via = func() (pb.ResourceServiceClient, error) { return nil, errors.New("no path") }
	check(codes.Unavailable, resource.ErrUnreachable, "the primary datacenter cannot be reached: dc1: nothing was written")

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	cc, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	p.via = func() (pb.ResourceServiceClient, error) { return pb.NewResourceServiceClient(cc), nil }
	check(codes.Unavailable, resource.ErrUnreachable, "dc1: nothing was written")

	// A server that fails after it has received the call.
	if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(grpc.UnaryInterceptor(func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
		return nil, status.Error(codes.Unavailable, "the way broke")
	}))
	pb.RegisterResourceServiceServer(srv, pb.UnimplementedResourceServiceServer{})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	defer func() { srv.Stop(); <-served }()
	cc2, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer cc2.Close()
	p.via = func() (pb.ResourceServiceClient, error) { return pb.NewResourceServiceClient(cc2), nil }
	check(codes.Unknown, resource.ErrUnknownOutcome, "the way broke")
}
