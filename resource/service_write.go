// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
)

// maxWriteTries bounds how often a write without a version, but with an owner or a uid, is tried against the stored resource while
// others change it.
const maxWriteTries = 8

// MaxSize bounds a resource with all that belongs to it, encoded, in bytes.
const MaxSize = 4 << 20

func checkSize(r *pb.Resource) error {
	if n := proto.Size(r); n > MaxSize {
		return fmt.Errorf("%w size of %s, %d bytes: must be at most %d", ErrInvalid, IDString(r.GetId()), n, MaxSize)
	}
	return nil
}

// Write creates a resource, or replaces its data and metadata. Status, uid and owner of a stored resource stay. With a
// version it is a compare-and-swap. Federated types are written in the primary, see ServiceConfig.PrimaryClient.
func (s *Service) Write(ctx context.Context, req *pb.WriteRequest) (*pb.WriteResponse, error) {
	r, err := s.write(ctx, req.GetResource())
	if err != nil {
		return nil, StatusError(err)
	}
	return &pb.WriteResponse{Resource: r}, nil
}

func (s *Service) write(ctx context.Context, given *pb.Resource) (*pb.Resource, error) {
	r, reg, err := s.admitWrite(ctx, given)
	if err != nil {
		return nil, err
	}
	if forward, err := s.forwards(reg); forward {
		return s.forwardWrite(ctx, r, given)
	} else if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		stored, err := s.writeOnce(ctx, reg, proto.CloneOf(r))
		retry := errors.Is(err, ErrConflict) && r.GetVersion() == "" && try < maxWriteTries
		if !retry {
			return stored, err
		}
		if overwrites(r) { // others write it too: let the store say over what
			stored, err := s.commitOne(ctx, overwriteOp(proto.CloneOf(r), false))
			if !errors.Is(err, ErrUnsupported) {
				return stored, err
			}
		}
	}
}

// overwrites says whether r, which was admitted, may go over whatever is stored.
func overwrites(r *pb.Resource) bool { return r.Version == "" && r.Id.Uid == "" && r.Owner == nil }

// overwriteOp writes r, which it changes, and which overwrites.
func overwriteOp(r *pb.Resource, keepMetadata bool) *pb.Op {
	r.Id.Uid, r.Generation, r.Status = NewUID(), NewGeneration(), nil // of one that is made
	cleanIndexes(r)
	return OverwriteOp(r, keepMetadata)
}

// admitWrite checks what can be checked without the stored resource, and returns the caller's own copy, mutated.
func (s *Service) admitWrite(ctx context.Context, given *pb.Resource) (*pb.Resource, Registration, error) {
	peer, reg, err := s.admit(ctx, given.GetId().GetType())
	if err != nil {
		return nil, reg, err
	}
	id, err := checkRequestID(reg, given.GetId())
	if err != nil {
		return nil, reg, err
	}
	if v := given.GetVersion(); v == AnyVersion {
		return nil, reg, invalidField("version", v, "must be a version, or empty to write whatever is stored")
	}
	r := proto.CloneOf(given)
	r.Id = id
	if err := decodeInto(r, newMessage(reg)); err != nil {
		return nil, reg, err
	}
	if reg.Mutate != nil {
		if err := reg.Mutate(r); err != nil {
			return nil, reg, fmt.Errorf("%w %s: %w", ErrInvalid, IDString(id), err)
		}
	}
	if err := s.authorize(reg, peer, VerbWrite, r); err != nil {
		return nil, reg, err
	}
	if reg.Validate != nil {
		if err := reg.Validate(r); err != nil {
			return nil, reg, fmt.Errorf("%w %s: %w", ErrInvalid, IDString(id), err)
		}
	}
	return r, reg, errors.Join(s.checkOwnerType(reg, r), checkSize(r))
}

// checkOwnerType: what is federated is owned by what is federated. Secondaries have no other owner.
func (s *Service) checkOwnerType(reg Registration, r *pb.Resource) error {
	if !reg.Federated || r.Owner == nil {
		return nil
	}
	owner, err := s.cfg.Registry.Lookup(r.Owner.GetType())
	if err != nil {
		return fmt.Errorf("owner: %w", err)
	}
	if !owner.Federated {
		return fmt.Errorf("%w owner %s: must be of a federated type, as %s is", ErrInvalid, IDString(r.Owner), TypeString(reg.Type))
	}
	return nil
}

// MutateAndValidate returns what Write would store of a resource, as far as that does not depend on what is stored. Of federated
// types the primary is asked.
func (s *Service) MutateAndValidate(ctx context.Context, req *pb.MutateAndValidateRequest) (*pb.MutateAndValidateResponse, error) {
	r, reg, err := s.admitWrite(ctx, req.GetResource())
	if err != nil {
		return nil, StatusError(err)
	}
	if forward, _ := s.forwards(reg); forward {
		var out *pb.MutateAndValidateResponse
		err := s.forward(ctx, func(ctx context.Context, c pb.ResourceServiceClient, opts ...grpc.CallOption) (err error) {
			out, err = c.MutateAndValidate(ctx, req, opts...)
			return err
		})
		return out, StatusError(err)
	}
	return &pb.MutateAndValidateResponse{Resource: r}, nil
}

// writeOnce commits r, which it may change, against what is stored now. The read that it begins with may be stale: the commit
// proves a yes, and a no is asked again with a strong read.
func (s *Service) writeOnce(ctx context.Context, reg Registration, r *pb.Resource) (*pb.Resource, error) {
	expect, err := s.prepareFresh(ctx, reg, r)
	if err != nil {
		return nil, err
	}
	return s.commitOne(ctx, PutOp(r, expect))
}

