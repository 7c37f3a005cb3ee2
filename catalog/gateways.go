// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Times of gateway heartbeats.
const (
	// HeartbeatInterval is the time between two calls of Register by a gateway.
	HeartbeatInterval = 2 * time.Second
	// HeartbeatTTL is the time without a heartbeat after which the check of a
	// gateway is critical.
	HeartbeatTTL = 10 * time.Second
	// ReapAfter is the time without a heartbeat after which a gateway is
	// deleted.
	ReapAfter = 72 * time.Hour
)

// GatewayRegistration describes a gateway. Node comes from its certificate.
type GatewayRegistration struct {
	Node     string
	LAN, WAN string // host:port
	Meta     map[string]string
}

// GatewaysConfig configures Gateways. Every field is required.
type GatewaysConfig struct {
	Backend resource.Backend
	DC      string
	Logger  *slog.Logger
}

// Gateways keeps the registrations and heartbeats of one datacenter's gateways.
type Gateways struct {
	cfg  GatewaysConfig
	wake chan struct{} // size 1: a deadline changed

	mu       sync.Mutex
	lastSeen map[string]time.Time // by node; nil while this server does not lead
	critical map[string]bool      // nodes whose check this leader wrote, or found, critical
}

// NewGateways returns Gateways for a valid cfg.
func NewGateways(cfg GatewaysConfig) (*Gateways, error) {
	if cfg.Backend == nil || cfg.DC == "" || cfg.Logger == nil {
		return nil, errors.New("catalog: Backend, DC and Logger are required")
	}
	return &Gateways{cfg: cfg, wake: make(chan struct{}, 1)}, nil
}

// Register records a heartbeat of a gateway. It writes only the resources that
// changed. It fails with resource.ErrNotLeader while Run is not running. The
// error for an invalid registration names the field.
func (g *Gateways) Register(ctx context.Context, reg GatewayRegistration) error {
	want, err := g.describe(reg)
	if err != nil {
		return err
	}
	if !g.leading() {
		return resource.ErrNotLeader
	}
	changed, err := g.store(ctx, want)
	if err != nil {
		return fmt.Errorf("register gateway %s: %w", reg.Node, err)
	}
	if changed {
		g.cfg.Logger.Info("gateway registered", "gateway", reg.Node, "lan", reg.LAN, "wan", reg.WAN)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lastSeen == nil {
		return resource.ErrNotLeader
	}
	if _, known := g.lastSeen[reg.Node]; !known || g.critical[reg.Node] {
		notify(g.wake)
	}
	g.lastSeen[reg.Node] = time.Now()
	delete(g.critical, reg.Node)
	return nil
}

// Deregister deletes a gateway. It succeeds if the gateway does not exist.
func (g *Gateways) Deregister(ctx context.Context, node string) error {
	if !g.leading() {
		return resource.ErrNotLeader
	}
	g.mu.Lock()
	delete(g.lastSeen, node)
	delete(g.critical, node)
	g.mu.Unlock()
	_, err := g.cfg.Backend.Commit(ctx, resource.RemoveOp(resource.ID(NodeType, node), resource.AnyVersion))
	if err != nil {
		return fmt.Errorf("deregister gateway %s: %w", node, err)
	}
	g.cfg.Logger.Info("gateway deregistered", "gateway", node)
	return nil
}

// Run watches the deadlines until ctx ends. Call it while this server leads,
// once at a time.
func (g *Gateways) Run(ctx context.Context) error {
	known, err := ListGateways(ctx, g.cfg.Backend)
	if err != nil {
		return fmt.Errorf("read gateways: %w", err)
	}
	g.mu.Lock()
	g.lastSeen, g.critical = map[string]time.Time{}, map[string]bool{}
	for _, gw := range known {
		g.lastSeen[gw.Node.Node] = time.Now()
		if !Healthy(gw) {
			g.critical[gw.Node.Node] = true
		}
	}
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.lastSeen, g.critical = nil, nil
	}()

	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-g.wake:
		}
		expired, reap, next := g.due(time.Now())
		for _, node := range expired {
			if err := g.setCritical(ctx, node); err != nil && ctx.Err() == nil {
				g.cfg.Logger.Warn("cannot mark a gateway as critical", "gateway", node, "err", err)
				next = min(next, time.Second)
			}
		}
		for _, node := range reap {
			if err := g.Deregister(ctx, node); err != nil && ctx.Err() == nil {
				g.cfg.Logger.Warn("cannot delete a gateway without heartbeats", "gateway", node, "err", err)
				next = min(next, time.Minute)
			}
		}
		timer.Reset(next)
	}
}

