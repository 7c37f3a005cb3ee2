// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// The types of the catalog are not federated: each datacenter has its own.
var (
	NodeType    = &pb.Type{Group: "catalog", GroupVersion: "v1", Kind: "Node"}
	ServiceType = &pb.Type{Group: "catalog", GroupVersion: "v1", Kind: "Service"}
	CheckType   = &pb.Type{Group: "catalog", GroupVersion: "v1", Kind: "Check"}
)

const (
	// KindMeshGateway is the field Kind of a gateway's service.
	KindMeshGateway = "mesh-gateway"
	// ServiceName is the field Service of a gateway's service.
	ServiceName = "mesh-gateway"
	// MetaFederation is the metadata key of a gateway that forwards between
	// datacenters. The value is "1". Consul has the same key.
	MetaFederation = "consul-wan-federation"
)

// Values of the field Status of a check.
const (
	StatusPassing  = "passing"
	StatusWarning  = "warning"
	StatusCritical = "critical"
)

// Keys of tagged addresses.
const (
	TagLAN = "lan"
	TagWAN = "wan"
)

// Register adds the catalog's types to a registry.
func Register(r *resource.Registry) error {
	for _, reg := range []resource.Registration{
		{Type: NodeType, Message: &pb.Node{}, Validate: resource.ValidateData(checkStoredNode)},
		{Type: ServiceType, Message: &pb.Service{}, Validate: resource.ValidateData(checkService)},
		{Type: CheckType, Message: &pb.Check{}, Validate: resource.ValidateData(checkCheck)},
	} {
		reg.CheckName, reg.Authorize = resource.CheckUTF8Name, authorize
		if err := r.Register(reg); err != nil {
			return err
		}
	}
	return nil
}

// authorize refuses writes of clients and gateways, writes of a sync daemon that
// are not its registration, and registrations of servers and gateways. Package
// policy decides about all callers.
func authorize(p tlsutil.Peer, verb resource.Verb, r *pb.Resource) error {
	if verb == resource.VerbRead || verb == resource.VerbList {
		return nil
	}
	if err := checkReserved(p, verb, r); err != nil {
		return err
	}
	switch p.Role {
	case tlsutil.RoleSync:
		if verb == resource.VerbWrite || verb == resource.VerbDelete {
			return authorizeSync(r)
		}
	case tlsutil.RoleClient, tlsutil.RoleGateway:
	default:
		return nil
	}
	return fmt.Errorf("%v may not write catalog records", p)
}

// checkReserved returns an error if a caller writes the registration of a server
// or of a gateway, which only these make themselves. Operators and servers may
// delete a gateway. It registers again if it is alive. A user may not write a
// check of a loopback address: programs there may trust local callers.
func checkReserved(p tlsutil.Peer, verb resource.Verb, r *pb.Resource) error {
	if r.GetData() == nil { // only the id is known
		return nil
	}
	var service, kind string
	gateway := false
	switch r.GetId().GetType().GetKind() {
	case ServiceType.Kind:
		s, err := resource.Decode[*pb.Service](r)
		if err != nil {
			return err
		}
		service, kind, gateway = s.Service, s.Kind, gatewayName(p, r, s.Node)
	case CheckType.Kind:
		c, err := resource.Decode[*pb.Check](r)
		if err != nil {
			return err
		}
		if verb == resource.VerbWrite && p.Role == tlsutil.RoleUser && ProbesLoopback(c.Probe) {
			return errors.New("a user may not make a server connect to its loopback addresses: register the check as an operator")
		}
		gateway = gatewayName(p, r, c.Node)
	case NodeType.Kind:
		n, err := resource.Decode[*pb.Node](r)
		if err != nil {
			return err
		}
		// Only Gateways sets both. The registration of a node sets no datacenter.
		gateway = verb == resource.VerbDelete && n.Datacenter != "" && n.TaggedAddresses[TagWAN] != ""
	}
	switch {
	case verb == resource.VerbDelete && (p.Role != tlsutil.RoleUser || kind != KindMeshGateway && !gateway):
		return nil
	case service == ServerService:
		return fmt.Errorf("service %q is the servers themselves: choose another name", service)
	case kind == KindMeshGateway, service == ServiceName, gateway:
		return errors.New("only a gateway writes its node, service and check: choose another name")
	}
	return nil
}

// gatewayName reports whether the name of r is that of the service or check of a
// gateway: the name of its node alone. Operators and servers, which may write
// anything, use such names for services and checks of other nodes too.
func gatewayName(p tlsutil.Peer, r *pb.Resource, node string) bool {
	name := r.GetId().GetName()
	return nodeOf(r) == name && (p.Role == tlsutil.RoleUser || node == name)
}

// Healthy reports whether no check of a gateway is critical.
func Healthy(g *pb.MeshGateway) bool {
	return !slices.ContainsFunc(g.GetChecks(), func(c *pb.Check) bool { return c.Status == StatusCritical })
}

// conflictPrefix begins the output of the check of a gateway while another
// gateway has its name.
const conflictPrefix = "another gateway with this name is refused: "

// NameConflict returns the addresses of a refused gateway that has the name of
// g, as text, or "".
func NameConflict(g *pb.MeshGateway) string {
	for _, c := range g.GetChecks() {
		if addrs, ok := strings.CutPrefix(c.GetOutput(), conflictPrefix); ok && c.Status == StatusPassing {
			return addrs
		}
	}
	return ""
}

// TaggedAddr returns the host:port of a gateway for a tag, TagLAN or TagWAN. It
// returns "" if the gateway has no such address.
func TaggedAddr(g *pb.MeshGateway, tag string) string {
	a := g.GetService().GetTaggedAddresses()[tag]
	if a.GetAddress() == "" {
		return ""
	}
	return net.JoinHostPort(a.Address, strconv.Itoa(int(a.Port)))
}

// CheckName returns the name of the resource of a check.
func CheckName(node, id string) string { return resourceName(node, id) }

var nodeEscaper = strings.NewReplacer("%", "%25", "/", "%2F")

// resourceName returns the name of the resource of a service or check. It
// contains the node, because an id is unique on its node only. resourceName is
// not used for a gateway: the name of the resources of its service and its
// check is the name of the node.
func resourceName(node, id string) string { return nodeEscaper.Replace(node) + "/" + id }

// nodeOf returns the node in a resource's name, still escaped by nodeEscaper. The
// node of a gateway is a DNS label, so nothing in it is escaped.
func nodeOf(r *pb.Resource) string {
	node, _, _ := strings.Cut(r.GetId().GetName(), "/")
	return node
}
