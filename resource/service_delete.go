// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"errors"

	"github.com/wanfed/wanfed/api/pb"
)

// Delete removes a resource and what it owns, or marks one that has finalizers. It is no error if the resource, or the one with the given uid, is not there.
func (s *Service) Delete(ctx context.Context, req *pb.DeleteRequest) (*pb.DeleteResponse, error) {
	if err := s.delete(ctx, req); err != nil {
		return nil, StatusError(err)
	}
	return &pb.DeleteResponse{}, nil
}

func (s *Service) delete(ctx context.Context, req *pb.DeleteRequest) error {
	id, reg, err := s.admitDelete(ctx, req.GetId())
	if err != nil {
		return err
	}
	if forward, err := s.forwards(reg); forward {
		return s.forwardDelete(ctx, id, req.GetVersion())
	} else if err != nil {
		return err
	}
	_, err = s.cfg.Backend.Commit(ctx, RemoveOp(id, req.GetVersion()))
	return err
}

// deletion checks and authorizes a deletion, and returns its op.
func (s *Service) deletion(ctx context.Context, req *pb.DeleteRequest) (*pb.Op, error) {
	id, reg, err := s.admitDelete(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	if err := s.checkWritable(reg); err != nil {
		return nil, err
	}
	return RemoveOp(id, req.GetVersion()), nil
}

// admitDelete checks and authorizes a deletion, and returns the id with its tenancy filled in.
func (s *Service) admitDelete(ctx context.Context, given *pb.ID) (*pb.ID, Registration, error) {
	peer, reg, err := s.admit(ctx, given.GetType())
	if err != nil {
		return nil, reg, err
	}
	id, err := checkRequestID(reg, given)
	if err != nil {
		return nil, reg, err
	}
	stored, err := s.cfg.Backend.Read(ctx, Eventual, id)
	if errors.Is(err, ErrNotFound) {
		// It is authorized all the same, by name, and committed: the leader's log decides that it is not there.
		stored, err = &pb.Resource{Id: id}, nil
	}
	if err != nil {
		return nil, reg, err
	}
	return id, reg, s.authorize(reg, peer, VerbDelete, stored)
}