// due returns the gateways whose HeartbeatTTL or ReapAfter has passed, and the
// time until the next deadline.
func (g *Gateways) due(now time.Time) (expired, reap []string, next time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	next = time.Hour
	for node, seen := range g.lastSeen {
		switch idle := now.Sub(seen); {
		case idle >= ReapAfter:
			reap = append(reap, node)
		case g.critical[node]:
			next = min(next, ReapAfter-idle)
		case idle >= HeartbeatTTL:
			expired = append(expired, node)
		default:
			next = min(next, HeartbeatTTL-idle)
		}
	}
	return expired, reap, next
}

// setCritical writes the check of a gateway as critical, unless the gateway has
// sent a heartbeat after its deadline.
func (g *Gateways) setCritical(ctx context.Context, node string) error {
	id := resource.ID(CheckType, node)
	for {
		r, err := g.cfg.Backend.Read(ctx, resource.Eventual, id)
		if errors.Is(err, resource.ErrNotFound) {
			break
		}
		if err != nil {
			return err
		}
		c, err := resource.Decode[*pb.Check](r)
		if err != nil {
			return err
		}
		if g.seenWithinTTL(node) {
			return nil
		}
		c = proto.CloneOf(c)
		// The text is constant, because every change of it is replicated.
		c.Status, c.Output = StatusCritical, fmt.Sprintf("no heartbeat for %v", HeartbeatTTL)
		err = replace(ctx, g.cfg.Backend, r, c)
		if errors.Is(err, resource.ErrConflict) {
			continue
		}
		if err != nil {
			return err
		}
		g.cfg.Logger.Warn("gateway heartbeat missing", "gateway", node, "duration", HeartbeatTTL)
		break
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.critical != nil {
		g.critical[node] = true
	}
	return nil
}

func (g *Gateways) seenWithinTTL(node string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	seen, ok := g.lastSeen[node]
	return !ok || time.Since(seen) < HeartbeatTTL
}

func (g *Gateways) leading() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.lastSeen != nil
}

// notify makes a receive from wake, a channel of size 1, succeed.
func notify(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
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
			Node: reg.Node, Address: lan.Address, Datacenter: g.cfg.DC,
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

// store writes the resources of want that differ from the stored ones, in one
// commit.
func (g *Gateways) store(ctx context.Context, want *pb.MeshGateway) (changed bool, err error) {
	for {
		ops, err := g.plan(ctx, want)
		if err != nil || len(ops) == 0 {
			return false, err
		}
		_, err = g.cfg.Backend.Commit(ctx, ops...)
		if errors.Is(err, resource.ErrConflict) && ctx.Err() == nil {
			continue // a concurrent write changed the resources
		}
		return err == nil, err
	}
}

// plan returns the ops of store. The three resources have the name of the node.
func (g *Gateways) plan(ctx context.Context, want *pb.MeshGateway) ([]*pb.Op, error) {
	var ops []*pb.Op
	var owner *pb.ID
	name := want.Node.Node
	for i, data := range []proto.Message{want.Node, want.Service, want.Checks[0]} {
		r, err := g.cfg.Backend.Read(ctx, resource.Eventual, resource.ID(types[i], name))
		switch {
		case errors.Is(err, resource.ErrNotFound):
			r, err = resource.New(types[i], name, data)
			if err != nil {
				return nil, err
			}
			r.Owner = owner
			ops = append(ops, resource.PutOp(r, ""))
		case err != nil:
			return nil, err
		default:
			old, err := r.Data.UnmarshalNew()
			if err != nil {
				return nil, fmt.Errorf("stored %s: %w", r.Id.Name, err)
			}
			if !proto.Equal(old, data) {
				next, err := resource.WithData(r, data)
				if err != nil {
					return nil, err
				}
				ops = append(ops, resource.PutOp(next, r.Version))
			}
		}
		owner = r.Id
	}
	return ops, nil
}

// replace writes new data to a stored resource, if it has not changed.
func replace(ctx context.Context, b resource.Backend, r *pb.Resource, data proto.Message) error {
	next, err := resource.WithData(r, data)
	if err != nil {
		return err
	}
	_, err = b.Commit(ctx, resource.PutOp(next, r.Version))
	return err
}

// ListGateways returns the gateways of this datacenter, sorted by node, from the
// local store. The node, service and checks of a gateway are as of one commit.
func ListGateways(ctx context.Context, b resource.Backend) ([]*pb.MeshGateway, error) {
	all, err := readAll(ctx, b)
	if err != nil {
		return nil, err
	}
	// Only resources that may belong to a gateway are decoded. A large catalog
	// has few gateways.
	gateways := map[string]bool{}
	for _, service := range all.byType[1] {
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
