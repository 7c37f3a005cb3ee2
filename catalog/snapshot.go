// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// maxReadAttempts bounds the attempts to read the three types at one moment.
const maxReadAttempts = 10

// types are the types of the catalog. Arrays of size 3 have one element per
// type.
var types = [3]*pb.Type{NodeType, ServiceType, CheckType}

// Snapshot is the catalog of one datacenter at one moment. A Snapshot and all
// nodes, services, checks and resources in it are immutable.
type Snapshot struct {
	// Index is the highest of the store's indexes of the three types.
	Index uint64
	// Nodes are all nodes, sorted by name.
	Nodes []*Node

	indexes [3]uint64 // store index of each type
	nodes   map[string]*Node
	decoded map[writeKey]decodedResource // reused by the next snapshot
	// orphans are the resources whose owner was deleted, by resource.IDString.
	// The store is about to delete them.
	orphans map[string]*pb.ID
}

// Node is a node with its services and checks.
type Node struct {
	*pb.Node
	Resource *pb.Resource
	Services []*Service // sorted by id
	Checks   []*Check   // checks of the node without a service, sorted by id
}

// Service is one instance of a service.
type Service struct {
	*pb.Service
	Resource *pb.Resource
	OnNode   *Node
	Checks   []*Check // sorted by id
}

// Check is the health of a node or service.
type Check struct {
	*pb.Check
	Resource *pb.Resource
	Service  *Service // nil for a check of the node
}

// Node returns a node, or nil if no node has the name.
func (s *Snapshot) Node(name string) *Node { return s.nodes[name] }

// Service returns the service with the id, or nil. n may be nil.
func (n *Node) Service(id string) *Service {
	if n != nil {
		for _, s := range n.Services {
			if s.Id == id {
				return s
			}
		}
	}
	return nil
}

// AllChecks returns the checks of the node and its services. n may be nil.
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

// Check returns the element of AllChecks with the id, or nil. n may be nil.
func (n *Node) Check(id string) *Check {
	for _, c := range n.AllChecks() {
		if c.CheckId == id {
			return c
		}
	}
	return nil
}

// AllChecks returns the checks that determine the health of the service: the
// checks of its node, then the checks of the service.
func (s *Service) AllChecks() []*Check { return slices.Concat(s.OnNode.Checks, s.Checks) }

// View reads the catalog as snapshots. Until the catalog changes, At returns
// the same Snapshot. After a change, only the changed resources are decoded.
// The methods may be called from any goroutine.
type View struct {
	backend resource.Backend
	last    atomic.Pointer[Snapshot]
	reading chan struct{} // semaphore of size 1 for building the next snapshot
}

// NewView returns a View of the catalog in b.
func NewView(b resource.Backend) *View { return &View{backend: b, reading: make(chan struct{}, 1)} }

// At returns the catalog. With resource.Strong, the snapshot contains every
// write that was acknowledged before the call.
func (v *View) At(ctx context.Context, c resource.Consistency) (*Snapshot, error) {
	if c == resource.Strong {
		// After any strong read, an eventual read is as fresh as a strong read. The
		// node "-" does not exist: only the consistency of the read matters.
		_, err := v.backend.Read(ctx, c, resource.ID(NodeType, "-"))
		if err != nil && !errors.Is(err, resource.ErrNotFound) {
			return nil, err
		}
	}
	if s := v.last.Load(); s != nil && !changed(v.backend, s.indexes) {
		return s, nil
	}
	select {
	case v.reading <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-v.reading }()
	last := v.last.Load()
	if last != nil && !changed(v.backend, last.indexes) { // a concurrent call has built it
		return last, nil
	}
	all, err := readAll(ctx, v.backend)
	if err != nil {
		return nil, err
	}
	s, err := newSnapshot(all, last)
	if err != nil {
		return nil, err
	}
	v.last.Store(s)
	return s, nil
}

// Wait blocks until the catalog is newer than s. If ctx ends first, Wait
// returns the error of ctx.
func (v *View) Wait(ctx context.Context, s *Snapshot) error {
	wctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	errs := make(chan error, len(types))
	for i, after := range s.indexes {
		wg.Go(func() { errs <- v.backend.Wait(wctx, resource.Query{Type: types[i]}, after) })
	}
	return <-errs
}

// resources are all resources of each type, and the store index of each type.
type resources struct {
	byType  [3][]*pb.Resource
	indexes [3]uint64
}

