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

// Entry is what is said of one node in one step: the node, at most one service on it, and checks of either.
type Entry struct {
	// Node is required; without an address it must be there already, and stays as it is.
	Node *pb.Node
	// Service may be nil. Checks of a service are of this one, or of one that is there.
	Service *pb.Service
	Checks  []*pb.Check
	// ReplaceChecks: other checks of Service are deleted.
	ReplaceChecks bool
	// Agent: a program registers what it is, again whenever it starts. A check that is there keeps status and output, which only a
	// report changes, and the node what Node does not say.
	FromAgent bool
}

// What an entry, or a report, is about and is not there: each is a resource.ErrNotFound.
var (
	ErrNoNode    error = missing("no such node")
	ErrNoService error = missing("no such service")
	ErrNoCheck   error = missing("no such check")
)

type missing string

func (m missing) Error() string { return string(m) }
func (missing) Unwrap() error   { return resource.ErrNotFound }

// Writer writes the catalog through a resource.Service, which authorizes.
type Writer struct {
	res  *resource.Service
	view *View
}

// NewWriter returns a Writer.
func NewWriter(res *resource.Service, view *View) *Writer { return &Writer{res: res, view: view} }

// Register writes all of an entry in one step; what is stored as it says already is not written again. It fails with a
// resource.ErrInvalid that names what is wrong, ErrNoNode or ErrNoService.
func (w *Writer) Register(ctx context.Context, e Entry) error {
	if err := w.res.Allow(ctx, resource.VerbWrite, NodeType); err != nil {
		return err
	}
	if err := checkEntry(e); err != nil {
		return fmt.Errorf("%w %w", resource.ErrInvalid, err)
	}
	return w.write(ctx, func(s *Snapshot) ([]resource.Step, error) { return planEntry(s, e) })
}

// Deregister deletes a service, a check, or, without either id, the node, with all that is on it. What is not there is no error.
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

// maxWriteTries bounds how often a write is planned anew while others write the same records.
const maxWriteTries = 32

// write commits what plan makes of the catalog as it is now, again while others write between.
func (w *Writer) write(ctx context.Context, plan func(s *Snapshot) ([]resource.Step, error)) error {
	for try := 1; ; try++ {
		s, err := w.view.At(ctx, resource.Strong)
		if err != nil {
			return err
		}
		steps, err := plan(s)
		if err != nil || len(steps) == 0 {
			return err
		}
		_, err = w.res.WriteAll(ctx, steps...)
		// Not found is an owner that was deleted meanwhile.
		again := errors.Is(err, resource.ErrConflict) || errors.Is(err, resource.ErrNotFound)
		if !again || try == maxWriteTries || ctx.Err() != nil {
			return err
		}
	}
}

func planEntry(s *Snapshot, e Entry) ([]resource.Step, error) {
	p := planner{Snapshot: s}
	node := s.Node(e.Node.Node)
	if node == nil && e.Node.Address == "" {
		return nil, fmt.Errorf("%w: %q; register it with its address", ErrNoNode, e.Node.Node)
	}
	if e.FromAgent && node != nil {
		e.Node = merged(node.Node, e.Node)
	}
	nodeID := p.put(NodeType, e.Node.Node, stored(node), nil, e.Node, e.Node.Address == "")
	var service *Service
	serviceID := (*pb.ID)(nil)
	if e.Service != nil {
		service = node.Service(e.Service.Id)
		serviceID = p.put(ServiceType, underNode(e.Node.Node, e.Service.Id), stored(service), nodeID, e.Service, false)
	}
	keep := map[string]bool{}
	for _, c := range e.Checks {
		keep[c.CheckId] = true
		c, owner := proto.CloneOf(c), nodeID
		if c.ServiceId != "" {
			c.ServiceName, owner = e.Service.GetService(), serviceID
			if e.Service.GetId() != c.ServiceId {
				of := node.Service(c.ServiceId)
				if of == nil {
					return nil, fmt.Errorf("%w: check %q is of service %q, which node %q does not have", ErrNoService, c.CheckId, c.ServiceId, e.Node.Node)
				}
				c.ServiceName, owner = of.Service.Service, of.Resource.GetId()
			}
		}
		old := node.Check(c.CheckId)
		if e.FromAgent && old != nil {
			c.Status, c.Output = old.Status, old.Output
		}
		if old != nil && old.ServiceId != c.ServiceId { // the owner of a resource does not change
			p.steps = append(p.steps, resource.Step{Delete: old.Resource.GetId()})
			old = nil
		}
		p.put(CheckType, underNode(e.Node.Node, c.CheckId), stored(old), owner, c, false)
	}
	if e.ReplaceChecks && service != nil {
		for _, c := range service.Checks {
			if !keep[c.CheckId] {
				p.steps = append(p.steps, resource.Step{Delete: c.Resource.GetId()})
			}
		}
	}
	return p.steps, p.err
}

// merged is what is stored of a node, with the addresses that next has.
func merged(old, next *pb.Node) *pb.Node {
	n := proto.CloneOf(old)
	n.Address = next.Address
	if n.TaggedAddresses == nil {
		n.TaggedAddresses = map[string]string{}
	}
	maps.Copy(n.TaggedAddresses, next.TaggedAddresses)
	return n
}

// storedRecord is a record of a snapshot; its resource is nil if there is none.
type storedRecord struct {
	r    *pb.Resource
	data proto.Message
}

func stored[T interface {
	comparable
	record() storedRecord
}](rec T) (out storedRecord) {
	if rec != *new(T) {
		return rec.record()
	}
	return out
}

func (n *Node) record() storedRecord    { return storedRecord{n.Resource, n.Node} }
func (s *Service) record() storedRecord { return storedRecord{s.Resource, s.Service} }
func (c *Check) record() storedRecord   { return storedRecord{c.Resource, c.Check} }

// planner collects the steps of one entry.
type planner struct {
	*Snapshot
	steps []resource.Step
	err   error
}

// put adds the step that makes data stored, if it is not, and returns the id of its resource. Where asIs, what is there stays.
func (p *planner) put(typ *pb.Type, name string, old storedRecord, owner *pb.ID, data proto.Message, asIs bool) *pb.ID {
	if old.r != nil && (asIs || proto.Equal(old.data, data)) {
		return old.r.GetId()
	}
	packed, err := anypb.New(data)
	if err != nil {
		p.err = errors.Join(p.err, err)
		return nil
	}
	id := resource.ID(typ, name)
	if old.r != nil {
		id = old.r.GetId()
		p.steps = append(p.steps, resource.Step{Write: &pb.Resource{Id: id, Version: old.r.GetVersion(), Metadata: old.r.GetMetadata(), Data: packed}})
		return id
	}
	if left := p.orphans[resource.IDString(id)]; left != nil {
		p.steps = append(p.steps, resource.Step{Delete: left})
	}
	p.steps = append(p.steps, resource.Step{Write: &pb.Resource{Id: id, Owner: owner, Data: packed}, Create: true})
	return id
}
