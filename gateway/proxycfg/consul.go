// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/wanfed/wanfed/api"
	consulapi "github.com/wanfed/wanfed/api/consul"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/broadcast"
)

// Consul describes a mesh gateway of a Consul datacenter.
type Consul struct {
	// Agent calls the agent whose services include the gateway. Required.
	Agent *api.Client
	// DC is the datacenter of the agent, and Domain the domain of Consul's names
	// in certificates. Node is the id of the gateway's service. Required.
	DC, Node, Domain string
}

const (
	// consulTTL is the TTL of the check of the gateway. Three heartbeats are due
	// in it.
	consulTTL = 10 * time.Second
	// consulReapAfter is the time after which the agent removes a gateway whose
	// check is critical. It is Consul's default for a mesh gateway.
	consulReapAfter = 6 * time.Hour
	// consulWait is the longest time that a query blocks.
	consulWait = consulapi.Wait
)

// Names and texts of Consul.
const (
	consulGatewayKind = "mesh-gateway"
	consulServers     = "consul"                // the service of Consul's servers
	metaWANFederation = "consul-wan-federation" // "1": the gateway carries the traffic of servers
	statesDisabled    = "Federation states are currently disabled"
)

// Log messages of failures that may persist.
const (
	cannotReadServers      = "cannot read the servers"
	cannotReadGateways     = "cannot read the federation states"
	cannotReadRegistration = "cannot read the registration"
)

// consul is the control plane of a Consul agent. It calls the agent over HTTP,
// with blocking queries.
type consul struct {
	*Client
	Consul
	ttl     time.Duration       // of the check of the gateway
	wait    time.Duration       // the longest time that a query blocks
	changed broadcast.Broadcast // after a change of registered

	mu          sync.Mutex
	registered  bool // the agent has the registration
	servers     consulPart[[]*pb.SnapshotServer]
	datacenters consulPart[[]*pb.SnapshotDatacenter]
}

// consulPart is a part of the snapshot.
type consulPart[T any] struct {
	data T
	at   time.Time // of the last response; zero: none yet
}

func (c *consul) open() error { return nil }

func (c *consul) close() { c.Agent.Close() }

func (c *consul) follow(ctx context.Context) {
	var watches sync.WaitGroup
	watches.Go(func() { c.watch(ctx, cannotReadServers, c.readServers) })
	watches.Go(func() { c.watch(ctx, cannotReadGateways, c.readGateways) })
	watches.Go(func() { c.watch(ctx, cannotReadRegistration, c.readRegistration) })
	watches.Wait()
}

// watch repeats a blocking query until ctx ends. failure is the log message of
// an error.
func (c *consul) watch(
	ctx context.Context, failure string, read func(context.Context, api.QueryOptions) (api.QueryMeta, error),
) {
	for _, err := range consulapi.Repeat(ctx, c.wait,
		func(ctx context.Context, q api.QueryOptions) (struct{}, api.QueryMeta, error) {
			meta, err := read(ctx, q)
			return struct{}{}, meta, err
		}) {
		if err == nil {
			c.setServer(c.Agent.Addr())
			c.worked(failure)
			continue
		}
		if _, unreachable := errors.AsType[*api.UnreachableError](err); unreachable {
			c.setServer("")
		}
		c.failed(failure, explainConsul(err))
	}
}

// readServers reads the servers of the datacenter.
func (c *consul) readServers(ctx context.Context, q api.QueryOptions) (api.QueryMeta, error) {
	entries, meta, err := c.Agent.ServiceHealth(ctx, consulServers, q)
	if err != nil {
		return meta, err
	}
	servers, err := serversOf(entries, c.DC)
	if err != nil {
		return meta, err
	}
	c.update(func(now time.Time) { c.servers = consulPart[[]*pb.SnapshotServer]{servers, now} })
	return meta, nil
}

