// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// A sync daemon may write and delete its registration, and nothing else.
func TestAuthorize_Sync(t *testing.T) {
	peer := tlsutil.Peer{Role: tlsutil.RoleSync, DC: "dc1"}
	all, err := SyncRegistration{ID: "s1", NodeAddress: "10.0.0.1", Service: SyncService, TTL: time.Second}.Resources()
	if err != nil || len(all) != 3 {
		t.Fatalf("Resources() = %v, %v, want a node, a service and a check", all, err)
	}
	for _, r := range all {
		for _, verb := range []resource.Verb{resource.VerbWrite, resource.VerbDelete, resource.VerbRead} {
			if err := authorize(peer, verb, r); err != nil {
				t.Errorf("authorize(%s of %s) = %v, want nil", verb, resource.IDString(r.Id), err)
			}
		}
		for _, role := range []tlsutil.Role{tlsutil.RoleClient, tlsutil.RoleGateway} {
			if authorize(tlsutil.Peer{Role: role, DC: "dc1"}, resource.VerbWrite, r) == nil {
				t.Errorf("a %s may write %s, want an error", role, resource.IDString(r.Id))
			}
		}
		if authorize(peer, resource.VerbWriteStatus, r) == nil {
			t.Errorf("a sync daemon may write the status of %s, want an error", resource.IDString(r.Id))
		}
	}
	with := func(typ *pb.Type, name string, data proto.Message) *pb.Resource {
		r := &pb.Resource{Id: resource.ID(typ, name)}
		if err := resource.SetData(r, data); err != nil {
			t.Fatal(err)
		}
		return r
	}
	for reason, r := range map[string]*pb.Resource{
		"another node":              with(NodeType, "n1", &pb.Node{Node: "n1", Address: "10.0.0.1"}),
		"another node in the data":  with(NodeType, "sync.s1", &pb.Node{Node: "n1", Address: "10.0.0.1"}),
		"another name in the id":    with(ServiceType, "n1/s1", &pb.Service{Node: "sync.s1", Id: "s1", Service: SyncService}),
		"another node of a service": with(ServiceType, "sync.s1/s1", &pb.Service{Node: "n1", Id: "s1", Service: SyncService}),
		"another service":           with(ServiceType, "sync.s1/s1", &pb.Service{Node: "sync.s1", Id: "s1", Service: "web"}),
		"a gateway":                 with(ServiceType, "sync.s1/s1", &pb.Service{Node: "sync.s1", Id: "s1", Service: SyncService, Kind: KindMeshGateway}),
		"the name of a gateway":     with(ServiceType, "sync.s1", &pb.Service{Node: "sync.s1", Id: "s1", Service: SyncService}),
		"a check of another node":   with(CheckType, "sync.s1/c", &pb.Check{Node: "n1", CheckId: "c", Status: StatusPassing}),
		"no name":                   {Id: resource.ID(CheckType, "")},
	} {
		if authorize(peer, resource.VerbWrite, r) == nil {
			t.Errorf("a sync daemon may write %s, want an error", reason)
		}
		if authorize(peer, resource.VerbDelete, r) == nil {
			t.Errorf("a sync daemon may delete %s, want an error", reason)
		}
	}
}
