// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
)

// Read returns one resource.
func (s *Service) Read(ctx context.Context, req *pb.ReadRequest) (*pb.ReadResponse, error) {
	id, c, err := s.admitRead(ctx, req.GetId())
	if err != nil {
		return nil, StatusError(err)
	}
	r, err := s.cfg.Backend.Read(ctx, c, id)
	if err != nil {
		return nil, StatusError(err)
	}
	return &pb.ReadResponse{Resource: r}, nil
}

// admitRead checks and authorizes a Read or ListByOwner.
func (s *Service) admitRead(ctx context.Context, given *pb.ID) (*pb.ID, Consistency, error) {
	peer, reg, id, err := s.admitID(ctx, given)
	if err != nil {
		return nil, 0, err
	}
	if err := s.authorize(ctx, reg, peer, VerbRead, id.GetName(), &pb.Resource{Id: id}); err != nil {
		return nil, 0, err
	}
	c, err := consistencyOf(ctx)
	return id, c, err
}

// List returns the resources of a type, ordered by tenancy and name.
func (s *Service) List(ctx context.Context, req *pb.ListRequest) (*pb.ListResponse, error) {
	q, err := s.admitList(ctx, Query{Type: req.GetType(), Tenancy: req.GetTenancy(), Prefix: req.GetNamePrefix()})
	if err != nil {
		return nil, StatusError(err)
	}
	c, err := consistencyOf(ctx)
	if err != nil {
		return nil, StatusError(err)
	}
	q.MaxBytes, _ = ctx.Value(listLimit{}).(int)
	all, _, err := s.cfg.Backend.List(ctx, c, q)
	if err != nil {
		return nil, StatusError(err)
	}
	return &pb.ListResponse{Resources: all}, nil
}

// admitList checks and authorizes a List or WatchList.
func (s *Service) admitList(ctx context.Context, q Query) (Query, error) {
	peer, reg, err := s.admit(ctx, q.Type)
	if err != nil {
		return q, err
	}
	if q.Tenancy, err = scopedTenancy(reg.Scope, q.Tenancy, true); err != nil {
		return q, err
	}
	if err := reg.checkPrefix(q.Prefix); err != nil {
		return q, err
	}
	return q, s.authorize(ctx, reg, peer, VerbList, q.Prefix, &pb.Resource{Id: &pb.ID{Type: q.Type, Tenancy: q.Tenancy}})
}

// ListByOwner returns the resources of an owner. An owner id without a uid
// selects the resource that is stored under the name. The result omits
// resources that the peer may not list.
func (s *Service) ListByOwner(ctx context.Context, req *pb.ListByOwnerRequest) (*pb.ListByOwnerResponse, error) {
	owner, c, err := s.admitRead(ctx, req.GetOwner())
	if err != nil {
		return nil, StatusError(err)
	}
	if owner.GetUid() == "" || c == Strong {
		r, err := s.cfg.Backend.Read(ctx, c, owner) // after a strong read, the local state is fresh enough
		if err != nil {
			return nil, StatusError(err)
		}
		owner = r.GetId()
	}
	owned, err := s.cfg.Backend.ListByOwner(ctx, owner)
	if err != nil {
		return nil, StatusError(err)
	}
	visible, err := s.visible(ctx, owned)
	if err != nil {
		return nil, StatusError(err)
	}
	return &pb.ListByOwnerResponse{Resources: visible}, nil
}

// visible returns the resources that the peer may list.
func (s *Service) visible(ctx context.Context, all []*pb.Resource) ([]*pb.Resource, error) {
	out := make([]*pb.Resource, 0, len(all))
	for _, r := range all {
		peer, reg, err := s.admit(ctx, r.GetId().GetType())
		if err != nil {
			return nil, err
		}
		id := &pb.ID{Type: r.GetId().GetType(), Tenancy: r.GetId().GetTenancy()}
		if s.authorize(ctx, reg, peer, VerbList, r.GetId().GetName(), &pb.Resource{Id: id}) == nil {
			out = append(out, r)
		}
	}
	return out, nil
}

type listLimit struct{}

// WithListLimit returns a context in which List fails with ErrTooLarge if the
// encoded resources exceed the limit. The encoded response is a few bytes
// longer than its resources: see CheckListSize.
func WithListLimit(ctx context.Context, bytes int) context.Context {
	return context.WithValue(ctx, listLimit{}, bytes)
}

// CheckListSize returns a status error with codes.ResourceExhausted if a
// response of List or ListByOwner has more than limit encoded bytes. gRPC
// checks the size after encoding, which takes much memory during many
// concurrent calls.
func CheckListSize(response any, limit int) error {
	list, ok := response.(interface{ GetResources() []*pb.Resource })
	if !ok {
		return nil
	}
	size := 0
	for _, r := range list.GetResources() {
		size += protowire.SizeTag(1) + protowire.SizeBytes(proto.Size(r))
		if size > limit {
			return StatusError(TooLargeError(limit))
		}
	}
	return nil
}

// WatchList streams the stored resources and then every change. It ends when
// the client disconnects or the watch is reset. After a reset, the status is an
// ErrWatchReset (see FromStatus), and the client opens a new watch.
func (s *Service) WatchList(req *pb.WatchListRequest, stream grpc.ServerStreamingServer[pb.WatchEvent]) error {
	ctx := stream.Context()
	q, err := s.admitList(ctx, Query{Type: req.GetType(), Tenancy: req.GetTenancy(), Prefix: req.GetNamePrefix()})
	if err != nil {
		return StatusError(err)
	}
	w, err := s.cfg.Backend.Watch(q)
	if err != nil {
		return StatusError(err)
	}
	// A commit may wake 10,000 watches, and Next wakes faster without a
	// context.
	defer context.AfterFunc(ctx, w.Close)()
	defer w.Close()
	for {
		ev, err := w.Next(context.Background())
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if err != nil {
			return StatusError(err)
		}
		if err := stream.Send(ev); err != nil {
			return err
		}
	}
}