// readGateways reads the gateways of all datacenters.
func (c *consul) readGateways(ctx context.Context, q api.QueryOptions) (api.QueryMeta, error) {
	byDC, meta, err := c.Agent.MeshGateways(ctx, q)
	if e, ok := errors.AsType[*api.StatusError](err); ok && strings.HasPrefix(e.Message, statesDisabled) {
		// A new datacenter gets its federation states through its gateway. So
		// the gateway must first route to the servers without them.
		c.mu.Lock()
		known := !c.datacenters.at.IsZero()
		c.mu.Unlock()
		if !known {
			c.update(func(now time.Time) { c.datacenters.at = now })
		}
	}
	switch {
	case err != nil:
		return meta, err
	case len(byDC) == 0 && meta.Filtered:
		return meta, errors.New(`the token may not read any gateway: it needs service_prefix "" and node_prefix "" ` +
			`with policy read`)
	}
	datacenters := datacentersOf(byDC, c.DC)
	c.update(func(now time.Time) { c.datacenters = consulPart[[]*pb.SnapshotDatacenter]{datacenters, now} })
	return meta, nil
}

// update changes a part by set, and applies the snapshot when both parts are
// known.
func (c *consul) update(set func(now time.Time)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	set(time.Now())
	if c.servers.at.IsZero() || c.datacenters.at.IsZero() {
		return
	}
	c.apply(&pb.GatewaySnapshot{
		Datacenter: c.DC, Domain: c.Domain, Servers: c.servers.data, Datacenters: c.datacenters.data,
	}, "consul "+c.Agent.Addr(), confirmed{c.servers.at, c.datacenters.at})
}

// readRegistration reads the registration of the gateway. The agent may have
// lost it, or another process may have replaced it.
func (c *consul) readRegistration(ctx context.Context, q api.QueryOptions) (api.QueryMeta, error) {
	if !c.awaitRegistered(ctx) {
		return api.QueryMeta{}, ctx.Err()
	}
	s, meta, err := c.Agent.AgentService(ctx, c.Node, q)
	want := c.registration()
	switch {
	case api.IsStatus(err, http.StatusNotFound):
		c.cfg.Logger.Warn("the agent lost the registration, registering again", "addr", c.Agent.Addr())
		c.setRegistered(false)
		c.wakeHeartbeat()
		return api.QueryMeta{}, nil
	case err != nil:
		return meta, err
	case s.Datacenter != "" && s.Datacenter != c.DC:
		return meta, fmt.Errorf("the agent at %s is of datacenter %q, and this gateway is of %q: set --dc or --consul",
			c.Agent.Addr(), s.Datacenter, c.DC)
	case s.Kind != want.Kind || s.Service != want.Name || s.Address != want.Address || s.Port != want.Port ||
		s.Meta[metaWANFederation] != want.Meta[metaWANFederation] ||
		s.TaggedAddresses["lan"] != want.TaggedAddresses["lan"] ||
		s.TaggedAddresses["wan"] != want.TaggedAddresses["wan"]:
		c.setRegistered(false) // the next heartbeat registers
		return meta, fmt.Errorf("another program registered %s %q as service %s: use another --node for one of them",
			s.Kind, net.JoinHostPort(s.Address, strconv.Itoa(s.Port)), c.Node)
	}
	return meta, nil
}

func (c *consul) setRegistered(registered bool) {
	c.mu.Lock()
	c.registered = registered
	c.mu.Unlock()
	c.changed.Notify()
}

