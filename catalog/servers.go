// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/resource"
)

const (
	// ServerService is the name and the id of the service of a server.
	ServerService = "wanfed"
	// ServerCheck is the id of the check of a server's node. Consul has the same
	// id.
	ServerCheck = "serfHealth"
	// MetaVersion is the metadata key of the version of a server.
	MetaVersion = "version"
)

// Texts of the check of a server's node.
const (
	serverAlive  = "alive in the LAN pool"
	serverFailed = "not reachable in the LAN pool"
)

// Server is a member of the LAN pool.
type Server struct {
	Node, ID string // name and node id
	Address  string // host without port
	Port     uint16
	Version  string
	Alive    bool
}

// Servers returns the servers of the datacenter, and a channel that is closed
// after the next change. It does not block.
type Servers func() (all []Server, changed <-chan struct{})

// MergedView is a View whose snapshots also have the servers of the datacenter.
// Each server has the service ServerService on its node, and its node has the
// check ServerCheck. These three are derived from the LAN pool and are not
// stored, so no write changes them. Services and checks that are stored for the
// node belong to the same node in the snapshot.
type MergedView struct {
	view    *View
	servers Servers

	mu   sync.Mutex
	last merged
}

// merged is a snapshot with what it was built from.
type merged struct {
	base     *Snapshot
	servers  []Server
	changed  <-chan struct{} // of servers; closed: servers is not the current list
	snapshot *Snapshot
	services map[Server]*pb.Service // of snapshot; the keys have no Alive
}

// NewMergedView returns a MergedView of view and servers. Nil servers: none.
func NewMergedView(view *View, servers Servers) *MergedView {
	if servers == nil {
		servers = func() ([]Server, <-chan struct{}) { return nil, nil }
	}
	return &MergedView{view: view, servers: servers}
}

// At returns the catalog as View.At does, with the servers. The servers are
// those that the local member of the LAN pool lists, for each consistency.
func (v *MergedView) At(ctx context.Context, c resource.Consistency) (*Snapshot, error) {
	base, err := v.view.At(ctx, c)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	last := &v.last
	servers, changed := last.servers, last.changed
	if last.base == nil || broadcast.IsClosed(changed) {
		servers, changed = v.servers()
	}
	if last.base == base && slices.Equal(last.servers, servers) {
		last.changed = changed
		return last.snapshot, nil
	}
	v.last = merge(base, servers, last)
	v.last.changed = changed
	return v.last.snapshot, nil
}

// Wait blocks until the catalog or the servers are newer than s, which is a
// snapshot of At. If ctx ends first, Wait returns the error of ctx.
func (v *MergedView) Wait(ctx context.Context, s *Snapshot) error {
	v.mu.Lock()
	last := v.last
	v.mu.Unlock()
	if s != last.snapshot {
		return nil
	}
	wctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errServers := errors.New("the servers have changed")
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() {
		select {
		case <-last.changed:
			cancel(errServers)
		case <-wctx.Done():
		}
	})
	err := v.view.Wait(wctx, last.base)
	if err != nil && ctx.Err() == nil && errors.Is(context.Cause(wctx), errServers) {
		return nil
	}
	return err
}

// merge returns the snapshot of base with servers. Its index is that of base,
// but above the index of the last snapshot. A blocking query with that index
// therefore ends when only a server has changed.
func merge(base *Snapshot, servers []Server, last *merged) merged {
	out := *base
	out.Nodes, out.nodes = slices.Clone(base.Nodes), make(map[string]*Node, len(base.nodes)+len(servers))
	for name, n := range base.nodes {
		out.nodes[name] = n
	}
	if last.snapshot != nil {
		out.Index = max(base.Index, last.snapshot.Index+1)
	}
	services := make(map[Server]*pb.Service, len(servers))
	for _, server := range servers {
		key := server
		key.Alive = false
		service := last.services[key]
		if service == nil {
			service = &pb.Service{
				Node: server.Node, Id: ServerService, Service: ServerService, Port: uint32(server.Port),
				Meta: map[string]string{MetaVersion: server.Version},
			}
		}
		services[key] = service
		n := server.node(base.nodes[server.Node], service)
		out.nodes[server.Node] = n
		i, found := slices.BinarySearchFunc(out.Nodes, n, func(a, b *Node) int { return cmp.Compare(a.Node.Node, b.Node.Node) })
		if found {
			out.Nodes[i] = n
		} else {
			out.Nodes = slices.Insert(out.Nodes, i, n)
		}
	}
	return merged{base: base, servers: servers, snapshot: &out, services: services}
}

// node returns the node of the server. stored is the node that the catalog has
// for the name, or nil. Its services and checks stay, except for those with the
// ids of the service and of the check of the server.
func (server Server) node(stored *Node, service *pb.Service) *Node {
	n := &Node{Node: &pb.Node{
		Id: server.ID, Node: server.Node, Address: server.Address, TaggedAddresses: map[string]string{TagLAN: server.Address},
	}}
	if stored != nil {
		id := n.Id
		n.Node, n.Resource = stored.Node, stored.Resource
		if n.Id == "" { // a registration at the agent has no id
			n.Node = proto.CloneOf(stored.Node)
			n.Id = id
		}
		for _, c := range stored.Checks {
			if c.CheckId != ServerCheck {
				n.Checks = append(n.Checks, c)
			}
		}
		for _, s := range stored.Services {
			if s.Id != ServerService {
				n.Services = append(n.Services, s.on(n))
			}
		}
	}
	health := &pb.Check{
		Node: server.Node, CheckId: ServerCheck, Name: "Serf Health Status", Status: StatusPassing, Output: serverAlive,
	}
	if !server.Alive {
		health.Status, health.Output = StatusCritical, serverFailed
	}
	n.Checks = append(n.Checks, &Check{Check: health})
	n.Services = append(n.Services, &Service{Service: service, OnNode: n})
	sortChecks(n.Checks)
	slices.SortFunc(n.Services, func(a, b *Service) int { return cmp.Compare(a.Id, b.Id) })
	return n
}

// on returns a copy of the service and its checks on node n.
func (s *Service) on(n *Node) *Service {
	out := &Service{Service: s.Service, Resource: s.Resource, OnNode: n}
	for _, c := range s.Checks {
		out.Checks = append(out.Checks, &Check{Check: c.Check, Resource: c.Resource, Service: out})
	}
	return out
}
