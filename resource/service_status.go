// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
)

// WriteStatus replaces one status of a resource, which must have the uid given; with a version it is a compare-and-swap. The
// generation stays. Status is this datacenter's own: that of federated types is written in every datacenter, and stays there.
func (s *Service) WriteStatus(ctx context.Context, req *pb.WriteStatusRequest) (*pb.WriteStatusResponse, error) {
	r, err := s.writeStatus(ctx, req)
	if err != nil {
		return nil, StatusError(err)
	}
	return &pb.WriteStatusResponse{Resource: r}, nil
}

func (s *Service) writeStatus(ctx context.Context, req *pb.WriteStatusRequest) (*pb.Resource, error) {
	peer, reg, err := s.admit(ctx, req.GetId().GetType())
	if err != nil {
		return nil, err
	}
	id, err := checkRequestID(reg, req.GetId())
	if err != nil {
		return nil, err
	}
	if err := checkStatus(req); err != nil {
		return nil, err
	}
	authorize := func(stored *pb.Resource) error { return s.authorize(reg, peer, VerbWriteStatus, stored) }
	for try := 1; ; try++ {
		stored, err := s.statusTarget(ctx, Eventual, id, req.GetVersion(), authorize)
		if err != nil && !errors.Is(err, ErrDenied) { // what is read here may be old
			stored, err = s.statusTarget(ctx, Strong, id, req.GetVersion(), authorize)
		}
		if err != nil {
			return nil, err
		}
		next := withStatus(stored, req.GetKey(), req.GetStatus())
		if err := checkSize(next); err != nil {
			return nil, err
		}
		out, err := s.cfg.Backend.Commit(ctx, PutOp(next, stored.GetVersion()))
		if err == nil {
			return out[0], nil
		}
		if !errors.Is(err, ErrConflict) || req.GetVersion() != "" || try >= maxWriteTries {
			return nil, err
		}
	}
}

// statusTarget returns the stored resource, if it is the one that is meant.
func (s *Service) statusTarget(ctx context.Context, c Consistency, id *pb.ID, version string, authorize func(*pb.Resource) error) (*pb.Resource, error) {
	byName := &pb.ID{Name: id.Name, Type: id.Type, Tenancy: id.Tenancy}
	stored, err := s.cfg.Backend.Read(ctx, c, byName)
	if errors.Is(err, ErrNotFound) {
		if denied := authorize(&pb.Resource{Id: id}); denied != nil {
			return nil, denied
		}
	}
	if err != nil {
		return nil, err
	}
	if err := authorize(stored); err != nil {
		return nil, err
	}
	switch {
	case stored.GetId().GetUid() != id.Uid:
		return nil, fmt.Errorf("write status of %s: %w: %s, not %s", IDString(id), ErrUIDMismatch, stored.GetId().GetUid(), id.Uid)
	case version != "" && version != stored.GetVersion():
		return nil, fmt.Errorf("write status of %s: %w: its version is %s, not %s; read it and try again", IDString(id), ErrConflict, stored.GetVersion(), version)
	}
	return stored, nil
}

// withStatus returns a copy of r with another status under key.
func withStatus(r *pb.Resource, key string, status *pb.Status) *pb.Resource {
	r, status = proto.CloneOf(r), proto.CloneOf(status)
	status.UpdatedAt = timestamppb.New(time.Now())
	if r.Status == nil {
		r.Status = make(map[string]*pb.Status)
	}
	r.Status[key] = status
	return r
}

// maxStatusKey bounds a status's key, in bytes.
const maxStatusKey = 253

func checkStatus(req *pb.WriteStatusRequest) error {
	key, v := req.GetKey(), req.GetVersion()
	switch {
	case req.GetId().GetUid() == "":
		return invalidField("id.uid", "", "must be that of the resource that the status is of")
	case v == AnyVersion:
		return invalidField("version", v, "must be a version, or empty to write whatever is stored")
	case key == "" || len(key) > maxStatusKey:
		return invalidField("key", key, "must be 1 to "+strconv.Itoa(maxStatusKey)+" bytes")
	case req.GetStatus() == nil:
		return fmt.Errorf("%w status: it is missing", ErrInvalid)
	case req.GetStatus().GetObservedGeneration() == "":
		return invalidField("status.observed_generation", "", "must be the generation that was looked at")
	}
	for i, c := range req.GetStatus().GetConditions() {
		if c.GetType() == "" {
			return invalidField(fmt.Sprintf("status.conditions[%d].type", i), "", "must not be empty")
		}
	}
	return nil
}
