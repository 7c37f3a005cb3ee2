// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

const (
	// HeartbeatInterval is the time between two calls of Register by a gateway.
	HeartbeatInterval = 2 * time.Second
	// HeartbeatTTL is the time without a heartbeat after which the leader
	// writes the check of a gateway as critical.
	HeartbeatTTL = 10 * time.Second
	// ReapAfter is the time without a heartbeat before a gateway is deleted.
	ReapAfter = 72 * time.Hour
)

// GatewayRegistration describes a gateway.
type GatewayRegistration struct {
	Node     string // node name in the gateway's certificate
	LAN, WAN string // host:port
	Meta     map[string]string
}

// Gateways registers the gateways of one datacenter. A TTLMonitor keeps the
// deadlines of their heartbeats.
type Gateways struct {
	dc      string
	monitor *TTLMonitor
}

// NewGateways returns the Gateways of dc in the Backend of monitor.
func NewGateways(dc string, monitor *TTLMonitor) *Gateways {
	return &Gateways{dc: dc, monitor: monitor}
}

// Register records a heartbeat of a gateway, and writes the resources that
// changed. Register fails with resource.ErrNotLeader while TTLMonitor.Run does
// not run. The error for an invalid registration names the field.
func (g *Gateways) Register(ctx context.Context, reg GatewayRegistration) error {
	want, err := g.describe(reg)
	if err != nil {
		return err
	}
	if !g.monitor.leading() {
		return resource.ErrNotLeader
	}
	changed, err := g.store(ctx, want)
	if err != nil {
		return fmt.Errorf("register gateway %s: %w", reg.Node, err)
	}
	if changed {
		g.monitor.logger.Info("gateway registered", "gateway", reg.Node, "lan", reg.LAN, "wan", reg.WAN)
	}
	return g.monitor.heartbeat(reg.Node, want.Checks[0])
}

// Deregister deletes a gateway, if the gateway exists.
func (g *Gateways) Deregister(ctx context.Context, node string) error {
	if !g.monitor.leading() {
		return resource.ErrNotLeader
	}
	_, err := g.monitor.backend.Commit(ctx, resource.RemoveOp(resource.ID(NodeType, node), resource.AnyVersion))
	if err != nil {
		return fmt.Errorf("deregister gateway %s: %w", node, err)
	}
	g.monitor.logger.Info("gateway deregistered", "gateway", node)
	return nil
}

// describe returns the node, service and check of a registration.
func (g *Gateways) describe(reg GatewayRegistration) (*pb.MeshGateway, error) {
	lan, err := parseAddr("LAN", reg.LAN)
	if err != nil {
		return nil, err
	}
	wan, err := parseAddr("WAN", reg.WAN)
	if err != nil {
		return nil, err
	}
	if err := checkGatewayMeta(reg.Meta); err != nil {
		return nil, err
	}
	meta := maps.Clone(reg.Meta)
	if meta == nil {
		meta = map[string]string{}
	}
	meta[MetaFederation] = "1"
	return &pb.MeshGateway{
		Node: &pb.Node{
			Node: reg.Node, Address: lan.Address, Datacenter: g.dc,
			TaggedAddresses: map[string]string{TagLAN: lan.Address, TagWAN: wan.Address},
		},
		Service: &pb.Service{
			Node: reg.Node, Kind: KindMeshGateway, Id: reg.Node, Service: ServiceName,
			Address: lan.Address, Port: lan.Port,
			TaggedAddresses: map[string]*pb.Address{TagLAN: lan, TagWAN: wan},
			Meta:            meta,
		},
		Checks: []*pb.Check{{
			Node: reg.Node, CheckId: "service:" + reg.Node, Name: "gateway heartbeat", Status: StatusPassing,
			ServiceId: reg.Node, ServiceName: ServiceName, Type: "ttl", Interval: HeartbeatInterval.String(),
		}},
	}, nil
}

