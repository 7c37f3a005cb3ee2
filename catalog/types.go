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
		{Type: NodeType, Message: &pb.Node{}, Validate: validateNode},
		{Type: ServiceType, Message: &pb.Service{}, Validate: validateService},
		{Type: CheckType, Message: &pb.Check{}, Validate: validateCheck},
	} {
		reg.CheckName, reg.Authorize = resource.CheckUTF8Name, localOnly
		if err := r.Register(reg); err != nil {
			return err
		}
	}
	return nil
}

// localOnly: everyone with a certificate of this datacenter may read (the server checks the datacenter); operators and
// servers may write. A gateway registers through its own service, never by writing records.
func localOnly(p tlsutil.Peer, verb resource.Verb, _ *pb.Resource) error {
	if verb == resource.VerbRead || verb == resource.VerbList || p.Role == tlsutil.RoleServer || p.Role == tlsutil.RoleOperator {
		return nil
	}
	return fmt.Errorf("%v may not write catalog records", p)
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
