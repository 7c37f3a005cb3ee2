// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"fmt"
	"net"
	"strconv"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// The resource types of the catalog. They are local to a datacenter.
var (
	NodeType    = &pb.Type{Group: "catalog", GroupVersion: "v1", Kind: "Node"}
	ServiceType = &pb.Type{Group: "catalog", GroupVersion: "v1", Kind: "Service"}
	CheckType   = &pb.Type{Group: "catalog", GroupVersion: "v1", Kind: "Check"}
)

// Words that stand in records.
const (
	KindMeshGateway = "mesh-gateway"
	ServiceName     = "mesh-gateway"
	// MetaFederation marks a gateway that forwards between datacenters; the key and value are Consul's.
	MetaFederation = "consul-wan-federation"

	StatusPassing  = "passing"
	StatusWarning  = "warning"
	StatusCritical = "critical"

	TagLAN = "lan"
	TagWAN = "wan"
)

// Register adds the catalog's types to a registry.
func Register(r *resource.Registry) error {
	for _, reg := range []resource.Registration{
		{Type: NodeType, Message: &pb.Node{}, Validate: validateNode, Authorize: localOnly},
		{Type: ServiceType, Message: &pb.Service{}, Validate: validateService, Authorize: localOnly},
		{Type: CheckType, Message: &pb.Check{}, Validate: validateCheck, Authorize: localOnly},
	} {
		if err := r.Register(reg); err != nil {
			return err
		}
	}
	return nil
}

// localOnly: everyone with a certificate of this datacenter may read (the server checks the datacenter); operators and
// servers may write. A gateway registers through its own service, never by writing records.
func localOnly(p tlsutil.Peer, verb resource.Verb, _ *pb.Resource) error {
	if verb == resource.VerbRead || verb == resource.VerbList || p.Role == tlsutil.RoleServer || p.Role == tlsutil.RoleCLI {
		return nil
	}
	return fmt.Errorf("%v may not write catalog records", p)
}

func validateNode(r *pb.Resource) error {
	n, err := resource.Decode[*pb.Node](r)
	if err != nil {
		return err
	}
	if err := tlsutil.CheckLabel(n.Node); err != nil {
		return fmt.Errorf("data.node: %w", err)
	}
	if n.Address == "" {
		return fmt.Errorf("data.address of node %s is empty", n.Node)
	}
	return nil
}

func validateService(r *pb.Resource) error {
	s, err := resource.Decode[*pb.Service](r)
	if err != nil {
		return err
	}
	switch {
	case s.Id == "":
		return fmt.Errorf("data.id is empty")
	case s.Service == "":
		return fmt.Errorf("data.service of %s is empty", s.Id)
	case s.Port > 65535:
		return fmt.Errorf("data.port of %s is %d: more than 65535", s.Id, s.Port)
	}
	for tag, a := range s.TaggedAddresses {
		if err := CheckAddress(a); err != nil {
			return fmt.Errorf("data.tagged_addresses[%s] of %s: %w", tag, s.Id, err)
		}
	}
	return nil
}

func validateCheck(r *pb.Resource) error {
	c, err := resource.Decode[*pb.Check](r)
	if err != nil {
		return err
	}
	switch c.Status {
	case StatusPassing, StatusWarning, StatusCritical:
		return nil
	}
	return fmt.Errorf("data.status of check %s is %q: not passing, warning or critical", c.CheckId, c.Status)
}

// Healthy says that no check of a gateway is critical.
func Healthy(g *pb.MeshGateway) bool {
	for _, c := range g.GetChecks() {
		if c.Status == StatusCritical {
			return false
		}
	}
	return true
}

// TaggedAddr returns host:port of a gateway under tag TagLAN or TagWAN; empty when it has none.
func TaggedAddr(g *pb.MeshGateway, tag string) string {
	a := g.GetService().GetTaggedAddresses()[tag]
	if a.GetAddress() == "" {
		return ""
	}
	return net.JoinHostPort(a.Address, strconv.Itoa(int(a.Port)))
}
