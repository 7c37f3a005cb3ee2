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
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/internal/ratelog"
	"github.com/wanfed/wanfed/resource"
)

const (
	// HeartbeatInterval is the time between two calls of Register by a gateway.
	HeartbeatInterval = 2 * time.Second
	// HeartbeatTTL is the time without a heartbeat after which the leader
	// writes the check of a gateway as critical. The status then shows a frozen
	// gateway within ten seconds.
	HeartbeatTTL = 8 * time.Second
	// ReapAfter is the time without a heartbeat before a gateway is deleted.
	ReapAfter = 72 * time.Hour
	// takeOverAfter is the time since the last heartbeat of a gateway after which
	// a gateway with the same name and other addresses replaces it. It is longer
	// than HeartbeatInterval.
	takeOverAfter = 3 * time.Second
)

// ErrNameTaken is returned by Register while another gateway has the name.
var ErrNameTaken = errors.New("another gateway has the same name")

// GatewayRegistration describes a gateway.
type GatewayRegistration struct {
	Node     string // node name in the gateway's certificate
	LAN, WAN string // host:port
	Meta     map[string]string
	// Unreachable are gateways of other datacenters to which the gateway cannot
	// connect.
	Unreachable []*pb.UnreachableGateway
}

// Gateways registers the gateways of one datacenter. A TTLMonitor keeps the
// deadlines of their heartbeats. Two gateways can have one name by mistake, for
// example if a configuration was copied to a second machine. Their addresses
// differ. Gateways accepts the one that registered first, as long as it is
// alive, and refuses the other one. It writes the addresses of the refused
// gateway to the check of the accepted one (see NameConflict).
type Gateways struct {
	dc      string
	monitor *TTLMonitor
	refused *ratelog.Logger[string] // logs refused gateways, by name

	mu         sync.Mutex
	rivals     map[string]*rival         // by name
	refusedLAN map[string]refusedGateway // by name; at most maxRefused
	// unreachable has the last report of each gateway that reports other
	// gateways, by name.
	unreachable        map[string]unreachableReport
	unreachableChanged broadcast.Broadcast
}

// unreachableReport has the gateways of other datacenters to which a gateway
// cannot connect.
type unreachableReport struct {
	gateways []*pb.UnreachableGateway
	at       time.Time
}

// maxUnreachable bounds the gateways in one report.
const maxUnreachable = 16

// rival is a gateway that is refused because another gateway has its name.
type rival struct {
	addrs       gatewayAddrs
	first, last time.Time // of its calls of Register
}

// refusedGateway is a registration that was refused for its addresses.
type refusedGateway struct {
	reason string
	at     time.Time
}

// maxRefused bounds the memory for refused registrations.
const maxRefused = 64

// NewGateways returns the Gateways of dc in the Backend of monitor.
func NewGateways(dc string, monitor *TTLMonitor) *Gateways {
	return &Gateways{
		dc: dc, monitor: monitor, refused: ratelog.New[string](monitor.logger), rivals: map[string]*rival{},
		unreachable: map[string]unreachableReport{},
	}
}

// Register records a heartbeat of a gateway, and writes the resources that
// changed. Register fails with resource.ErrNotLeader while TTLMonitor.Run does
// not run, and with ErrNameTaken while another gateway with the name is alive.
// The error for an invalid registration names the field.
func (g *Gateways) Register(ctx context.Context, reg GatewayRegistration) error {
	want, err := g.describe(reg)
	if err != nil {
		return err
	}
	if !g.monitor.leading() {
		return resource.ErrNotLeader
	}
	want.Checks[0].Output = g.conflict(want)
	changed, err := g.store(ctx, want)
	if errors.Is(err, ErrNameTaken) {
		g.refused.Log(reg.Node, slog.LevelWarn, "gateway refused", "gateway", reg.Node, "err", err)
	}
	g.recordRefusal(reg.Node, err)
	if err != nil {
		return fmt.Errorf("register gateway %s: %w", reg.Node, err)
	}
	if changed {
		g.monitor.logger.Info("gateway registered", "gateway", reg.Node, "lan", reg.LAN, "wan", reg.WAN)
	}
	g.recordUnreachable(reg.Node, reg.Unreachable)
	return g.monitor.heartbeat(reg.Node, want.Checks[0])
}

