// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
)

// Read returns one resource.
func (s *Service) Read(ctx context.Context, req *pb.ReadRequest) (*pb.ReadResponse, error) {
	r, err := s.read(ctx, req.GetId())
	if err != nil {
		return nil, StatusError(err)
	}
	return &pb.ReadResponse{Resource: r}, nil
}

func (s *Service) read(ctx context.Context, given *pb.ID) (*pb.Resource, error) {
	id, c, err := s.admitRead(ctx, given)
	if err != nil {
		return nil, err
	}
	return s.cfg.Backend.Read(ctx, c, id)
}

// admitRead does what Read and ListByOwner have in common before they ask the backend.
func (s *Service) admitRead(ctx context.Context, given *pb.ID) (*pb.ID, Consistency, error) {
	peer, reg, err := s.admit(ctx, given.GetType())
	if err != nil {
		return nil, 0, err
	}
	id, err := checkRequestID(reg, given)
	if err != nil {
		return nil, 0, err
	}
	if err := s.authorize(reg, peer, VerbRead, &pb.Resource{Id: id}); err != nil {
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
	q.MaxBytes, _ = ctx.Value(answerLimit{}).(int)
	all, _, err := s.cfg.Backend.List(ctx, c, q)
	if err != nil {
		return nil, StatusError(err)
	}
	return &pb.ListResponse{Resources: all}, nil
}

// admitList does what List and WatchList have in common before they ask the backend.
func (s *Service) admitList(ctx context.Context, q Query) (Query, error) {
	peer, reg, err := s.admit(ctx, q.Type)
	if err != nil {
		return q, err
	}
	if q.Tenancy, err = scoped(reg.Scope, q.Tenancy, true); err != nil {
		return q, err
	}
	if err := reg.checkPrefix(q.Prefix); err != nil {
		return q, err
	}
	return q, s.authorize(reg, peer, VerbList, &pb.Resource{Id: &pb.ID{Type: q.Type, Tenancy: q.Tenancy}})
}

// ListByOwner returns what the owner owns. Without a uid it means the resource that has the name now. Types that the peer
// may not list are left out.
func (s *Service) ListByOwner(ctx context.Context, req *pb.ListByOwnerRequest) (*pb.ListByOwnerResponse, error) {
	owner, c, err := s.admitRead(ctx, req.GetOwner())
	if err != nil {
		return nil, StatusError(err)
	}
	if owner.GetUid() == "" || c == Strong {
		r, err := s.cfg.Backend.Read(ctx, c, owner) // a strong read: from here on what is local is fresh enough
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

// visible leaves out the resources of types that the calling peer may not list.
func (s *Service) visible(ctx context.Context, all []*pb.Resource) ([]*pb.Resource, error) {
	out := make([]*pb.Resource, 0, len(all))
	for _, r := range all {
		peer, reg, err := s.admit(ctx, r.GetId().GetType())
		if err != nil {
			return nil, err
		}
		id := &pb.ID{Type: r.GetId().GetType(), Tenancy: r.GetId().GetTenancy()}
		if s.authorize(reg, peer, VerbList, &pb.Resource{Id: id}) == nil {
			out = append(out, r)
		}
	}
	return out, nil
}

type answerLimit struct{}

// WithListLimit has List, if it is called with that context, refuse what is surely larger than so many bytes, before messages are made of it.
// The answer is still to be checked, by CheckListSize.
func WithListLimit(ctx context.Context, bytes int) context.Context {
	return context.WithValue(ctx, answerLimit{}, bytes)
}

// TooLargeError is the ErrTooLarge of a list with that limit, in bytes.
func TooLargeError(limit int) error {
	return fmt.Errorf("%w, %d bytes: ask for a prefix, or watch it", ErrTooLarge, limit)
}

// CheckListSize refuses an answer, of List or ListByOwner, that is larger than a gRPC message may be, with codes.ResourceExhausted. gRPC does so
// itself, but only when all of it is encoded: many who ask at once for what nobody can be given would take much memory.
func CheckListSize(answer any, limit int) error {
	var all []*pb.Resource
	switch a := answer.(type) {
	case *pb.ListResponse:
		all = a.GetResources()
	case *pb.ListByOwnerResponse:
		all = a.GetResources()
	}
	size := 0
	for _, r := range all {
		n := proto.Size(r)
		if size += protowire.SizeTag(1) + protowire.SizeBytes(n); size > limit {
			return StatusError(TooLargeError(limit))
		}
	}
	return nil
}

// WatchList streams the present state and then every change, until the client goes or the watch is reset: then the status
// says so (FromStatus: ErrWatchReset) and the client watches again.
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
	// Many watches may wait at once. Next waits on fewer channels without ctx.
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
