// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"context"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

// fakeServers is a list of servers that tests change.
type fakeServers struct {
	all     []Server
	changed broadcast.Broadcast
}

func (f *fakeServers) list() ([]Server, <-chan struct{}) {
	changed := f.changed.Wait()
	return f.all, changed
}

func (f *fakeServers) set(all ...Server) {
	f.all = all
	f.changed.Notify()
}

func testPut(t *testing.T, b resource.Backend, typ *pb.Type, name string, owner *pb.ID, data proto.Message) *pb.ID {
	t.Helper()
	r, err := resource.NewNamed(typ, name, resource.CheckUTF8Name, data)
	if err != nil {
		t.Fatal(err)
	}
	r.Owner = owner
	if _, err := b.Commit(t.Context(), resource.PutOp(r, "")); err != nil {
		t.Fatal(err)
	}
	return r.Id
}

// TestMergedView merges servers with stored nodes, services and checks. A
// snapshot is reused until something changes, and its index grows with each
// change.
func TestMergedView(t *testing.T) {
	b := resourcetest.NewStore()
	defer b.Close()
	node := testPut(t, b, NodeType, "srv1", nil, &pb.Node{Node: "srv1", Address: "192.0.2.1"})
	web := testPut(t, b, ServiceType, "srv1/web", node, &pb.Service{Node: "srv1", Id: "web", Service: "web"})
	testPut(t, b, CheckType, "srv1/up", web, &pb.Check{Node: "srv1", CheckId: "up", Status: StatusPassing, ServiceId: "web"})
	// These were stored before the names were reserved.
	testPut(t, b, ServiceType, "srv1/wanfed", node, &pb.Service{Node: "srv1", Id: "wanfed", Service: "forged"})
	testPut(t, b, CheckType, "srv1/serfHealth", node, &pb.Check{Node: "srv1", CheckId: ServerCheck, Status: StatusWarning})

	var servers fakeServers
	srv1 := Server{Node: "srv1", ID: "1", Address: "192.0.2.1", Port: 8300, Version: "1", Alive: true}
	srv2 := Server{Node: "srv2", ID: "2", Address: "192.0.2.2", Port: 8300, Version: "1", Alive: true}
	servers.set(srv1, srv2)
	stored := NewView(b)
	v := NewMergedView(stored, servers.list)
	at := func() *Snapshot {
		t.Helper()
		s, err := v.At(t.Context(), resource.Eventual)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := at()
	if len(s.Nodes) != 2 || s.Nodes[0] != s.Node("srv1") || s.Nodes[1] != s.Node("srv2") {
		t.Fatalf("Nodes = %v, want srv1 and srv2", s.Nodes)
	}
	n := s.Node("srv1")
	if n.Resource == nil || n.Id != "1" || len(n.Services) != 2 || n.Service("web").OnNode != n ||
		n.Service(ServerService).Service.Service != ServerService {
		t.Errorf("node srv1 = %+v, want its services web and %s on the node", n, ServerService)
	}
	if checks := n.Service("web").AllChecks(); len(checks) != 2 || checks[0].CheckId != ServerCheck ||
		checks[0].Status != StatusPassing || checks[1].Service != n.Service("web") {
		t.Errorf("checks of web = %v, want %s as passing, and up", checks, ServerCheck)
	}
	if at() != s {
		t.Error("At() without a change = another snapshot, want the same")
	}
	servers.set(srv1, srv2)
	if at() != s {
		t.Error("At() after a change that leaves the servers equal = another snapshot, want the same")
	}
	srv2.Alive = false
	servers.set(srv1, srv2)
	failed := at()
	if c := failed.Node("srv2").Check(ServerCheck); c.Status != StatusCritical || failed.Index <= s.Index {
		t.Errorf("check of a failed server = %+v at index %d, want critical above %d", c, failed.Index, s.Index)
	}
	if failed.Node("srv2").Service(ServerService).Service != s.Node("srv2").Service(ServerService).Service {
		t.Error("the service of a failed server is another message, want the same")
	}
	testPut(t, b, NodeType, "db1", nil, &pb.Node{Node: "db1", Address: "192.0.2.9"})
	if next := at(); next.Index <= failed.Index || next.Node("db1") == nil {
		t.Errorf("index after a write = %d, want above %d, and node db1", next.Index, failed.Index)
	}
	servers.set(srv1)
	if last := at(); last.Node("srv2") != nil || len(last.Nodes) != 2 {
		t.Errorf("Nodes after srv2 left = %v, want srv1 and db1", last.Nodes)
	}
	base, err := stored.At(t.Context(), resource.Eventual)
	if err != nil || base.Node("srv1").Service(ServerService).Service.Service != "forged" {
		t.Errorf("View.At() = %+v, %v, want the stored catalog", base, err)
	}
}

// TestMergedView_Wait waits for a change of the servers and of the store.
func TestMergedView_Wait(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		b := resourcetest.NewStore()
		defer b.Close()
		var servers fakeServers
		v := NewMergedView(NewView(b), servers.list)
		for _, change := range []func(){
			func() { servers.set(Server{Node: "srv1"}) },
			func() { testPut(t, b, NodeType, "db1", nil, &pb.Node{Node: "db1", Address: "192.0.2.9"}) },
		} {
			s, err := v.At(t.Context(), resource.Eventual)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- v.Wait(t.Context(), s) }()
			synctest.Wait()
			select {
			case err := <-done:
				t.Fatalf("Wait() before a change = %v, want a block", err)
			default:
			}
			change()
			if err := <-done; err != nil {
				t.Errorf("Wait() = %v, want nil", err)
			}
		}
		s, err := v.At(t.Context(), resource.Eventual)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := v.Wait(ctx, s); err == nil {
			t.Error("Wait() with an ended context = nil, want an error")
		}
	})
}

