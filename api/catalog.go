// SPDX-License-Identifier: MPL-2.0

package api

import (
	"encoding/json"

	"github.com/wanfed/wanfed/api/pb"
)

// Indexes are the indexes of the writes that created and last changed a
// resource, in the responding store.
type Indexes struct{ Create, Modify uint64 }

// ServiceEntry is one instance of a service with its node and the checks of
// both, in /v1/health/service/{service}. A mesh gateway is such an instance and
// has the same JSON.
type ServiceEntry = MeshGateway

// CatalogService is one instance of a service with its node in one object, in
// /v1/catalog/service/{service}.
type CatalogService struct {
	ID, Node, Address        string // of the node
	Datacenter               string
	TaggedAddresses          map[string]string // of the node
	NodeMeta                 map[string]string
	ServiceKind              string
	ServiceID, ServiceName   string
	ServiceTags              []string
	ServiceAddress           string
	ServiceTaggedAddresses   map[string]ServiceAddress
	ServiceWeights           Weights
	ServiceMeta              map[string]string
	ServicePort              int
	ServiceSocketPath        string
	ServiceEnableTagOverride bool
	ServiceProxy             Proxy
	ServiceConnect           struct{}
	ServiceLocality          *struct{}
	CreateIndex, ModifyIndex uint64
}

// CatalogNode is a node with its services by id, in /v1/catalog/node/{node}.
type CatalogNode struct {
	Node     *Node
	Services map[string]Service
}

// CatalogNodeServices is a node with a list of its services, in
// /v1/catalog/node-services/{node}.
type CatalogNodeServices struct {
	Node     *Node
	Services []Service
}

// Definition is the JSON object that defines a check for the program that runs
// the check. wanfed stores the object and does not interpret it. The object of a
// check that servers run is made from its probe.
type Definition json.RawMessage

// MarshalJSON returns the object. An empty Definition becomes {}.
func (d Definition) MarshalJSON() ([]byte, error) {
	if len(d) == 0 {
		return []byte("{}"), nil
	}
	return d, nil
}

// UnmarshalJSON stores the object. {} becomes nil.
func (d *Definition) UnmarshalJSON(b []byte) error {
	*d = nil
	if string(b) != "{}" {
		*d = append(*d, b...)
	}
	return nil
}

// FromNode converts a node of a datacenter to the JSON type.
func FromNode(n *pb.Node, dc string, at Indexes) Node {
	return Node{
		ID: n.GetId(), Node: n.GetNode(), Address: n.GetAddress(), Datacenter: dc,
		TaggedAddresses: orEmpty(n.GetTaggedAddresses()), Meta: orEmpty(n.GetMeta()),
		CreateIndex: at.Create, ModifyIndex: at.Modify,
	}
}

// FromService converts a service of the catalog.
func FromService(s *pb.Service, at Indexes) Service {
	out := fromService(s)
	out.Tags = orEmptyList(out.Tags)
	out.Weights = Weights{Passing: max(1, int(s.GetWeightPassing())), Warning: max(1, int(s.GetWeightWarning()))}
	out.EnableTagOverride = s.GetEnableTagOverride()
	out.CreateIndex, out.ModifyIndex = at.Create, at.Modify
	return out
}

// FromCheck converts a check with the tags of its service.
func FromCheck(c *pb.Check, tags []string, at Indexes) Check {
	out := fromCheck(c)
	out.ServiceTags, out.Timeout, out.Definition = orEmptyList(tags), c.GetTimeout(), definitionOf(c)
	out.CreateIndex, out.ModifyIndex = at.Create, at.Modify
	return out
}

// definitionOf returns the definition of a check: that of its probe, or what the
// client has stored.
func definitionOf(c *pb.Check) Definition {
	p := c.GetProbe()
	if p == nil {
		return Definition(c.GetDefinition())
	}
	d := probeDefinition{
		HTTP: p.GetHttp(), Method: p.GetMethod(), TCP: p.GetTcp(), GRPC: p.GetGrpc(), GRPCUseTLS: p.GetTls(),
		TLSServerName: p.GetTlsServerName(), TLSSkipVerify: p.GetTlsSkipVerify(), Interval: p.GetInterval().AsDuration().String(),
	}
	if p.GetTimeout().AsDuration() > 0 {
		d.Timeout = p.GetTimeout().AsDuration().String()
	}
	if after := c.GetDeregisterAfter().AsDuration(); after > 0 {
		d.DeregisterCriticalServiceAfter = after.String()
	}
	for name, h := range p.GetHeader() {
		if d.Header == nil {
			d.Header = map[string][]string{}
		}
		d.Header[name] = h.GetValues()
	}
	b, err := json.Marshal(d)
	if err != nil {
		return nil // text marshals always
	}
	return b
}

// probeDefinition is the JSON of a probe, with Consul's names.
type probeDefinition struct {
	HTTP                           string              `json:",omitempty"`
	Method                         string              `json:",omitempty"`
	Header                         map[string][]string `json:",omitempty"`
	TCP                            string              `json:",omitempty"`
	GRPC                           string              `json:",omitempty"`
	GRPCUseTLS                     bool                `json:",omitempty"`
	TLSServerName                  string              `json:",omitempty"`
	TLSSkipVerify                  bool                `json:",omitempty"`
	Interval                       string
	Timeout                        string `json:",omitempty"`
	DeregisterCriticalServiceAfter string `json:",omitempty"`
}

// FromCatalogService converts a service and its node into one object.
func FromCatalogService(n *pb.Node, s *pb.Service, dc string, at Indexes) CatalogService {
	node, service := FromNode(n, dc, Indexes{}), FromService(s, at)
	return CatalogService{
		ID: node.ID, Node: node.Node, Address: node.Address, Datacenter: dc,
		TaggedAddresses: node.TaggedAddresses, NodeMeta: node.Meta,
		ServiceKind: service.Kind, ServiceID: service.ID, ServiceName: service.Service, ServiceTags: service.Tags,
		ServiceAddress: service.Address, ServiceTaggedAddresses: service.TaggedAddresses,
		ServiceWeights: service.Weights,
		ServiceMeta:    service.Meta, ServicePort: service.Port, ServiceEnableTagOverride: service.EnableTagOverride,
		CreateIndex: at.Create, ModifyIndex: at.Modify,
	}
}

// orEmptyList returns list, or an empty list for nil. JSON encodes nil as null.
func orEmptyList(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}
