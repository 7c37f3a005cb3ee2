// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Registration is what one step writes: a node, at most one service on it, and
// checks of either.
type Registration struct {
	// Node is required. Without an address, the node must exist, and stays as
	// it is.
	Node *pb.Node
	// Service may be nil.
	Service *pb.Service
	// Checks are of the node, of Service, or of a service that exists.
	Checks []*pb.Check
	// ReplaceChecks deletes the other checks of Service.
	ReplaceChecks bool
	// FromAgent is set when a program registers itself, which it repeats at
	// each start. An existing check then keeps its status and output, which
	// only a CheckUpdate changes. An existing node keeps the fields that Node
	// does not have.
	FromAgent bool
}

// Errors for a node, service or check that does not exist. Each is a
// resource.ErrNotFound.
var (
	ErrNoNode    error = notFoundError("no such node")
	ErrNoService error = notFoundError("no such service")
	ErrNoCheck   error = notFoundError("no such check")
)

type notFoundError string

func (e notFoundError) Error() string { return string(e) }
func (notFoundError) Unwrap() error   { return resource.ErrNotFound }

// Writer writes the catalog through a resource.Service, which authorizes.
type Writer struct {
	res  *resource.Service
	view *View
}

// NewWriter returns a Writer to res, which plans with the snapshots of view.
func NewWriter(res *resource.Service, view *View) *Writer { return &Writer{res: res, view: view} }

// Register writes all of a registration in one step. What is stored already is
// not written again. Errors are a resource.ErrInvalid that names the fault,
// ErrNoNode and ErrNoService.
func (w *Writer) Register(ctx context.Context, reg Registration) error {
	if err := w.res.Allow(ctx, resource.VerbWrite, NodeType); err != nil {
		return err
	}
	if err := checkRegistration(reg); err != nil {
		return fmt.Errorf("%w %w", resource.ErrInvalid, err)
	}
	return w.write(ctx, func(s *Snapshot) ([]resource.Step, error) { return planRegistration(s, reg) })
}

// Deregister deletes a service, a check, or, without either id, the node, with
// all that belongs to it. It succeeds if that does not exist.
func (w *Writer) Deregister(ctx context.Context, node, serviceID, checkID string) error {
	if err := w.res.Allow(ctx, resource.VerbDelete, NodeType); err != nil {
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

// maxWriteAttempts bounds the attempts of a write while others write the same
// resources.
const maxWriteAttempts = 32

// write commits the steps that plan returns for the present catalog. After a
// conflict it plans again.
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
		// ErrNotFound is of an owner that was deleted since.
		again := errors.Is(err, resource.ErrConflict) || errors.Is(err, resource.ErrNotFound)
		if !again || attempt == maxWriteAttempts || ctx.Err() != nil {
			return err
		}
	}
}

func planRegistration(s *Snapshot, reg Registration) ([]resource.Step, error) {
	p := planner{Snapshot: s}
	name := reg.Node.Node
	node := s.Node(name)
	if node == nil && reg.Node.Address == "" {
		return nil, fmt.Errorf("%w: %q; register it with its address", ErrNoNode, name)
	}
	if reg.FromAgent && node != nil {
		reg.Node = withAddresses(node.Node, reg.Node)
	}
	nodeID := p.put(NodeType, name, stored(node), nil, reg.Node, reg.Node.Address == "")
	var service *Service
	serviceID := (*pb.ID)(nil)
	if reg.Service != nil {
		service = node.Service(reg.Service.Id)
		serviceID = p.put(ServiceType, resourceName(name, reg.Service.Id), stored(service), nodeID, reg.Service, false)
	}
	listed := map[string]bool{}
	for _, c := range reg.Checks {
		listed[c.CheckId] = true
		c, owner := proto.CloneOf(c), nodeID
		if c.ServiceId != "" {
			c.ServiceName, owner = reg.Service.GetService(), serviceID
			if reg.Service.GetId() != c.ServiceId {
				of := node.Service(c.ServiceId)
				if of == nil {
					return nil, fmt.Errorf("%w: check %q is of service %q, which node %q does not have",
						ErrNoService, c.CheckId, c.ServiceId, name)
				}
				c.ServiceName, owner = of.Service.Service, of.Resource.GetId()
			}
		}
		old := node.Check(c.CheckId)
		if reg.FromAgent && old != nil {
			c.Status, c.Output = old.Status, old.Output
		}
		if old != nil && old.ServiceId != c.ServiceId { // the owner of a resource cannot change
			p.steps = append(p.steps, resource.Step{Delete: old.Resource.GetId()})
			old = nil
		}
		p.put(CheckType, resourceName(name, c.CheckId), stored(old), owner, c, false)
	}
	if reg.ReplaceChecks && service != nil {
		for _, c := range service.Checks {
			if !listed[c.CheckId] {
				p.steps = append(p.steps, resource.Step{Delete: c.Resource.GetId()})
			}
		}
	}
	return p.steps, p.err
}

// withAddresses returns the stored node old with the addresses of next.
func withAddresses(old, next *pb.Node) *pb.Node {
	n := proto.CloneOf(old)
	n.Address = next.Address
	if n.TaggedAddresses == nil {
		n.TaggedAddresses = map[string]string{}
	}
	maps.Copy(n.TaggedAddresses, next.TaggedAddresses)
	return n
}

// storedData is a resource of a snapshot with its data. Both are nil if there
// is none.
type storedData struct {
	r    *pb.Resource
	data proto.Message
}

func stored[T interface {
	comparable
	stored() storedData
}](rec T) (out storedData) {
	if rec != *new(T) {
		return rec.stored()
	}
	return out
}

func (n *Node) stored() storedData    { return storedData{n.Resource, n.Node} }
func (s *Service) stored() storedData { return storedData{s.Resource, s.Service} }
func (c *Check) stored() storedData   { return storedData{c.Resource, c.Check} }

// planner collects the steps of one registration.
type planner struct {
	*Snapshot
	steps []resource.Step
	err   error
}

// put adds the step that stores data, unless they are stored, and returns the
// id of the resource. With keep, what is stored stays.
func (p *planner) put(typ *pb.Type, name string, old storedData, owner *pb.ID, data proto.Message, keep bool) *pb.ID {
	if old.r != nil && (keep || proto.Equal(old.data, data)) {
		return old.r.GetId()
	}
	packed, err := anypb.New(data)
	if err != nil {
		p.err = errors.Join(p.err, err)
		return nil
	}
	if old.r != nil {
		r := &pb.Resource{
			Id: old.r.GetId(), Version: old.r.GetVersion(), Metadata: old.r.GetMetadata(), Data: packed,
		}
		p.steps = append(p.steps, resource.Step{Write: r})
		return r.Id
	}
	id := resource.ID(typ, name)
	if orphan := p.orphans[resource.IDString(id)]; orphan != nil {
		p.steps = append(p.steps, resource.Step{Delete: orphan})
	}
	p.steps = append(p.steps, resource.Step{Write: &pb.Resource{Id: id, Owner: owner, Data: packed}, Create: true})
	return id
}
