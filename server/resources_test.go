// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// callConsul calls a method of the resource service with Consul's name of the
// service.
func callConsul[Resp any](ctx context.Context, cc *grpc.ClientConn, method string, req proto.Message) (*Resp, error) {
	resp := new(Resp)
	return resp, cc.Invoke(ctx, "/"+resource.ConsulService+"/"+method, req, resp)
}

// TestResourceService_Follower proves that a follower serves the resource
// service with both names, and that its strong reads return the last write.
func TestResourceService_Follower(t *testing.T) {
	ca := tlstest.NewCA(t)
	addrs, leader := startThree(t, ca)
	cc := connectAs(t, ca, addrs[(leader+1)%3], tlsutil.RoleOperator, "cli", "dc1")
	first := pb.NewResourceServiceClient(cc)
	ctx, cancel := context.WithTimeout(t.Context(), 3*startTimeout)
	defer cancel()
	strong := metadata.AppendToOutgoingContext(ctx, resource.ConsulConsistencyKey, "consistent")

	given, err := resource.New(catalog.NodeType, "n1", &pb.Node{Node: "n1", Address: "192.0.2.1"})
	if err != nil {
		t.Fatal(err)
	}
	given.Id.Uid, given.Generation = "", ""
	written, err := callConsul[pb.WriteResponse](ctx, cc, "Write", &pb.WriteRequest{Resource: given})
	if err != nil {
		t.Fatal(err)
	}
	stored := written.GetResource()
	for range 10 {
		out, err := first.WriteStatus(ctx, &pb.WriteStatusRequest{
			Id: stored.Id, Key: "c", Status: &pb.Status{ObservedGeneration: stored.Generation},
		})
		if err != nil {
			t.Fatal(err)
		}
		read, err := callConsul[pb.ReadResponse](strong, cc, "Read", &pb.ReadRequest{Id: stored.Id})
		if err != nil || !proto.Equal(read.GetResource(), out.GetResource()) {
			t.Fatalf("strong Read() at a follower = %v, %v, want %v", read, err, out)
		}
	}
	stream, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/"+resource.ConsulService+"/WatchList")
	if err == nil {
		err = errors.Join(stream.SendMsg(&pb.WatchListRequest{Type: catalog.NodeType}), stream.CloseSend())
	}
	var ev pb.WatchEvent
	if err == nil {
		err = stream.RecvMsg(&ev)
	}
	if err != nil || ev.GetUpsert().GetResource().GetId().GetName() != "n1" {
		t.Errorf("WatchList() with Consul's name = %v, %v, want n1", &ev, err)
	}

	// The authorization rules apply to both names.
	client := connectAs(t, ca, addrs[(leader+1)%3], tlsutil.RoleClient, "c", "dc1")
	_, err = callConsul[pb.DeleteResponse](ctx, client, "Delete", &pb.DeleteRequest{Id: stored.Id})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("Delete() by a client = %v, want %v", err, codes.PermissionDenied)
	}
	_, err = pb.NewStoreServiceClient(cc).ReadIndex(ctx, &pb.ReadIndexRequest{})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("ReadIndex() by an operator = %v, want %v", err, codes.PermissionDenied)
	}
	testDeleteOwner(ctx, t, first,
		pb.NewStoreServiceClient(connectAs(t, ca, addrs[leader], tlsutil.RoleServer, "srv9", "dc1")), stored.Id)
}

// testDeleteOwner deletes an owner of more resources than one step deletes, and
// proves that all owned resources are deleted.
func testDeleteOwner(ctx context.Context, t *testing.T, c pb.ResourceServiceClient, store pb.StoreServiceClient,
	owner *pb.ID) {
	t.Helper()
	batch := &pb.Batch{}
	for i := range 2 * resource.MaxCascade {
		r, err := resource.New(catalog.CheckType, fmt.Sprintf("c%d", i),
			&pb.Check{Node: "n1", Status: catalog.StatusPassing})
		if err != nil {
			t.Fatal(err)
		}
		r.Owner = owner
		batch.Ops = append(batch.Ops, resource.PutOp(r, ""))
	}
	if _, err := store.Commit(ctx, &pb.CommitRequest{Batch: batch}); err != nil {
		t.Fatal(err)
	}
	w, err := c.WatchList(ctx, &pb.WatchListRequest{Type: resource.TombstoneType})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Delete(ctx, &pb.DeleteRequest{Id: owner}); err != nil {
		t.Fatal(err)
	}
	for { // until the tombstone is deleted, after all owned resources
		ev, err := w.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if ev.GetDelete() != nil {
			break
		}
	}
	list, err := c.List(ctx, &pb.ListRequest{Type: catalog.CheckType})
	if err != nil || len(list.GetResources()) != 0 {
		t.Errorf("List() = %d resources, %v, want none", len(list.GetResources()), err)
	}
}

// TestIntrospection proves that a client can read the health of each service,
// and the services and their files by reflection.
func TestIntrospection(t *testing.T) {
	ca := tlstest.NewCA(t)
	g := newTargetOf(t, ca)
	cc := connectAs(t, ca, g.addrs.Server, tlsutil.RoleClient, "c", "dc1")
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	for _, service := range []string{"", "wanfed.v1.ResourceService", resource.ConsulService} {
		out, err := healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
		if err != nil || out.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("Check(%q) = %v, %v, want SERVING", service, out, err)
		}
	}
	stream, err := reflectionpb.NewServerReflectionClient(cc).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	reflect := func(req *reflectionpb.ServerReflectionRequest) *reflectionpb.ServerReflectionResponse {
		t.Helper()
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	var names []string
	for _, s := range reflect(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
	}).GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	for _, want := range []string{"wanfed.v1.ResourceService", resource.ConsulService, "grpc.health.v1.Health"} {
		if !slices.Contains(names, want) {
			t.Errorf("listed services = %v, want %s in the list", names, want)
		}
	}
	for _, name := range names {
		files := reflect(&reflectionpb.ServerReflectionRequest{
			MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: name},
		}).GetFileDescriptorResponse().GetFileDescriptorProto()
		var f descriptorpb.FileDescriptorProto
		if len(files) == 0 || proto.Unmarshal(files[0], &f) != nil || !strings.HasPrefix(name, f.GetPackage()+".") {
			t.Errorf("FileContainingSymbol(%s) = %d files with package %q, want a file with the package of the service",
				name, len(files), f.GetPackage())
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
}
