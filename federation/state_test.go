// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

func TestSameContent(t *testing.T) {
	base := func() *pb.FederationState {
		return &pb.FederationState{Datacenter: "dc2", MeshGateways: []*pb.MeshGateway{
			meshGateway("dc2", "gw-a", "10.0.0.1", "198.51.100.1", catalog.StatusPassing),
			meshGateway("dc2", "gw-b", "10.0.0.2", "198.51.100.2", catalog.StatusPassing),
		}}
	}
	tests := []struct {
		name   string
		change func(*pb.FederationState)
		same   bool
	}{
		{"no change", func(*pb.FederationState) {}, true},
		{"updated_at", func(s *pb.FederationState) { s.UpdatedAt = timestamppb.Now() }, true},
		{"indexes", func(s *pb.FederationState) { s.CreateIndex, s.ModifyIndex, s.PrimaryModifyIndex = 1, 2, 3 }, true},
		{"order of gateways", func(s *pb.FederationState) {
			s.MeshGateways[0], s.MeshGateways[1] = s.MeshGateways[1], s.MeshGateways[0]
		}, true},
		{"health", func(s *pb.FederationState) { s.MeshGateways[0].Checks[0].Status = catalog.StatusCritical }, false},
		{"WAN address", func(s *pb.FederationState) {
			s.MeshGateways[0].Service.TaggedAddresses[catalog.TagWAN].Address = "198.51.100.9"
		}, false},
		{"missing gateway", func(s *pb.FederationState) { s.MeshGateways = s.MeshGateways[:1] }, false},
		{"datacenter", func(s *pb.FederationState) { s.Datacenter = "dc3" }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := base()
			tt.change(b)
			if SameContent(base(), b) != tt.same || SameContent(b, base()) != tt.same {
				t.Errorf("SameContent() = %v or %v with exchanged arguments, want %v",
					SameContent(base(), b), SameContent(b, base()), tt.same)
			}
		})
	}
}

