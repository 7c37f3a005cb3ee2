// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// recordName is the resource name of a gateway's service and check: they share their node's.
func recordName(node string) string { return node }

// store writes what differs between the wanted records of one gateway and the stored ones, in one batch.
func (g *Gateways) store(ctx context.Context, want *pb.MeshGateway) (changed bool, err error) {
	for {
		ops, err := g.plan(ctx, want)
		if err != nil || len(ops) == 0 {
			return false, err
		}
		_, err = g.cfg.Backend.Commit(ctx, ops...)
		if errors.Is(err, resource.ErrConflict) && ctx.Err() == nil {
			continue // somebody wrote in between: look again
		}
		return err == nil, err
	}
}

func (g *Gateways) plan(ctx context.Context, want *pb.MeshGateway) ([]*pb.Op, error) {
	var ops []*pb.Op
	var owner *pb.ID
	name := recordName(want.Node.Node)
	for _, rec := range []struct {
		typ  *pb.Type
		data proto.Message
	}{{NodeType, want.Node}, {ServiceType, want.Service}, {CheckType, want.Checks[0]}} {
		r, err := g.cfg.Backend.Read(ctx, resource.Eventual, resource.ID(rec.typ, name))
		switch {
		case errors.Is(err, resource.ErrNotFound):
			r, err = resource.New(rec.typ, name, rec.data)
			if err != nil {
				return nil, err
			}
			r.Owner = owner
			ops = append(ops, resource.PutOp(r, ""))
		case err != nil:
			return nil, err
		default:
			same, err := sameData(r, rec.data)
			if err != nil {
				return nil, err
			}
			if !same {
				op, err := replaceOp(r, rec.data)
				if err != nil {
					return nil, err
				}
				ops = append(ops, op)
			}
		}
		owner = r.Id
	}
	return ops, nil
}

func sameData(r *pb.Resource, data proto.Message) (bool, error) {
	old, err := r.Data.UnmarshalNew()
	if err != nil {
		return false, fmt.Errorf("stored %s: %w", r.Id.Name, err)
	}
	return proto.Equal(old, data), nil
}

// replaceOp writes new data over a stored resource, if it is still the one read.
func replaceOp(r *pb.Resource, data proto.Message) (*pb.Op, error) {
	next, err := resource.WithData(r, data)
	if err != nil {
		return nil, err
	}
	return resource.PutOp(next, r.Version), nil
}

func put(ctx context.Context, b resource.Backend, r *pb.Resource, data proto.Message) error {
	op, err := replaceOp(r, data)
	if err != nil {
		return err
	}
	_, err = b.Commit(ctx, op)
	return err
}

// List returns the gateways of this datacenter by node name, as this server knows them: of each, node, service and checks as
// one commit left them.
func ListGateways(ctx context.Context, b resource.Backend) ([]*pb.MeshGateway, error) {
	out, at, err := listOnce(ctx, b)
	for range maxListTries {
		if err != nil {
			break
		}
		next, again, nextErr := listOnce(ctx, b)
		if nextErr == nil && again == at {
			break
		}
		out, at, err = next, again, nextErr // something was written between the reads of the three types
	}
	return out, err
}

// maxListTries bounds List where writes never pause; its last answer is then as good as the next.
const maxListTries = 10

// indexes are those of the three types at the time of their reads: unchanged, so is what was read.
type indexes struct{ services, nodes, checks uint64 }

func listOnce(ctx context.Context, b resource.Backend) (out []*pb.MeshGateway, at indexes, err error) {
	services, i, err := b.List(ctx, resource.Eventual, resource.Query{Type: ServiceType})
	if err != nil {
		return nil, at, err
	}
	at.services = i
	for _, r := range services {
		if nodeOf(r) != r.GetId().GetName() {
			continue // no gateway's: see recordName
		}
		s, err := resource.Decode[*pb.Service](r)
		if err != nil {
			return nil, at, err
		}
		if s.Kind == KindMeshGateway {
			out = append(out, &pb.MeshGateway{Service: s})
		}
	}
	of := map[string]bool{}
	for _, gw := range out {
		of[gw.Service.Node] = true
	}
	nodes, i, err := byNode[*pb.Node](ctx, b, NodeType, of)
	if err != nil {
		return nil, at, err
	}
	at.nodes = i
	checks, i, err := byNode[*pb.Check](ctx, b, CheckType, of)
	if err != nil {
		return nil, at, err
	}
	at.checks = i
	out = slices.DeleteFunc(out, func(gw *pb.MeshGateway) bool { return len(nodes[gw.Service.Node]) == 0 })
	for _, gw := range out {
		gw.Node = nodes[gw.Service.Node][0]
		for _, c := range checks[gw.Service.Node] {
			if c.ServiceId == "" || c.ServiceId == gw.Service.Id {
				gw.Checks = append(gw.Checks, c)
			}
		}
	}
	return out, at, nil
}

// nodeOf is the name of the node of a record, as its own name has it: that of a gateway's node needs no escaping.
func nodeOf(r *pb.Resource) string {
	node, _, _ := strings.Cut(r.GetId().GetName(), "/")
	return node
}

// byNode returns the records of some nodes. Of a large catalog only these are decoded.
func byNode[T interface {
	proto.Message
	GetNode() string
}](ctx context.Context, b resource.Backend, typ *pb.Type, of map[string]bool) (map[string][]T, uint64, error) {
	rs, index, err := b.List(ctx, resource.Eventual, resource.Query{Type: typ})
	if err != nil {
		return nil, 0, err
	}
	out := make(map[string][]T, len(of))
	for _, r := range rs {
		if !of[nodeOf(r)] {
			continue
		}
		d, err := resource.Decode[T](r)
		if err != nil {
			return nil, 0, err
		}
		out[d.GetNode()] = append(out[d.GetNode()], d)
	}
	return out, index, nil
}
