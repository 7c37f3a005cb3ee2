// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Timings of gateway heartbeats.
const (
	// Interval is how often a gateway calls Register.
	HeartbeatInterval = 2 * time.Second
	// TTL is how long it may be silent before its check is critical.
	HeartbeatTTL = 10 * time.Second
	// ReapAfter is how long it may be silent before its records are deleted.
	ReapAfter = 72 * time.Hour
)

// Registration is what a gateway says of itself. Node comes from its certificate.
type GatewayRegistration struct {
	Node     string
	LAN, WAN string // host:port
	Meta     map[string]string
}

// GatewaysConfig configures Gateways.
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

// NewGateways checks cfg.
func NewGateways(cfg GatewaysConfig) (*Gateways, error) {
	if cfg.Backend == nil || cfg.DC == "" || cfg.Logger == nil {
		return nil, errors.New("catalog: Backend, DC and Logger are required")
	}
	return &Gateways{cfg: cfg, wake: make(chan struct{}, 1)}, nil
}

// Register records that a gateway is alive at these addresses. It writes only when something changed. It fails with
// resource.ErrNotLeader where Run is not running, and with a plain error naming the field for a bad registration.
func (g *Gateways) Register(ctx context.Context, reg GatewayRegistration) error {
	want, err := g.records(reg)
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
		g.poke()
	}
	g.lastSeen[reg.Node] = time.Now()
	delete(g.critical, reg.Node)
	return nil
}

// Deregister deletes a gateway's records. A gateway that is not there is no error.
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

// Run watches the deadlines until ctx ends. Call it while this server leads, once at a time.
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
		silent, gone, next := g.due(time.Now())
		for _, node := range silent {
			if err := g.setCritical(ctx, node); err != nil && ctx.Err() == nil {
				g.cfg.Logger.Warn("marking a silent gateway critical", "gateway", node, "err", err)
				next = min(next, time.Second)
			}
		}
		for _, node := range gone {
			if err := g.Deregister(ctx, node); err != nil && ctx.Err() == nil {
				g.cfg.Logger.Warn("deleting a gateway that is long gone", "gateway", node, "err", err)
				next = min(next, time.Minute)
			}
		}
		timer.Reset(next)
	}
}

// due returns the gateways whose TTL, or ReapAfter, has passed, and how long until the next one's.
func (g *Gateways) due(now time.Time) (silent, gone []string, next time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	next = time.Hour
	for node, seen := range g.lastSeen {
		switch idle := now.Sub(seen); {
		case idle >= ReapAfter:
			gone = append(gone, node)
		case g.critical[node]:
			next = min(next, ReapAfter-idle)
		case idle >= HeartbeatTTL:
			silent = append(silent, node)
		default:
			next = min(next, HeartbeatTTL-idle)
		}
	}
	return silent, gone, next
}

func (g *Gateways) setCritical(ctx context.Context, node string) error {
	id := resource.ID(CheckType, recordName(node))
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
		if g.heardSince(node) {
			return nil
		}
		c = proto.Clone(c).(*pb.Check)
		// Constant text: it is compared, and replicated when it changes.
		c.Status, c.Output = StatusCritical, fmt.Sprintf("no heartbeat for %v", HeartbeatTTL)
		err = put(ctx, g.cfg.Backend, r, c)
		if errors.Is(err, resource.ErrConflict) {
			continue
		}
		if err != nil {
			return err
		}
		g.cfg.Logger.Warn("gateway is silent", "gateway", node, "ttl", HeartbeatTTL)
		break
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.critical != nil {
		g.critical[node] = true
	}
	return nil
}

func (g *Gateways) heardSince(node string) bool {
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

func (g *Gateways) poke() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// records builds node, service and check of a registration.
func (g *Gateways) records(reg GatewayRegistration) (*pb.MeshGateway, error) {
	lan, err := parseAddr("LAN", reg.LAN)
	if err != nil {
		return nil, err
	}
	wan, err := parseAddr("WAN", reg.WAN)
	if err != nil {
		return nil, err
	}
	if err := checkMeta(reg.Meta); err != nil {
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
