// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Registration is a node, at most one service of the node, and checks of the
// node or its services. Writer.Register writes a Registration in one commit.
type Registration struct {
	// Node is required. Without an address, Node must exist and is not changed.
	Node *pb.Node
	// Service may be nil.
	Service *pb.Service
	// Checks belong to the node, to Service, or to a service that exists.
	Checks []*pb.Check
	// ReplaceChecks deletes the other checks of Service.
	ReplaceChecks bool
	// FromAgent is set if a program registers itself. A program registers again
	// at each start. Therefore an existing check keeps its status and output,
	// which only a CheckUpdate changes. An existing node changes only its
	// addresses.
	FromAgent bool
}

// Each error for something that does not exist is a resource.ErrNotFound.
var (
	ErrNoNode    error = notFoundError("no such node")
	ErrNoService error = notFoundError("no such service")
	ErrNoCheck   error = notFoundError("no such check")
)

type notFoundError string

func (e notFoundError) Error() string { return string(e) }
func (notFoundError) Unwrap() error   { return resource.ErrNotFound }

// Writer writes the catalog through a resource.Service, which authorizes it.
type Writer struct {
	res  *resource.Service
	view *View
}

// NewWriter returns a Writer that writes through res. The Writer compares each
// registration with a snapshot of view.
func NewWriter(res *resource.Service, view *View) *Writer { return &Writer{res: res, view: view} }

// Register writes a registration in one commit. Resources that are unchanged
// are not written again. Register fails with resource.ErrInvalid for an invalid
// field, with ErrNoNode or ErrNoService for a node or service that must exist,
// and with the errors of resource.Service.
func (w *Writer) Register(ctx context.Context, reg Registration) error {
	if err := w.allow(ctx, resource.VerbWrite, reg.Node.GetNode(), reg.Service.GetId(), ""); err != nil {
		return err
	}
	if err := checkRegistration(reg); err != nil {
		return fmt.Errorf("%w %w", resource.ErrInvalid, err)
	}
	return w.write(ctx, func(s *Snapshot) ([]resource.Step, error) { return planRegistration(s, reg) })
}

// Deregister deletes a service if serviceID is set, else a check if checkID is
// set, else the node. The resources that a node or service owns are also
// deleted. Deregister succeeds if nothing has the name.
func (w *Writer) Deregister(ctx context.Context, node, serviceID, checkID string) error {
	if err := w.allow(ctx, resource.VerbDelete, node, serviceID, checkID); err != nil {
		return err
	}
	return w.write(ctx, func(s *Snapshot) ([]resource.Step, error) {
		n := s.Node(node)
		v, c := n.Service(serviceID), n.Check(checkID)
		switch {
		case serviceID != "" && v != nil:
			return []resource.Step{{Delete: v.Resource.GetId()}}, nil
		case serviceID == "" && checkID != "" && c != nil:
			return []resource.Step{{Delete: c.Resource.GetId()}}, nil
		case serviceID == "" && checkID == "" && n != nil:
			return []resource.Step{{Delete: n.Resource.GetId()}}, nil
		}
		return nil, nil
	})
}

// allow authorizes the caller of ctx before the catalog is read. The steps of the
// write are authorized again, each for its resource.
func (w *Writer) allow(ctx context.Context, verb resource.Verb, node, serviceID, checkID string) error {
	switch {
	case serviceID != "":
		return w.res.Allow(ctx, verb, ServiceType, resourceName(node, serviceID))
	case checkID != "":
		return w.res.Allow(ctx, verb, CheckType, resourceName(node, checkID))
	}
	return w.res.Allow(ctx, verb, NodeType, node)
}

// maxWriteAttempts bounds the attempts of one write while concurrent writes of
// the same resources cause conflicts.
const maxWriteAttempts = 32

// write commits the steps that plan returns for the current catalog. After a
// conflict, write calls plan again.
func (w *Writer) write(ctx context.Context, plan func(s *Snapshot) ([]resource.Step, error)) error {
	for attempt := 1; ; attempt++ {
		s, err := w.view.At(ctx, resource.Strong)
		if err != nil {
			return err
		}
		steps, err := plan(s)
		if err != nil || len(steps) == 0 {
			return err
		}
		_, err = w.res.WriteAll(ctx, steps...)
		// ErrNotFound: the owner was deleted after the snapshot.
		again := errors.Is(err, resource.ErrConflict) || errors.Is(err, resource.ErrNotFound)
		if !again || attempt == maxWriteAttempts || ctx.Err() != nil {
			return err
		}
	}
}