// recordUnreachable records a report of a gateway.
func (g *Gateways) recordUnreachable(node string, gateways []*pb.UnreachableGateway) {
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.unreachable[node].gateways
	gateways = gateways[:min(len(gateways), maxUnreachable)]
	if len(gateways) == 0 {
		delete(g.unreachable, node)
	} else {
		g.unreachable[node] = unreachableReport{gateways, time.Now()}
	}
	if !slices.EqualFunc(old, gateways, func(a, b *pb.UnreachableGateway) bool { return proto.Equal(a, b) }) {
		g.unreachableChanged.Notify()
	}
}

// Unreachable returns the gateways of other datacenters to which a local gateway
// cannot connect, although it can connect to another gateway of the same
// datacenter. Each is reported in heartbeats, and for HeartbeatTTL after the
// last one. Only the leader has them. The channel is closed after a change, but
// not when that time has passed. The texts are those of the gateways.
func (g *Gateways) Unreachable() ([]*pb.UnreachableGateway, <-chan struct{}) {
	changed := g.unreachableChanged.Wait()
	if !g.monitor.leading() {
		return nil, changed
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.unreachable, func(_ string, r unreachableReport) bool { return time.Since(r.at) >= HeartbeatTTL })
	var out []*pb.UnreachableGateway
	for _, node := range slices.Sorted(maps.Keys(g.unreachable)) {
		for _, u := range g.unreachable[node].gateways {
			if !slices.ContainsFunc(out, func(o *pb.UnreachableGateway) bool {
				return o.Datacenter == u.Datacenter && o.Address == u.Address
			}) {
				out = append(out, u)
			}
		}
	}
	return out, changed
}

// Deregister deletes the gateway reg.Node, if it exists. If reg has addresses,
// Deregister does not delete a gateway with other addresses.
func (g *Gateways) Deregister(ctx context.Context, reg GatewayRegistration) error {
	if !g.monitor.leading() {
		return resource.ErrNotLeader
	}
	if other, err := g.isOther(ctx, reg); err != nil || other {
		return err
	}
	_, err := g.monitor.backend.Commit(ctx, resource.RemoveOp(resource.ID(NodeType, reg.Node), resource.AnyVersion))
	if err != nil {
		return fmt.Errorf("deregister gateway %s: %w", reg.Node, err)
	}
	g.monitor.logger.Info("gateway deregistered", "gateway", reg.Node)
	return nil
}