func TestAuthorize(t *testing.T) {
	for _, tt := range []struct {
		peer tlsutil.Peer
		ok   bool
	}{
		{tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc2", Node: "srv1"}, true},
		{tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc3", Node: "srv1"}, false},
		{tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc1", Node: "srv1"}, false},
		{tlsutil.Peer{Role: tlsutil.RoleOperator, DC: "dc1", Node: "cli"}, true},
	} {
		err := authorize(tt.peer, resource.VerbWrite, &pb.Resource{Id: resource.ID(StateType, "dc2")})
		if (err == nil) != tt.ok {
			t.Errorf("authorize(%v, write dc2) = %v, want success %v", tt.peer, err, tt.ok)
		}
	}
}

// TestAllow proves that the policy decides about all callers that are not
// servers, with the name of the state.
func TestAllow(t *testing.T) {
	var decided resource.Access
	s := &Service{cfg: ServiceConfig{DC: "dc1", Decide: func(_ context.Context, a resource.Access) error {
		decided = a
		return resource.ErrDenied
	}}}
	for _, tt := range []struct {
		peer    string
		verb    resource.Verb
		policy  bool // it decides
		allowed bool
	}{
		{"server/dc2", resource.VerbWrite, false, true}, {"server/dc3", resource.VerbWrite, false, false},
		{"server/dc1", resource.VerbWrite, false, false}, {"server/dc1", resource.VerbDelete, false, true},
		{"server/dc2", resource.VerbDelete, false, false},
		{"cli/dc3", resource.VerbWrite, true, false}, {"cli/dc1", resource.VerbDelete, true, false},
		{"user/dc1", resource.VerbWrite, true, false}, {"gateway/dc2", resource.VerbWrite, true, false},
	} {
		role, dc, _ := strings.Cut(tt.peer, "/")
		decided = resource.Access{}
		err := s.allow(t.Context(), tlsutil.Peer{Role: tlsutil.Role(role), DC: dc, Node: "n"}, tt.verb, "dc2")
		want := resource.Access{}
		if tt.policy {
			want = resource.Access{Verb: tt.verb, Type: StateType, Name: "dc2", Federated: true}
		}
		if (err == nil) != tt.allowed || err != nil && !errors.Is(err, resource.ErrDenied) || decided != want {
			t.Errorf("allow(%s, %s) = %v after the decision %+v, want allowed = %v, %+v", tt.peer, tt.verb, err, decided, tt.allowed, want)
		}
	}
}

func TestValidateState(t *testing.T) {
	ok := meshGateway("dc2", "gw-a", "10.0.0.1", "198.51.100.1", catalog.StatusPassing)
	noWAN := &pb.MeshGateway{Node: ok.Node, Service: &pb.Service{}}
	tests := []struct {
		state *pb.FederationState
		want  string // in the error; "" for none
	}{
		{&pb.FederationState{Datacenter: "dc2", MeshGateways: []*pb.MeshGateway{ok}}, ""},
		{&pb.FederationState{Datacenter: "dc2"}, ""},
		{&pb.FederationState{Datacenter: "DC2"}, "not a DNS label"},
		{nil, "empty"},
		{&pb.FederationState{Datacenter: "dc3", MeshGateways: []*pb.MeshGateway{ok}}, `in datacenter "dc2"`},
		{&pb.FederationState{Datacenter: "dc2", MeshGateways: []*pb.MeshGateway{{}}}, "has no node"},
		{&pb.FederationState{Datacenter: "dc2", MeshGateways: []*pb.MeshGateway{noWAN}}, "no WAN address"},
		{&pb.FederationState{Datacenter: "dc2", MeshGateways: make([]*pb.MeshGateway, maxGateways+1)},
			"more than 1024"},
	}
	for _, tt := range tests {
		err := ValidateState(tt.state)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("ValidateState(%v) = %v, want %q", tt.state.GetDatacenter(), err, tt.want)
		}
	}
}

func anyGroup(string) string { return "" }

func TestAdmit_Group(t *testing.T) {
	admit := Admit("dc3", "dc1", func(dc string) string { return map[string]string{"dc2": "g1"}[dc] }, nil)
	for _, tt := range []struct {
		dc, group string
		want      string
	}{
		{"dc2", "g1", ""},
		{"dc2", "", ""}, // an earlier version
		{"dc2", "g2", "in the group g2, but the accepted group of dc2 is g1"},
		{"dc4", "g2", ""}, // no state yet
	} {
		err := admit(gossip.Member{Name: "srv1." + tt.dc, Tags: map[string]string{
			TagDC: tt.dc, TagPrimary: "dc1", TagGroup: tt.group,
		}})
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("Admit() of group %q of %s = %v, want %q", tt.group, tt.dc, err, tt.want)
		}
	}
}

func TestAdmit(t *testing.T) {
	conflict := ""
	admit := Admit("dc3", "dc1", anyGroup, func(node, dc, primary, _ string) {
		conflict = node + " " + dc + " " + primary
	})
	for _, tt := range []struct {
		name, dc, primary string
		want              string
	}{
		{"srv1.dc2", "dc2", "dc1", ""},
		{"srv1.dc2", "dc2", "dc9", `reports the primary datacenter "dc9", dc3 reports "dc1"`},
		{"srv1.dc2", "dc4", "dc1", `reports the datacenter "dc4"`},
		{"srv1", "dc2", "dc1", "is not <node>.<dc>"},
		{"srv1.x.dc2", "dc2", "dc1", "datacenter"},
		{".dc2", "dc2", "dc1", "node: name is empty"},
	} {
		err := admit(gossip.Member{Name: tt.name, Tags: map[string]string{TagDC: tt.dc, TagPrimary: tt.primary}})
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("Admit() of %s with tags %q and %q = %v, want %q", tt.name, tt.dc, tt.primary, err, tt.want)
		}
	}
	if want := "srv1 dc2 dc9"; conflict != want {
		t.Errorf("conflict = %q, want %q", conflict, want)
	}
}

func FuzzSplitWANName(f *testing.F) {
	for _, s := range []string{"srv1.dc1", "*.dc1", "a.b.c", "", ".", "SRV.dc"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		node, dc, err := SplitWANName(s)
		if err == nil && WANName(node, dc) != s {
			t.Errorf("SplitWANName(%q) = %q, %q, want parts that join to it", s, node, dc)
		}
	})
}

// A state has at most maxStateSize bytes.
func TestValidateState_Size(t *testing.T) {
	s := &pb.FederationState{Datacenter: "dc3"}
	for i := range 300 {
		gw := meshGateway("dc3", fmt.Sprintf("gw%d", i), "10.0.0.3", "198.51.100.3", catalog.StatusPassing)
		gw.Service.Meta = map[string]string{"p": strings.Repeat("a", 500)}
		s.MeshGateways = append(s.MeshGateways, gw)
	}
	if err := ValidateState(s); err != nil {
		t.Errorf("state of %d bytes = %v, want nil", proto.Size(s), err)
	}
	for _, gw := range s.MeshGateways {
		gw.Service.Meta["p"] = strings.Repeat("a", 900)
	}
	if err := ValidateState(s); err == nil || !strings.Contains(err.Error(), "bytes: more than") {
		t.Errorf("state of %d bytes = nil, want an error above %d bytes", proto.Size(s), maxStateSize)
	}
}