// planRegistration returns the writes and deletions that bring the catalog from
// s to reg. It returns an error if reg refers to a node or service that does
// not exist.
func planRegistration(s *Snapshot, reg Registration) ([]resource.Step, error) {
	p := planner{Snapshot: s}
	name := reg.Node.Node
	node := cmp.Or(s.Node(name), &Node{}) // without a resource if the node does not exist
	if node.Resource == nil && reg.Node.Address == "" {
		return nil, fmt.Errorf("%w: %q; register it with its address", ErrNoNode, name)
	}
	if reg.FromAgent && node.Resource != nil {
		reg.Node = withAddresses(node.Node, reg.Node)
	}
	nodeID := p.put(NodeType, name, node.Resource, nil, reg.Node, reg.Node.Address == "")
	service := &Service{}
	var serviceID *pb.ID
	if reg.Service != nil {
		service = cmp.Or(node.Service(reg.Service.Id), service)
		serviceID = p.put(ServiceType, resourceName(name, reg.Service.Id), service.Resource, nodeID, reg.Service, false)
	}
	listed := map[string]bool{}
	for _, c := range reg.Checks {
		listed[c.CheckId] = true
		c, owner := proto.CloneOf(c), nodeID
		switch existing := node.Service(c.ServiceId); {
		case c.ServiceId == "":
		case c.ServiceId == reg.Service.GetId():
			c.ServiceName, owner = reg.Service.GetService(), serviceID
		case existing == nil:
			return nil, fmt.Errorf("%w: check %q is of service %q, which node %q does not have",
				ErrNoService, c.CheckId, c.ServiceId, name)
		default:
			c.ServiceName, owner = existing.Service.Service, existing.Resource.GetId()
		}
		old := cmp.Or(node.Check(c.CheckId), &Check{Check: &pb.Check{}})
		stored := old.Resource
		if reg.FromAgent && stored != nil {
			c.Status, c.Output = old.Status, old.Output
		}
		if stored != nil && old.ServiceId != c.ServiceId { // the owner of a resource cannot change
			p.steps = append(p.steps, resource.Step{Delete: stored.GetId()})
			stored = nil
		}
		p.put(CheckType, resourceName(name, c.CheckId), stored, owner, c, false)
	}
	if reg.ReplaceChecks {
		for _, c := range service.Checks {
			if !listed[c.CheckId] {
				p.steps = append(p.steps, resource.Step{Delete: c.Resource.GetId()})
			}
		}
	}
	return p.steps, p.err
}

// withAddresses returns a copy of old with the addresses of next.
func withAddresses(old, next *pb.Node) *pb.Node {
	n := proto.CloneOf(old)
	n.Address = next.Address
	if n.TaggedAddresses == nil {
		n.TaggedAddresses = map[string]string{}
	}
	maps.Copy(n.TaggedAddresses, next.TaggedAddresses)
	return n
}

// planner collects the steps of one registration.
type planner struct {
	*Snapshot
	steps []resource.Step
	err   error
}

// put adds the step that stores data, and returns the id of the resource. The
// stored resource is old, or nil if no resource is stored. If the stored data
// are equal, or keep is set and old exists, put adds no step.
func (p *planner) put(typ *pb.Type, name string, old *pb.Resource, owner *pb.ID, data proto.Message, keep bool) *pb.ID {
	if old != nil && (keep || proto.Equal(p.decoded[writeKeyOf(old)].data, data)) {
		return old.GetId()
	}
	packed, err := anypb.New(data)
	if err != nil {
		p.err = errors.Join(p.err, err)
		return nil
	}
	if old != nil {
		r := &pb.Resource{Id: old.GetId(), Version: old.GetVersion(), Metadata: old.GetMetadata(), Data: packed}
		p.steps = append(p.steps, resource.Step{Write: r})
		return r.Id
	}
	id := resource.ID(typ, name)
	// A resource of a deleted node may still have the id.
	if orphan := p.orphans[resource.IDString(id)]; orphan != nil {
		p.steps = append(p.steps, resource.Step{Delete: orphan})
	}
	p.steps = append(p.steps, resource.Step{Write: &pb.Resource{Id: id, Owner: owner, Data: packed}, Create: true})
	return id
}