// store writes the changed resources of want in one commit.
func (g *Gateways) store(ctx context.Context, want *pb.MeshGateway) (changed bool, err error) {
	for {
		ops, err := g.plan(ctx, want)
		if err != nil || len(ops) == 0 {
			return false, err
		}
		if err := g.checkOthers(ctx, want); err != nil {
			return false, err
		}
		_, err = g.monitor.backend.Commit(ctx, ops...)
		if errors.Is(err, resource.ErrConflict) && ctx.Err() == nil {
			continue // a concurrent write changed the resources
		}
		return err == nil, err
	}
}

// checkOthers returns an error if the WAN address of want is the LAN address of
// another healthy gateway. Connections of other datacenters would leave the
// datacenter again there.
func (g *Gateways) checkOthers(ctx context.Context, want *pb.MeshGateway) error {
	others, err := ListGateways(ctx, g.monitor.backend)
	if err != nil {
		return err
	}
	wan := TaggedAddr(want, TagWAN)
	for _, other := range others {
		if other.Node.Node != want.Node.Node && Healthy(other) && TaggedAddr(other, TagLAN) == wan {
			return fmt.Errorf("WAN address %s is the LAN address of gateway %s: "+
				"set the address at which other datacenters reach this gateway (--wan)", wan, other.Node.Node)
		}
	}
	return nil
}

// plan returns the ops of store. All three resources have the name of the node.
func (g *Gateways) plan(ctx context.Context, want *pb.MeshGateway) ([]*pb.Op, error) {
	var ops []*pb.Op
	var owner *pb.ID // the node owns the service, and the service owns the check
	name := want.Node.Node
	for i, data := range []proto.Message{want.Node, want.Service, want.Checks[0]} { // in the order of types
		r, err := g.monitor.backend.Read(ctx, resource.Eventual, resource.ID(types[i], name))
		version := r.GetVersion() // empty if r does not exist
		switch {
		case errors.Is(err, resource.ErrNotFound):
			if r, err = resource.New(types[i], name, data); err == nil {
				r.Owner = owner
			}
		case err == nil:
			old, err := r.Data.UnmarshalNew()
			if err != nil {
				return nil, fmt.Errorf("stored %s: %w", r.Id.Name, err)
			}
			if proto.Equal(old, data) {
				owner = r.Id
				continue
			}
			if r, err = resource.WithData(r, data); err != nil {
				return nil, err
			}
		}
		if err != nil {
			return nil, err
		}
		owner = r.Id
		ops = append(ops, resource.PutOp(r, version))
	}
	return ops, nil
}

// ListGateways returns the gateways in b, sorted by node. The reads are
// eventual. The node, service and checks of a gateway belong to one moment.
func ListGateways(ctx context.Context, b resource.Backend) ([]*pb.MeshGateway, error) {
	all, err := readAll(ctx, b)
	if err != nil {
		return nil, err
	}
	// Decode only resources that may belong to a gateway.
	gateways := map[string]bool{}
	for _, service := range all.byType[1] { // services: the second of types
		if node := nodeOf(service); node == service.GetId().GetName() {
			gateways[node] = true
		}
	}
	for i := range all.byType {
		all.byType[i] = slices.DeleteFunc(all.byType[i], func(r *pb.Resource) bool { return !gateways[nodeOf(r)] })
	}
	s, err := newSnapshot(all, nil)
	if err != nil {
		return nil, err
	}
	var out []*pb.MeshGateway
	for _, node := range s.Nodes {
		for _, service := range node.Services {
			if service.Kind != KindMeshGateway || service.Resource.GetId().GetName() != nodeOf(service.Resource) {
				continue
			}
			gw := &pb.MeshGateway{Node: node.Node, Service: service.Service}
			for _, c := range service.AllChecks() {
				gw.Checks = append(gw.Checks, c.Check)
			}
			out = append(out, gw)
		}
	}
	return out, nil
}