// TestAuthorize_Reserved forges the registrations of servers and gateways.
func TestAuthorize_Reserved(t *testing.T) {
	with := func(typ *pb.Type, name string, data proto.Message) *pb.Resource {
		r, err := resource.NewNamed(typ, name, resource.CheckUTF8Name, data)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	gateway := with(ServiceType, "gw1", &pb.Service{Node: "gw1", Id: "gw1", Service: ServiceName, Kind: KindMeshGateway})
	heartbeat := with(CheckType, "gw1", &pb.Check{Node: "gw1", CheckId: "service:gw1", ServiceName: ServiceName})
	for _, role := range []tlsutil.Role{tlsutil.RoleOperator, tlsutil.RoleUser, tlsutil.RoleServer} {
		p := tlsutil.Peer{Role: role, DC: "dc1", Node: "joe"}
		for what, r := range map[string]*pb.Resource{
			"a server":                 with(ServiceType, "n1/x", &pb.Service{Node: "n1", Id: "x", Service: ServerService}),
			"a gateway by name":        with(ServiceType, "n1/x", &pb.Service{Node: "n1", Id: "x", Service: ServiceName}),
			"a gateway by kind":        with(ServiceType, "n1/x", &pb.Service{Node: "n1", Id: "x", Service: "x", Kind: KindMeshGateway}),
			"the service of a gateway": with(ServiceType, "gw1", &pb.Service{Node: "gw1", Id: "gw1", Service: "x"}),
			"a gateway":                gateway,
			"the check of a gateway":   heartbeat,
		} {
			if authorize(p, resource.VerbWrite, r) == nil {
				t.Errorf("%s may write %s, want an error", role, what)
			}
		}
		for what, r := range map[string]*pb.Resource{
			"a service": with(ServiceType, "n1/x", &pb.Service{Node: "n1", Id: "x", Service: "x"}),
			"a check":   with(CheckType, "n1/x", &pb.Check{Node: "n1", CheckId: "x"}),
			"a node":    with(NodeType, "n1", &pb.Node{Node: "n1"}),
		} {
			if err := authorize(p, resource.VerbWrite, r); err != nil {
				t.Errorf("%s may not write %s: %v", role, what, err)
			}
		}
		node := with(NodeType, "gw1", &pb.Node{Node: "gw1", Datacenter: "dc1", TaggedAddresses: map[string]string{TagWAN: "192.0.2.1"}})
		for what, r := range map[string]*pb.Resource{"a gateway": gateway, "its check": heartbeat, "its node": node} {
			if denied := authorize(p, resource.VerbDelete, r) != nil; denied != (role == tlsutil.RoleUser) {
				t.Errorf("%s may not delete %s: %v, want only a user", role, what, denied)
			}
		}
	}
}