// awaitRegistered waits until the agent has the registration. It returns false
// if ctx ended first.
func (c *consul) awaitRegistered(ctx context.Context) bool {
	for {
		changed := c.changed.Wait()
		c.mu.Lock()
		registered := c.registered
		c.mu.Unlock()
		if registered {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// register registers the gateway. If the agent has the registration, register
// confirms the check.
func (c *consul) register(ctx context.Context) (time.Duration, error) {
	c.mu.Lock()
	registered := c.registered
	c.mu.Unlock()
	if registered {
		err := c.Agent.PassCheck(ctx, api.CheckID(c.Node))
		if !api.IsStatus(err, http.StatusNotFound) {
			return c.ttl / 3, explainConsul(err)
		}
		c.setRegistered(false)
	}
	select {
	case <-c.ready:
	default:
		// A registered gateway without routes would refuse all connections.
		return 0, errors.New("the gateway has no routes yet")
	}
	if err := c.Agent.RegisterService(ctx, c.registration()); err != nil {
		return 0, explainConsul(err)
	}
	c.setRegistered(true)
	return c.ttl / 3, nil
}

func (c *consul) deregister(ctx context.Context) error {
	err := c.Agent.DeregisterService(ctx, c.Node)
	if api.IsStatus(err, http.StatusNotFound) {
		return nil
	}
	return explainConsul(err)
}

// registration returns the service of the gateway.
func (c *consul) registration() api.ServiceRegistration {
	lan, wan := serviceAddress(c.cfg.LAN), serviceAddress(c.cfg.WAN)
	return api.ServiceRegistration{
		Kind: consulGatewayKind, ID: c.Node, Name: consulGatewayKind, Address: lan.Address, Port: lan.Port,
		TaggedAddresses: map[string]api.ServiceAddress{"lan": lan, "wan": wan},
		Meta:            map[string]string{metaWANFederation: "1"},
		Check: api.ServiceCheck{
			Name: "wanfed gateway", TTL: c.ttl, Status: api.CheckPassing, DeregisterAfter: consulReapAfter,
		},
	}
}

// serviceAddress splits an address that NewManager has checked.
func serviceAddress(addr string) api.ServiceAddress {
	host, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.Atoi(port)
	return api.ServiceAddress{Address: host, Port: n}
}

// serversOf returns the servers of datacenter dc without those that are
// critical. If all are critical, it returns all, because the checks may be
// wrong.
func serversOf(entries []api.ServiceEntry, dc string) (servers []*pb.SnapshotServer, err error) {
	if len(entries) == 0 {
		return nil, errors.New(`the catalog has no readable server: the token needs service_prefix "" and ` +
			`node_prefix "" with policy read`)
	}
	healthy := slices.ContainsFunc(entries, api.ServiceEntry.Healthy)
	for _, e := range entries {
		if d := e.Node.Datacenter; d != "" && d != dc {
			return nil, fmt.Errorf("the agent is of datacenter %q, and this gateway is of %q: set --dc or --consul", d, dc)
		}
		if healthy && !e.Healthy() {
			continue
		}
		servers = append(servers, &pb.SnapshotServer{Node: e.Node.Node, Address: taggedAddr(e, "lan")})
	}
	slices.SortFunc(servers, func(a, b *pb.SnapshotServer) int { return cmp.Compare(a.Node, b.Node) })
	return servers, nil
}

// datacentersOf returns the gateways of the datacenters except own that carry
// the traffic of servers, healthy ones first. It includes critical gateways,
// because a check may be wrong.
func datacentersOf(byDC map[string][]api.MeshGateway, own string) []*pb.SnapshotDatacenter {
	var out []*pb.SnapshotDatacenter
	for _, dc := range slices.Sorted(maps.Keys(byDC)) {
		if dc == own {
			continue
		}
		gateways := slices.DeleteFunc(slices.Clone(byDC[dc]), func(g api.MeshGateway) bool {
			return g.Service.Kind != consulGatewayKind || g.Service.Meta[metaWANFederation] != "1"
		})
		slices.SortFunc(gateways, func(a, b api.MeshGateway) int {
			if a.Healthy() != b.Healthy() {
				if a.Healthy() {
					return -1
				}
				return 1
			}
			return cmp.Or(cmp.Compare(a.Node.Node, b.Node.Node), cmp.Compare(a.Service.ID, b.Service.ID))
		})
		d := &pb.SnapshotDatacenter{Name: dc}
		for _, g := range gateways {
			d.Gateways = append(d.Gateways, taggedAddr(g, "wan"))
		}
		if len(d.Gateways) > 0 {
			out = append(out, d)
		}
	}
	return out
}

// taggedAddr returns the host:port of an instance for a tag. Without the tag it
// is the address of the service, or else of the node.
func taggedAddr(e api.ServiceEntry, tag string) string {
	a, ok := e.Service.TaggedAddresses[tag]
	if !ok || a.Address == "" {
		host := cmp.Or(e.Service.Address, e.Node.TaggedAddresses[tag], e.Node.Address)
		a = api.ServiceAddress{Address: host, Port: e.Service.Port}
	}
	return net.JoinHostPort(a.Address, strconv.Itoa(a.Port))
}

// explainConsul adds the remedy to an error of an agent.
func explainConsul(err error) error {
	return consulapi.Remedies{
		Token: "set CONSUL_HTTP_TOKEN or CONSUL_HTTP_TOKEN_FILE to a token with service:write on " + consulGatewayKind +
			" and read on all services and nodes",
		Connect: "check --consul, CONSUL_CACERT and CONSUL_CLIENT_CERT",
	}.Explain(err)
}
