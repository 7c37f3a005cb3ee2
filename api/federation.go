// SPDX-License-Identifier: MPL-2.0

package api

import (
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/wanfed/wanfed/api/pb"
)

// FederationState contains the gateways of one datacenter.
type FederationState struct {
	Datacenter   string
	MeshGateways []MeshGateway // never null
	UpdatedAt    time.Time     // RFC 3339 with nanoseconds, UTC
	// PrimaryModifyIndex is the primary's index of the last change. It is 0 in
	// responses of the primary.
	PrimaryModifyIndex uint64
	// CreateIndex and ModifyIndex are indexes of the responding store.
	CreateIndex, ModifyIndex uint64
}

// FederationStateResponse is the body of /v1/internal/federation-state/{dc}.
type FederationStateResponse struct {
	State *FederationState
	Index uint64
	// LastContact is the time since the server's last contact with its leader,
	// in nanoseconds.
	LastContact time.Duration
	KnownLeader bool

	// These fields are always zero. Consul's clients expect them.
	ConsistencyLevel      string
	NotModified           bool
	Backend               int
	ResultsFilteredByACLs bool
}

// MeshGateway is one gateway with its node and health.
type MeshGateway struct {
	Node    Node
	Service Service
	Checks  []Check // never null
}

// Healthy reports whether no check is critical. A check with a warning counts
// as healthy.
func (g MeshGateway) Healthy() bool {
	return !slices.ContainsFunc(g.Checks, func(c Check) bool { return c.Status == CheckCritical })
}

// Status returns the worst status of the checks.
func (g MeshGateway) Status() string {
	for _, status := range []string{CheckCritical, CheckWarning} {
		if slices.ContainsFunc(g.Checks, func(c Check) bool { return c.Status == status }) {
			return status
		}
	}
	return CheckPassing
}

// The values of Check.Status.
const (
	CheckPassing  = "passing"
	CheckWarning  = "warning"
	CheckCritical = "critical"
)

// Node is a machine of a datacenter.
type Node struct {
	ID, Node                 string
	Address                  string // without port
	Datacenter               string
	TaggedAddresses          map[string]string
	Meta                     map[string]string
	CreateIndex, ModifyIndex uint64
}

// Service is one instance of a service. The Kind of a gateway is
// "mesh-gateway".
type Service struct {
	Kind, ID, Service string
	Tags              []string
	Address           string
	// TaggedAddresses has the addresses "lan", for servers of the same
	// datacenter, and "wan", for other datacenters.
	TaggedAddresses          map[string]ServiceAddress
	Meta                     map[string]string
	Port                     int
	Weights                  Weights
	EnableTagOverride        bool
	Proxy                    Proxy
	Connect                  struct{}
	PeerName                 string
	CreateIndex, ModifyIndex uint64
}

// Addr returns the address (host:port) of the service with the tag, or else its
// default address. It returns "" if there is none.
func (s Service) Addr(tag string) string {
	a, ok := s.TaggedAddresses[tag]
	if !ok {
		a = ServiceAddress{Address: s.Address, Port: s.Port}
	}
	if a.Address == "" {
		return ""
	}
	return net.JoinHostPort(a.Address, strconv.Itoa(a.Port))
}

// ServiceAddress is a host and port.
type ServiceAddress struct {
	Address string
	Port    int
}

// Weights are the weights of an instance for load balancers.
type Weights struct{ Passing, Warning int }

// Proxy is the proxy configuration of a service in Consul. wanfed leaves it
// empty.
type Proxy struct {
	Mode        string
	MeshGateway struct{}
	Expose      struct{}
}

// Check is a health check of a service, or of a node if ServiceID is empty.
type Check struct {
	Node, CheckID, Name      string
	Status, Notes, Output    string
	ServiceID, ServiceName   string
	ServiceTags              []string
	Type                     string
	Interval, Timeout        string
	ExposedPort              int
	Definition               Definition
	CreateIndex, ModifyIndex uint64
}

// FromFederationState converts a state. nil becomes an empty state.
func FromFederationState(s *pb.FederationState) FederationState {
	out := FederationState{
		Datacenter: s.GetDatacenter(), MeshGateways: FromMeshGateways(s.GetMeshGateways()),
		PrimaryModifyIndex: s.GetPrimaryModifyIndex(), CreateIndex: s.GetCreateIndex(), ModifyIndex: s.GetModifyIndex(),
	}
	if t := s.GetUpdatedAt(); t.IsValid() { // RFC 3339 has only the years 1 to 9999
		out.UpdatedAt = t.AsTime()
	}
	return out
}

// FromFederationStates converts states.
func FromFederationStates(states []*pb.FederationState) []FederationState {
	out := make([]FederationState, len(states))
	for i, s := range states {
		out[i] = FromFederationState(s)
	}
	return out
}

// FromMeshGateways converts gateways.
func FromMeshGateways(gateways []*pb.MeshGateway) []MeshGateway {
	out := make([]MeshGateway, len(gateways))
	for i, g := range gateways {
		out[i] = MeshGateway{
			Node:    FromNode(g.GetNode(), g.GetNode().GetDatacenter(), Indexes{}),
			Service: fromService(g.GetService()),
			Checks:  make([]Check, len(g.GetChecks())),
		}
		for j, c := range g.GetChecks() {
			out[i].Checks[j] = fromCheck(c)
		}
	}
	return out
}

// GatewaysByDatacenter returns the gateways of each datacenter that has any, as
// in /v1/internal/federation-states/mesh-gateways.
func GatewaysByDatacenter(states []*pb.FederationState) map[string][]MeshGateway {
	out := make(map[string][]MeshGateway, len(states))
	for _, s := range states {
		if gateways := s.GetMeshGateways(); len(gateways) > 0 {
			out[s.GetDatacenter()] = FromMeshGateways(gateways)
		}
	}
	return out
}

func fromService(s *pb.Service) Service {
	tagged := make(map[string]ServiceAddress, len(s.GetTaggedAddresses()))
	for tag, a := range s.GetTaggedAddresses() {
		tagged[tag] = ServiceAddress{Address: a.GetAddress(), Port: int(a.GetPort())}
	}
	return Service{
		Kind: s.GetKind(), ID: s.GetId(), Service: s.GetService(), Tags: s.GetTags(), Meta: orEmpty(s.GetMeta()),
		Address: s.GetAddress(), Port: int(s.GetPort()), TaggedAddresses: tagged,
		Weights: Weights{Passing: 1, Warning: 1},
	}
}

func fromCheck(c *pb.Check) Check {
	return Check{
		Node: c.GetNode(), CheckID: c.GetCheckId(), Name: c.GetName(), Status: c.GetStatus(), Notes: c.GetNotes(),
		Output: c.GetOutput(), ServiceID: c.GetServiceId(), ServiceName: c.GetServiceName(),
		Type: c.GetType(), Interval: c.GetInterval(),
	}
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}
