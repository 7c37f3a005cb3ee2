// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// StateType is the type of federation states. The name of a resource is the
// name of its datacenter.
var StateType = &pb.Type{Group: "federation", GroupVersion: "v1", Kind: "FederationState"}

// DatacenterType is the type of the resources whose status has the conditions
// of other datacenters, as the local datacenter observes them. The resource has
// the name of the federation state that owns it. The type is not federated: a
// write of a status in the primary would be a change for every secondary.
var DatacenterType = &pb.Type{Group: "federation", GroupVersion: "v1", Kind: "Datacenter"}

// Register adds the types of this package to a registry. Every peer may read
// StateType and GroupType. A server may write only the state of its own
// datacenter. Servers of the local datacenter and operators may write resources
// of DatacenterType.
func Register(r *resource.Registry) error {
	return errors.Join(
		r.Register(resource.Registration{
			Type: StateType, Message: &pb.FederationState{}, Scope: resource.ScopeCluster, Federated: true,
			Validate: validate, Authorize: authorize,
		}),
		r.Register(resource.Registration{
			Type: GroupType, Message: &pb.Group{}, Scope: resource.ScopeCluster, Authorize: authorizeGroup,
		}),
		r.Register(resource.Registration{
			Type: DatacenterType, Message: &pb.Datacenter{}, Scope: resource.ScopeCluster,
		}),
	)
}

// authorize restricts servers: a server may write only the state of its own
// datacenter. Package policy decides about other callers.
func authorize(p tlsutil.Peer, verb resource.Verb, r *pb.Resource) error {
	dc := r.GetId().GetName()
	if verb == resource.VerbRead || verb == resource.VerbList || p.Role != tlsutil.RoleServer || p.DC == dc {
		return nil
	}
	return fmt.Errorf("%v may not write the federation state of %s: "+
		"a server may write only the state of its own datacenter", p, dc)
}

func validate(r *pb.Resource) error {
	s, err := resource.Decode[*pb.FederationState](r)
	if err != nil {
		return err
	}
	if s.Datacenter != r.GetId().GetName() {
		return fmt.Errorf("data.datacenter is %q in a resource called %q", s.Datacenter, r.GetId().GetName())
	}
	return ValidateState(s)
}

// Limits of a federation state.
const (
	maxGateways  = 1024
	maxStateSize = 256 << 10 // bytes
)

// ValidateState returns the first fault of a state, or nil.
func ValidateState(s *pb.FederationState) error {
	if err := tlsutil.CheckLabel(s.GetDatacenter()); err != nil {
		return fmt.Errorf("federation state: datacenter: %w", err)
	}
	if len(s.GroupId) > maxClaimText {
		return fmt.Errorf("federation state of %s has a group id of %d bytes: more than %d",
			s.Datacenter, len(s.GroupId), maxClaimText)
	}
	if n := len(s.MeshGateways); n > maxGateways {
		return fmt.Errorf("federation state of %s has %d gateways: more than %d", s.Datacenter, n, maxGateways)
	}
	if n := proto.Size(s); n > maxStateSize {
		return fmt.Errorf("federation state of %s has %d bytes: more than %d", s.Datacenter, n, maxStateSize)
	}
	for i, g := range s.MeshGateways {
		switch {
		case g.GetNode() == nil || g.GetService() == nil:
			return fmt.Errorf("federation state of %s: gateway %d has no node or no service", s.Datacenter, i)
		case g.Node.Datacenter != s.Datacenter:
			return fmt.Errorf("federation state of %s: gateway %s is in datacenter %q",
				s.Datacenter, g.Node.Node, g.Node.Datacenter)
		case catalog.TaggedAddr(g, catalog.TagWAN) == "":
			return fmt.Errorf("federation state of %s: gateway %s has no WAN address", s.Datacenter, g.Node.Node)
		}
		for tag, addr := range g.Service.TaggedAddresses {
			if err := catalog.CheckAddress(addr); err != nil {
				return fmt.Errorf("federation state of %s: gateway %s: address %q: %w",
					s.Datacenter, g.Node.Node, tag, err)
			}
		}
	}
	return nil
}

// SameContent reports whether two states are equal except for UpdatedAt, the
// indexes and the order of gateways.
func SameContent(a, b *pb.FederationState) bool {
	return proto.Equal(content(a), content(b))
}

func content(s *pb.FederationState) *pb.FederationState {
	c := &pb.FederationState{Datacenter: s.GetDatacenter(), GroupId: s.GetGroupId(),
		MeshGateways: slices.Clone(s.GetMeshGateways())}
	slices.SortFunc(c.MeshGateways, byNode)
	return c
}

// FromResource returns the state in a resource, with the indexes of the
// resource. The caller owns the result.
func FromResource(r *pb.Resource) (*pb.FederationState, error) {
	s, err := resource.Decode[*pb.FederationState](r)
	if err != nil {
		return nil, fmt.Errorf("federation state %s: %w", r.GetId().GetName(), err)
	}
	s.PrimaryModifyIndex, s.CreateIndex, s.ModifyIndex = r.PrimaryModifyIndex, r.CreateIndex, r.ModifyIndex
	return s, nil
}

// ListStates returns all federation states, ordered by datacenter, and their
// index.
func ListStates(ctx context.Context, b resource.Backend) ([]*pb.FederationState, uint64, error) {
	rs, index, err := b.List(ctx, resource.Eventual, resource.Query{Type: StateType})
	if err != nil {
		return nil, 0, err
	}
	out := make([]*pb.FederationState, 0, len(rs))
	for _, r := range rs {
		s, err := FromResource(r)
		if err != nil {
			return nil, 0, err
		}
		out = append(out, s)
	}
	return out, index, nil
}

// ReadState returns the state of one datacenter and its resource. Both are nil
// if the datacenter has no state.
func ReadState(ctx context.Context, b resource.Backend, dc string) (*pb.FederationState, *pb.Resource, error) {
	r, err := b.Read(ctx, resource.Eventual, resource.ID(StateType, dc))
	if errors.Is(err, resource.ErrNotFound) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	s, err := FromResource(r)
	return s, r, err
}