func (s *Service) commitOne(ctx context.Context, op *pb.Op) (*pb.Resource, error) {
	out, err := s.cfg.Backend.Commit(ctx, op)
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

// prepareFresh is prepare with what is stored here, and, where that refuses, with what is stored now.
func (s *Service) prepareFresh(ctx context.Context, reg Registration, r *pb.Resource) (expect string, err error) {
	expect, err = s.prepare(ctx, Eventual, reg, r)
	if err != nil {
		expect, err = s.prepare(ctx, Strong, reg, r)
	}
	cleanIndexes(r)
	return expect, err
}

// cleanIndexes takes out of r what the store alone says.
func cleanIndexes(r *pb.Resource) {
	r.Version, r.CreateIndex, r.ModifyIndex, r.PrimaryModifyIndex = "", 0, 0, 0
}

// prepare completes r from what is stored and returns the version to expect. It changes r only if it returns no error.
func (s *Service) prepare(ctx context.Context, c Consistency, reg Registration, r *pb.Resource) (expect string, err error) {
	byName := &pb.ID{Name: r.Id.Name, Type: r.Id.Type, Tenancy: r.Id.Tenancy}
	stored, err := s.cfg.Backend.Read(ctx, c, byName)
	if errors.Is(err, ErrNotFound) {
		return "", s.prepareCreate(ctx, c, r)
	}
	if mismatch, ok := errors.AsType[*GroupVersionError](err); ok { // it becomes one of the version written
		stored, err = mismatch.Stored, nil
	}
	if err != nil {
		return "", err
	}
	return stored.GetVersion(), prepareUpdate(reg, r, stored)
}

func (s *Service) prepareCreate(ctx context.Context, c Consistency, r *pb.Resource) error {
	switch {
	case r.Id.Uid != "":
		return fmt.Errorf("write %s: %w: there is none, and uid %s was given; leave the uid out to create one", IDString(r.Id), ErrUIDMismatch, r.Id.Uid)
	case r.Version != "":
		return fmt.Errorf("write %s: %w: there is none, and version %s was given; leave the version out to create one", IDString(r.Id), ErrConflict, r.Version)
	}
	if r.Owner != nil {
		owner, err := s.findOwner(ctx, c, r.Owner)
		if err != nil {
			return fmt.Errorf("write %s: %w", IDString(r.Id), err)
		}
		r.Owner = owner
	}
	r.Id.Uid, r.Generation, r.Status = NewUID(), NewGeneration(), nil
	return nil
}

// findOwner returns the stored owner's id, with its uid.
func (s *Service) findOwner(ctx context.Context, c Consistency, given *pb.ID) (*pb.ID, error) {
	reg, err := s.cfg.Registry.Lookup(given.GetType())
	if err != nil {
		return nil, fmt.Errorf("owner: %w", err)
	}
	id, err := checkRequestID(reg, given)
	if err != nil {
		return nil, fmt.Errorf("owner: %w", err)
	}
	owner, err := s.cfg.Backend.Read(ctx, c, id)
	if errors.Is(err, ErrNotFound) {
		return nil, fmt.Errorf("%w owner %s: must be stored; write the owner first", ErrInvalid, IDString(id))
	}
	if err != nil {
		return nil, fmt.Errorf("owner: %w", err)
	}
	return proto.CloneOf(owner.GetId()), nil
}

// prepareUpdate takes over what a write does not change.
func prepareUpdate(reg Registration, r, stored *pb.Resource) error {
	if r.Id.Uid != "" && r.Id.Uid != stored.Id.Uid {
		return fmt.Errorf("write %s: %w: %s, not %s", IDString(r.Id), ErrUIDMismatch, stored.Id.Uid, r.Id.Uid)
	}
	if r.Version != "" && r.Version != stored.Version {
		return fmt.Errorf("write %s: %w: its version is %s, not %s; read it and try again", IDString(r.Id), ErrConflict, stored.Version, r.Version)
	}
	if r.Owner != nil && !sameOwner(r.Owner, stored.Owner) {
		return fmt.Errorf("%w owner %s: must be as it was at creation; leave it out", ErrInvalid, IDString(r.Owner))
	}
	r.Id.Uid, r.Owner, r.Status = stored.Id.Uid, stored.Owner, stored.Status
	if sameData(reg, r, stored) {
		r.Generation, r.Data = stored.Generation, stored.Data // the latter as it is encoded
	} else {
		r.Generation = NewGeneration()
	}
	return nil
}

// sameOwner compares the owner that a client gave, perhaps without uid, with the stored one.
func sameOwner(given, stored *pb.ID) bool {
	if stored == nil || given.GetUid() != "" && given.GetUid() != stored.GetUid() {
		return false
	}
	return given.GetName() == stored.GetName() && SameType(given.GetType(), stored.GetType()) &&
		proto.Equal(FillTenancy(given.GetTenancy()), FillTenancy(stored.GetTenancy()))
}

// sameData compares messages, since the same message has several encodings. a is valid.
func sameData(reg Registration, a, b *pb.Resource) bool {
	if a.Data.GetTypeUrl() == b.Data.GetTypeUrl() && bytes.Equal(a.Data.GetValue(), b.Data.GetValue()) {
		return true
	}
	ma, mb := newMessage(reg), newMessage(reg)
	return decodeInto(a, ma) == nil && decodeInto(b, mb) == nil && proto.Equal(ma, mb)
}

func newMessage(reg Registration) proto.Message {
	return reg.Message.ProtoReflect().New().Interface()
}
