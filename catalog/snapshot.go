// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"cmp"
	"slices"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Snapshot is the catalog of one datacenter at one moment. It, and all that it points to, must not be changed.
type Snapshot struct {
	// Index is the highest of the store's indexes of the three types.
	Index uint64
	// Nodes are all nodes, by name.
	Nodes []*Node

	at      indexes
	nodes   map[string]*Node
	decoded map[*pb.Resource]any // what is not read again for the next snapshot
	known   map[written]*pb.Resource
	// orphans are records whose owner was deleted, and which will follow, by type and name.
	orphans map[string]*pb.ID
}

// Node is a node with what is on it.
type Node struct {
	*pb.Node
	Resource *pb.Resource
	Services []*Service // by id
	Checks   []*Check   // of the node alone, by id
}

// Service is one instance of a service.
type Service struct {
	*pb.Service
	Resource *pb.Resource
	OnNode   *Node
	Checks   []*Check // by id
}

// Check is the health of a node or service.
type Check struct {
	*pb.Check
	Resource *pb.Resource
	Service  *Service // nil: of the node
}

// Node returns the node of that name, nil if there is none.
func (s *Snapshot) Node(name string) *Node { return s.nodes[name] }

// Service returns the service with that id, nil if there is none. It may be asked of no node.
func (n *Node) Service(id string) *Service {
	if n == nil {
		return nil
	}
	i := slices.IndexFunc(n.Services, func(s *Service) bool { return s.Id == id })
	if i < 0 {
		return nil
	}
	return n.Services[i]
}

// AllChecks returns the checks of the node, and then those of its services. It may be asked of no node.
func (n *Node) AllChecks() []*Check {
	if n == nil {
		return nil
	}
	all := slices.Clone(n.Checks)
	for _, s := range n.Services {
		all = append(all, s.Checks...)
	}
	return all
}

// Check returns the check with that id, of the node or of one of its services; nil if there is none. It may be asked of no node.
func (n *Node) Check(id string) *Check {
	all := n.AllChecks()
	i := slices.IndexFunc(all, func(c *Check) bool { return c.CheckId == id })
	if i < 0 {
		return nil
	}
	return all[i]
}

// AllChecks returns the checks that say whether the service is healthy: those of its node, and its own.
func (s *Service) AllChecks() []*Check { return slices.Concat(s.OnNode.Checks, s.Checks) }

// records are the resources of the three types, as lists of one moment.
type records struct {
	nodes, services, checks []*pb.Resource
	at                      indexes
}

// newSnapshot puts records together. What before has decoded is not decoded again; before may be nil. A record whose node or
// service is not there, or is another one of that name, is left out: it is about to be deleted.
func newSnapshot(r records, before *Snapshot) (*Snapshot, error) {
	s := &Snapshot{
		Index: max(r.at.nodes, r.at.services, r.at.checks), at: r.at,
		nodes: make(map[string]*Node, len(r.nodes)), orphans: map[string]*pb.ID{},
		decoded: make(map[*pb.Resource]any, len(r.nodes)+len(r.services)+len(r.checks)),
		known:   make(map[written]*pb.Resource, len(r.nodes)+len(r.services)+len(r.checks)),
	}
	if before == nil {
		before = &Snapshot{}
	}
	for _, all := range [][]*pb.Resource{r.nodes, r.services, r.checks} {
		s.keep(before, all)
	}
	for _, res := range r.nodes {
		n, err := decode[*pb.Node](s, before, res)
		if err != nil {
			return nil, err
		}
		node := &Node{Node: n, Resource: res}
		s.nodes[n.Node], s.Nodes = node, append(s.Nodes, node)
	}
	for _, res := range r.services {
		v, err := decode[*pb.Service](s, before, res)
		if err != nil {
			return nil, err
		}
		node := s.nodes[v.Node]
		if node == nil || !owns(node.Resource, res) {
			s.orphan(res)
			continue
		}
		node.Services = append(node.Services, &Service{Service: v, Resource: res, OnNode: node})
	}
	for _, node := range s.Nodes { // before checks look for their services
		slices.SortFunc(node.Services, func(a, b *Service) int { return cmp.Compare(a.Id, b.Id) })
	}
	if err := s.addChecks(r.checks, before); err != nil {
		return nil, err
	}
	slices.SortFunc(s.Nodes, func(a, b *Node) int { return cmp.Compare(a.Node.Node, b.Node.Node) })
	return s, nil
}

// written is one write of one record.
type written struct {
	uid, kind, name string
	index           uint64
}

// keep puts what before has in place of what is the same: lists may have other messages of it.
func (s *Snapshot) keep(before *Snapshot, all []*pb.Resource) {
	for i, r := range all {
		at := written{r.GetId().GetUid(), r.GetId().GetType().GetKind(), r.GetId().GetName(), r.GetModifyIndex()}
		if was := before.known[at]; was != nil {
			all[i] = was
		}
		s.known[at] = all[i]
	}
}

func (s *Snapshot) addChecks(all []*pb.Resource, before *Snapshot) error {
	for _, res := range all {
		c, err := decode[*pb.Check](s, before, res)
		if err != nil {
			return err
		}
		check := &Check{Check: c, Resource: res}
		node := s.nodes[c.Node]
		switch {
		case node == nil:
			s.orphan(res)
		case c.ServiceId == "" && owns(node.Resource, res):
			node.Checks = append(node.Checks, check)
		case c.ServiceId == "":
			s.orphan(res)
		default:
			check.Service = node.Service(c.ServiceId)
			if check.Service == nil || !owns(check.Service.Resource, res) {
				s.orphan(res)
				continue
			}
			check.Service.Checks = append(check.Service.Checks, check)
		}
	}
	for _, node := range s.Nodes {
		sortChecks(node.Checks)
		for _, v := range node.Services {
			sortChecks(v.Checks)
		}
	}
	return nil
}

func sortChecks(all []*Check) {
	slices.SortFunc(all, func(a, b *Check) int { return cmp.Compare(a.CheckId, b.CheckId) })
}

// owns says whether owner is, or may be, the owner of r: who writes records by other means need not say one.
func owns(owner, r *pb.Resource) bool {
	return r.GetOwner() == nil || r.GetOwner().GetUid() == owner.GetId().GetUid()
}

func (s *Snapshot) orphan(r *pb.Resource) { s.orphans[resource.IDString(r.GetId())] = r.GetId() }

func decode[T interface {
	comparable
	pbMessage
}](s, before *Snapshot, r *pb.Resource) (T, error) {
	if old, ok := before.decoded[r].(T); ok {
		s.decoded[r] = old
		return old, nil
	}
	d, err := resource.Decode[T](r)
	if err == nil {
		s.decoded[r] = d
	}
	return d, err
}