// readAll reads the three types at one moment. If writes interfere with every
// attempt, readAll returns the result of the last attempt.
func readAll(ctx context.Context, b resource.Backend) (all resources, err error) {
	for range maxReadAttempts {
		for i, typ := range types {
			all.byType[i], all.indexes[i], err = b.List(ctx, resource.Eventual, resource.Query{Type: typ})
			if err != nil {
				return all, err
			}
		}
		if !changed(b, all.indexes) {
			break
		}
	}
	return all, nil
}

// changed reports whether a resource of one of the types was written after the
// index of that type in indexes.
func changed(b resource.Backend, indexes [3]uint64) bool {
	for i, index := range indexes {
		if resource.Changed(b, resource.Query{Type: types[i]}, index) {
			return true
		}
	}
	return false
}

// newSnapshot builds a snapshot of r. It reuses the decoded data of the
// snapshot last, which may be nil. A resource is an orphan if its node or
// service was deleted, even if a new node or service has the same name.
// newSnapshot omits orphans.
func newSnapshot(r resources, last *Snapshot) (*Snapshot, error) {
	nodes, services, checks := r.byType[0], r.byType[1], r.byType[2]
	size := len(nodes) + len(services) + len(checks)
	s := &Snapshot{
		Index: slices.Max(r.indexes[:]), indexes: r.indexes,
		nodes: make(map[string]*Node, len(nodes)), orphans: map[string]*pb.ID{},
		decoded: make(map[writeKey]decodedResource, size),
	}
	if last == nil {
		last = &Snapshot{}
	}
	for _, res := range nodes {
		res, n, err := decode[*pb.Node](s, last, res)
		if err != nil {
			return nil, err
		}
		node := &Node{Node: n, Resource: res}
		s.nodes[n.Node], s.Nodes = node, append(s.Nodes, node)
	}
	for _, res := range services {
		res, v, err := decode[*pb.Service](s, last, res)
		if err != nil {
			return nil, err
		}
		node := s.nodes[v.Node]
		if node == nil || !owns(node.Resource, res) {
			s.addOrphan(res)
			continue
		}
		node.Services = append(node.Services, &Service{Service: v, Resource: res, OnNode: node})
	}
	slices.SortFunc(s.Nodes, func(a, b *Node) int { return cmp.Compare(a.Node.Node, b.Node.Node) })
	for _, node := range s.Nodes { // before addChecks searches them
		slices.SortFunc(node.Services, func(a, b *Service) int { return cmp.Compare(a.Id, b.Id) })
	}
	return s, s.addChecks(checks, last)
}

func (s *Snapshot) addChecks(all []*pb.Resource, last *Snapshot) error {
	for _, res := range all {
		res, c, err := decode[*pb.Check](s, last, res)
		if err != nil {
			return err
		}
		check := &Check{Check: c, Resource: res}
		node := s.nodes[c.Node]
		service := node.Service(c.ServiceId)
		switch {
		case node != nil && c.ServiceId == "" && owns(node.Resource, res):
			node.Checks = append(node.Checks, check)
		case c.ServiceId != "" && service != nil && owns(service.Resource, res):
			check.Service = service
			service.Checks = append(service.Checks, check)
		default:
			s.addOrphan(res)
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

// owns reports whether owner is the owner of r, or r has no owner. A resource
// that was written without a Writer may have no owner.
func owns(owner, r *pb.Resource) bool {
	return r.GetOwner() == nil || r.GetOwner().GetUid() == owner.GetId().GetUid()
}

func (s *Snapshot) addOrphan(r *pb.Resource) { s.orphans[resource.IDString(r.GetId())] = r.GetId() }

// writeKey identifies one write of one resource.
type writeKey struct {
	uid, kind, name string
	index           uint64
}

func writeKeyOf(r *pb.Resource) writeKey {
	id := r.GetId()
	return writeKey{id.GetUid(), id.GetType().GetKind(), id.GetName(), r.GetModifyIndex()}
}

type decodedResource struct {
	r    *pb.Resource
	data proto.Message
}

// decode returns r with its decoded data. If the snapshot last has the same
// write of the resource, decode returns resource and data of that snapshot.
func decode[T proto.Message](s, last *Snapshot, r *pb.Resource) (*pb.Resource, T, error) {
	key := writeKeyOf(r)
	d, ok := last.decoded[key]
	if !ok {
		data, err := resource.Decode[T](r)
		if err != nil {
			return nil, data, err
		}
		d = decodedResource{r, data}
	}
	s.decoded[key] = d
	return d.r, d.data.(T), nil
}