// isOther reports whether the stored gateway is not reg, the gateway that
// stops, but another one with its name. If reg is a refused gateway, its
// conflict ends. Without addresses in reg, isOther returns false.
func (g *Gateways) isOther(ctx context.Context, reg GatewayRegistration) (bool, error) {
	if reg.LAN == "" {
		return false, nil // a gateway of an earlier version
	}
	stopped, err := g.describe(reg)
	if err != nil {
		return false, err
	}
	all, err := ListGateways(ctx, g.monitor.backend)
	if err != nil {
		return false, fmt.Errorf("deregister gateway %s: %w", reg.Node, err)
	}
	other := slices.ContainsFunc(all, func(gw *pb.MeshGateway) bool {
		return gw.Node.Node == reg.Node && addressesOf(gw) != addressesOf(stopped)
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.rivals[reg.Node]; r != nil && r.addrs == addressesOf(stopped) {
		delete(g.rivals, reg.Node)
	}
	return other, nil
}

// gatewayAddrs are the addresses of a gateway. They identify one of several
// gateways with the same name.
type gatewayAddrs struct{ lan, wan string }

func addressesOf(g *pb.MeshGateway) gatewayAddrs {
	return gatewayAddrs{TaggedAddr(g, TagLAN), TaggedAddr(g, TagWAN)}
}

func (a gatewayAddrs) String() string {
	return fmt.Sprintf("LAN address %s and WAN address %s", a.lan, a.wan)
}

// conflict returns the output of the check of a gateway: the addresses of the
// gateway that is refused because of its name, or "".
func (g *Gateways) conflict(want *pb.MeshGateway) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.rivals[want.Node.Node]
	if r == nil || r.addrs == addressesOf(want) || time.Since(r.last) >= HeartbeatTTL {
		return ""
	}
	return conflictPrefix + r.addrs.String()
}

// checkName returns an error if the gateway present, which has the name of
// want, is alive at other addresses. There are two cases. If present has sent
// no heartbeat since the first call of want, one gateway was probably started
// again at other addresses. Then want takes the name when the last heartbeat of
// present is older than takeOverAfter. Otherwise both gateways run, and want
// takes the name only when the check of present is critical.
func (g *Gateways) checkName(present, want *pb.MeshGateway) error {
	name, addrs := want.Node.Node, addressesOf(want)
	now, last := time.Now(), g.monitor.lastHeartbeat(name)
	g.mu.Lock()
	defer g.mu.Unlock()
	if addressesOf(present) == addrs {
		return nil
	}
	r := g.rivals[name]
	if r == nil || r.addrs != addrs || now.Sub(r.last) >= HeartbeatTTL {
		r = &rival{addrs: addrs, first: now}
		g.rivals[name] = r
	}
	r.last = now
	if !Healthy(present) || now.Sub(last) >= takeOverAfter && !last.After(r.first) {
		delete(g.rivals, name)
		return nil
	}
	return fmt.Errorf("%w: it is alive with %v, and this gateway has %v: stop one of the two, or give it "+
		"another name and certificate", ErrNameTaken, addressesOf(present), addrs)
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

// checkOthers returns an error if another gateway has the name of want, or if
// the WAN address of want is the LAN address of another healthy gateway. The
// LAN listener would forward connections from other datacenters out of this
// datacenter again.
func (g *Gateways) checkOthers(ctx context.Context, want *pb.MeshGateway) error {
	others, err := ListGateways(ctx, g.monitor.backend)
	if err != nil {
		return err
	}
	wan := TaggedAddr(want, TagWAN)
	for _, other := range others {
		if other.Node.Node == want.Node.Node {
			if err := g.checkName(other, want); err != nil {
				return err
			}
		} else if Healthy(other) && TaggedAddr(other, TagLAN) == wan {
			return &refusedError{fmt.Sprintf("WAN address %s is the LAN address of gateway %s: "+
				"set the address at which other datacenters reach this gateway (--wan)", wan, other.Node.Node)}
		}
	}
	return nil
}

// refusedError reports why a gateway may not register.
type refusedError struct{ reason string }

func (e *refusedError) Error() string { return e.reason }

// recordRefusal records that a registration ended with err, which may be nil.
func (g *Gateways) recordRefusal(node string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	refused, ok := errors.AsType[*refusedError](err)
	switch {
	case !ok:
		delete(g.refusedLAN, node)
	case len(g.refusedLAN) < maxRefused || g.refusedLAN[node].reason != "":
		if g.refusedLAN == nil {
			g.refusedLAN = map[string]refusedGateway{}
		}
		g.refusedLAN[node] = refusedGateway{refused.reason, time.Now()}
	}
}

// Refused returns the reasons of registrations that were refused in the last
// HeartbeatTTL, by node. Only the leader has them.
func (g *Gateways) Refused() map[string]string {
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.refusedLAN, func(_ string, r refusedGateway) bool { return time.Since(r.at) >= HeartbeatTTL })
	out := make(map[string]string, len(g.refusedLAN))
	for node, r := range g.refusedLAN {
		out[node] = r.reason
	}
	return out
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
