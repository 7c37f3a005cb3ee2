// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
)

// maxWriteTries bounds the attempts of a write without a version.
const maxWriteTries = 8

// MaxSize bounds an encoded resource, in bytes.
const MaxSize = 4 << 20

func checkSize(r *pb.Resource) error {
	if n := proto.Size(r); n > MaxSize {
		return fmt.Errorf("%w size of %s, %d bytes: must be at most %d", ErrInvalid, IDString(r.GetId()), n, MaxSize)
	}
	return nil
}

// checkVersion refuses AnyVersion as the version of a request.
func checkVersion(version string) error {
	if version == AnyVersion {
		return invalidField("version", version, "must be a version, or empty to write whatever is stored")
	}
	return nil
}

// Write creates a resource, or replaces its data and metadata. A stored
// resource keeps its status, uid and owner. A request with a version is a
// compare-and-swap, and one with NewVersion only creates. Federated types are
// written in the primary: see ServiceConfig.PrimaryClient.
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
		stored, err := s.writeOnce(ctx, reg, shallowCopy(r))
		if !errors.Is(err, ErrConflict) || r.GetVersion() != "" || try == maxWriteTries {
			return stored, err
		}
		if canOverwrite(r) { // no concurrent write can make this op fail
			stored, err := s.commitOne(ctx, overwriteOp(shallowCopy(r), false))
			if !errors.Is(err, ErrUnsupported) {
				return stored, err
			}
		}
	}
}

// canOverwrite reports whether r, a result of admitWrite, may replace any
// stored resource.
func canOverwrite(r *pb.Resource) bool { return r.Version == "" && r.Id.Uid == "" && r.Owner == nil }

// overwriteOp changes r and returns an Overwrite of r. The op uses uid and
// generation of r only if it creates a resource.
func overwriteOp(r *pb.Resource, keepMetadata bool) *pb.Op {
	setUID(r)
	r.Status = nil
	clearStoreFields(r)
	return OverwriteOp(r, keepMetadata)
}

// shallowCopy returns a copy of r that shares all messages with r, except the
// id.
func shallowCopy(r *pb.Resource) *pb.Resource {
	id := r.GetId()
	return copyWithID(r, &pb.ID{Uid: id.GetUid(), Name: id.GetName(), Type: id.GetType(), Tenancy: id.GetTenancy()})
}

// copyWithID returns a copy of r with another id. It shares all other messages
// with r.
func copyWithID(r *pb.Resource, id *pb.ID) *pb.Resource {
	c := &pb.Resource{
		Id: id, Owner: r.Owner, Version: r.Version, Generation: r.Generation, Metadata: r.Metadata, Status: r.Status,
		Data:        r.Data,
		CreateIndex: r.CreateIndex, ModifyIndex: r.ModifyIndex, PrimaryModifyIndex: r.PrimaryModifyIndex,
		PrimaryEpoch: r.PrimaryEpoch,
	}
	c.ProtoReflect().SetUnknown(r.ProtoReflect().GetUnknown())
	return c
}

// admitWrite makes all checks that do not need the stored resource. It returns
// a copy of given, changed by the type's Mutate. The copy shares messages with
// given, except the id.
func (s *Service) admitWrite(ctx context.Context, given *pb.Resource) (*pb.Resource, Registration, error) {
	peer, reg, id, err := s.admitID(ctx, given.GetId())
	if err != nil {
		return nil, reg, err
	}
	if err := checkVersion(given.GetVersion()); err != nil {
		return nil, reg, err
	}
	r := copyWithID(given, id)
	if err := decodeInto(r, reg.NewMessage()); err != nil {
		return nil, reg, err
	}
	if reg.Mutate != nil {
		r = proto.CloneOf(r)
		if err := reg.Mutate(r); err != nil {
			return nil, reg, fmt.Errorf("%w %s: %w", ErrInvalid, IDString(id), err)
		}
	}
	if err := s.authorize(ctx, reg, peer, VerbWrite, id.GetName(), r); err != nil {
		return nil, reg, err
	}
	if reg.Validate != nil {
		if err := reg.Validate(r); err != nil {
			return nil, reg, fmt.Errorf("%w %s: %w", ErrInvalid, IDString(id), err)
		}
	}
	return r, reg, errors.Join(s.checkOwnerType(reg, r), checkSize(r))
}

// checkOwnerType returns an error if a resource of a federated type has an
// owner of a type that is not federated. Secondaries have no replica of the
// owner.
func (s *Service) checkOwnerType(reg Registration, r *pb.Resource) error {
	if !reg.Federated || r.Owner == nil {
		return nil
	}
	owner, err := s.cfg.Registry.Lookup(r.Owner.GetType())
	if err != nil {
		return fmt.Errorf("owner: %w", err)
	}
	if !owner.Federated {
		return fmt.Errorf("%w owner %s: must be of a federated type, as %s is",
			ErrInvalid, IDString(r.Owner), TypeString(reg.Type))
	}
	return nil
}

// MutateAndValidate checks a resource as Write does, and returns the resource
// after Mutate. It does not read the stored resource. A secondary forwards the
// call to the primary if the type is federated.
func (s *Service) MutateAndValidate(
	ctx context.Context, req *pb.MutateAndValidateRequest,
) (*pb.MutateAndValidateResponse, error) {
	r, reg, err := s.admitWrite(ctx, req.GetResource())
	if err != nil {
		return nil, StatusError(err)
	}
	if primary, _ := s.forwards(reg); primary {
		out, err := forward(ctx, s, req, pb.ResourceServiceClient.MutateAndValidate)
		return out, StatusError(err)
	}
	return &pb.MutateAndValidateResponse{Resource: r}, nil
}

// writeOnce completes r from the stored resource and commits r.
func (s *Service) writeOnce(ctx context.Context, reg Registration, r *pb.Resource) (*pb.Resource, error) {
	expect, err := s.prepare(ctx, reg, r)
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

// prepare completes r from the stored resource and returns the version to
// expect. The first read is eventual. If it returns a stale resource, the later
// commit fails with ErrConflict. If prepareAt fails, a stale resource may be
// the cause, so prepare repeats it with a strong read.
func (s *Service) prepare(ctx context.Context, reg Registration, r *pb.Resource) (expect string, err error) {
	expect, err = s.prepareAt(ctx, Eventual, reg, r)
	if err != nil {
		expect, err = s.prepareAt(ctx, Strong, reg, r)
	}
	clearStoreFields(r)
	return expect, err
}

// clearStoreFields clears the fields that only the store sets.
func clearStoreFields(r *pb.Resource) {
	r.Version, r.CreateIndex, r.ModifyIndex, r.PrimaryModifyIndex, r.PrimaryEpoch = "", 0, 0, 0, 0
}

// prepareAt is prepare with one read. It changes r only if it returns no error.
func (s *Service) prepareAt(
	ctx context.Context, c Consistency, reg Registration, r *pb.Resource,
) (expect string, err error) {
	stored, err := s.stored(ctx, c, r.Id)
	if errors.Is(err, ErrNotFound) {
		return "", s.prepareCreate(ctx, c, r)
	}
	if err != nil {
		return "", err
	}
	return stored.GetVersion(), prepareUpdate(reg, r, stored)
}

// stored reads the resource with the id's name, with any uid and group version.
func (s *Service) stored(ctx context.Context, c Consistency, id *pb.ID) (*pb.Resource, error) {
	r, err := s.cfg.Backend.Read(ctx, c, &pb.ID{Name: id.GetName(), Type: id.GetType(), Tenancy: id.GetTenancy()})
	if mismatch, ok := errors.AsType[*GroupVersionError](err); ok {
		return mismatch.Stored, nil
	}
	return r, err
}

// prepareCreate sets the uids of a resource that does not exist yet and of its
// owner. It fails if r has a uid or a version, because a caller who names one
// expects that the resource exists.
func (s *Service) prepareCreate(ctx context.Context, c Consistency, r *pb.Resource) error {
	switch {
	case r.Id.Uid != "":
		return fmt.Errorf("write %s: %w: it does not exist, but uid %s was given; leave the uid out to create it",
			IDString(r.Id), ErrUIDMismatch, r.Id.Uid)
	case r.Version != "" && r.Version != NewVersion:
		return fmt.Errorf("write %s: %w: it does not exist, but version %s was given; leave the version out to "+
			"create it",
			IDString(r.Id), ErrConflict, r.Version)
	}
	if r.Owner != nil {
		owner, err := s.findOwner(ctx, c, r.Owner)
		if err != nil {
			return fmt.Errorf("write %s: %w", IDString(r.Id), err)
		}
		r.Owner = owner
	}
	setUID(r)
	r.Status = nil
	return nil
}

// findOwner returns the id of the stored owner, with its uid.
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

// prepareUpdate copies into r the fields that a write does not change.
func prepareUpdate(reg Registration, r, stored *pb.Resource) error {
	if r.Id.Uid != "" && r.Id.Uid != stored.Id.Uid {
		return fmt.Errorf("write %s: %w: %s, not %s", IDString(r.Id), ErrUIDMismatch, stored.Id.Uid, r.Id.Uid)
	}
	if r.Version != "" && r.Version != stored.Version {
		return fmt.Errorf("write %s: %w", IDString(r.Id), versionConflict(stored.Version, r.Version))
	}
	if err := checkEpoch(stored, r.Version, r.PrimaryEpoch); err != nil {
		return fmt.Errorf("write %s: %w", IDString(r.Id), err)
	}
	if r.Owner != nil && !sameOwner(r.Owner, stored.Owner) {
		return fmt.Errorf("%w owner %s: must be as it was at creation; leave it out", ErrInvalid, IDString(r.Owner))
	}
	r.Id.Uid, r.Owner, r.Status = stored.Id.Uid, stored.Owner, stored.Status
	if sameData(reg, r, stored) {
		r.Generation, r.Data = stored.Generation, stored.Data // the stored encoding of the same message
	} else {
		r.Generation = NewGeneration()
	}
	return nil
}

func versionConflict(stored, given string) error {
	return fmt.Errorf("%w: its version is %s, not %s; read it and try again", ErrConflict, stored, given)
}

// checkEpoch checks that the given version is of the same epoch as stored. The
// stores of two primaries number their versions independently.
func checkEpoch(stored *pb.Resource, version string, epoch uint64) error {
	if version == "" || epoch == 0 || stored.GetPrimaryEpoch() == epoch {
		return nil
	}
	return fmt.Errorf("%w: its version %s is of epoch %d of the primary, not %d; read it and try again",
		ErrConflict, stored.GetVersion(), stored.GetPrimaryEpoch(), epoch)
}

// sameOwner compares a given owner, which may have no uid, with a stored owner.
func sameOwner(given, stored *pb.ID) bool {
	if stored == nil || given.GetUid() != "" && given.GetUid() != stored.GetUid() {
		return false
	}
	return given.GetName() == stored.GetName() && SameType(given.GetType(), stored.GetType()) &&
		proto.Equal(FillTenancy(given.GetTenancy()), FillTenancy(stored.GetTenancy()))
}

// sameData compares the data of two resources as messages, because a message
// has several encodings. The data of a is valid.
func sameData(reg Registration, a, b *pb.Resource) bool {
	if a.Data.GetTypeUrl() == b.Data.GetTypeUrl() && bytes.Equal(a.Data.GetValue(), b.Data.GetValue()) {
		return true
	}
	ma, mb := reg.NewMessage(), reg.NewMessage()
	return decodeInto(a, ma) == nil && decodeInto(b, mb) == nil && proto.Equal(ma, mb)
}

// Delete deletes a resource and the resources that it owns. A resource with
// finalizers gets a deletion timestamp instead. Delete succeeds if no resource
// with the name, and the uid if given, exists.
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
	if req.GetPrimaryEpoch() != 0 { // checked before the commit, which compares only the version
		stored, err := s.stored(ctx, Strong, id)
		if err == nil {
			err = checkEpoch(stored, req.GetVersion(), req.GetPrimaryEpoch())
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			return fmt.Errorf("delete %s: %w", IDString(id), err)
		}
	}
	_, err = s.cfg.Backend.Commit(ctx, RemoveOp(id, req.GetVersion()))
	return err
}

// admitDelete checks and authorizes a deletion, and returns the complete id.
func (s *Service) admitDelete(ctx context.Context, given *pb.ID) (*pb.ID, Registration, error) {
	peer, reg, id, err := s.admitID(ctx, given)
	if err != nil {
		return nil, reg, err
	}
	stored, err := s.cfg.Backend.Read(ctx, Eventual, id)
	if errors.Is(err, ErrNotFound) {
		// The local state may be stale. Therefore the deletion is authorized by
		// its id and then committed.
		stored, err = &pb.Resource{Id: id}, nil
	}
	if err != nil {
		return nil, reg, err
	}
	return id, reg, s.authorize(ctx, reg, peer, VerbDelete, id.GetName(), stored)
}

// WriteStatus replaces one status of a resource, which must have the given uid.
// A request with a version is a compare-and-swap. The generation stays. Every
// datacenter has its own status, even for federated types.
func (s *Service) WriteStatus(ctx context.Context, req *pb.WriteStatusRequest) (*pb.WriteStatusResponse, error) {
	r, err := s.writeStatus(ctx, req)
	if err != nil {
		return nil, StatusError(err)
	}
	return &pb.WriteStatusResponse{Resource: r}, nil
}

func (s *Service) writeStatus(ctx context.Context, req *pb.WriteStatusRequest) (*pb.Resource, error) {
	peer, reg, id, err := s.admitID(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	if err := checkStatus(req); err != nil {
		return nil, err
	}
	authorize := func(stored *pb.Resource) error {
		return s.authorize(ctx, reg, peer, VerbWriteStatus, id.GetName(), stored)
	}
	for try := 1; ; try++ {
		stored, err := s.statusTarget(ctx, Eventual, id, req.GetVersion(), authorize)
		if err != nil && !errors.Is(err, ErrDenied) { // the eventual read may be stale
			stored, err = s.statusTarget(ctx, Strong, id, req.GetVersion(), authorize)
		}
		if err != nil {
			return nil, err
		}
		next := withStatus(stored, req.GetKey(), req.GetStatus())
		if err := checkSize(next); err != nil {
			return nil, err
		}
		out, err := s.commitOne(ctx, PutOp(next, stored.GetVersion()))
		if !errors.Is(err, ErrConflict) || req.GetVersion() != "" || try == maxWriteTries {
			return out, err
		}
	}
}

// statusTarget authorizes the write of a status and returns the stored
// resource. It fails if the resource does not have the uid of id, or does not
// have the given version. An empty version allows every version.
func (s *Service) statusTarget(
	ctx context.Context, c Consistency, id *pb.ID, version string, authorize func(*pb.Resource) error,
) (*pb.Resource, error) {
	stored, err := s.cfg.Backend.Read(ctx, c, &pb.ID{Name: id.Name, Type: id.Type, Tenancy: id.Tenancy})
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
		return nil, fmt.Errorf("write status of %s: %w: %s, not %s",
			IDString(id), ErrUIDMismatch, stored.GetId().GetUid(), id.Uid)
	case version != "" && version != stored.GetVersion():
		return nil, fmt.Errorf("write status of %s: %w", IDString(id), versionConflict(stored.GetVersion(), version))
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

// maxStatusKey bounds the key of a status, in bytes.
const maxStatusKey = 253

// checkStatus returns an ErrInvalid that names the field that breaks a rule.
func checkStatus(req *pb.WriteStatusRequest) error {
	if err := checkVersion(req.GetVersion()); err != nil {
		return err
	}
	key := req.GetKey()
	switch {
	case req.GetId().GetUid() == "":
		return invalidField("id.uid", "", "must be the uid of the resource")
	case key == "" || len(key) > maxStatusKey:
		return invalidField("key", key, "must be 1 to "+strconv.Itoa(maxStatusKey)+" bytes")
	case req.GetStatus() == nil:
		return fmt.Errorf("%w status: it is missing", ErrInvalid)
	case req.GetStatus().GetObservedGeneration() == "":
		return invalidField("status.observed_generation", "", "must be the generation that was observed")
	}
	for i, c := range req.GetStatus().GetConditions() {
		if c.GetType() == "" {
			return invalidField(fmt.Sprintf("status.conditions[%d].type", i), "", "must not be empty")
		}
	}
	return nil
}

// Step is one part of WriteAll: a write, a deletion, an expectation, or an op.
type Step struct {
	// Write is the resource to write, as for Service.Write. If Write has a
	// version, the step is a compare-and-swap. The owner of Write may be a
	// resource that an earlier step creates, and then needs no uid.
	Write *pb.Resource
	// Create makes the step fail if a resource of the name exists.
	Create bool
	// Overwrite replaces any stored resource when the commit is applied, and
	// keeps stored metadata. The step causes no ErrConflict. Write must have no
	// version, uid or owner.
	Overwrite bool
	// Delete is the resource to delete.
	Delete *pb.ID
	// Version is the expected version of Delete. Empty: any version.
	Version string
	// Expect is a query. The commit fails unless its result is still Listed.
	Expect *Query
	// Listed is the result of an earlier List of Expect.
	Listed []*pb.Resource
	// Op is committed as it is. The caller has authorized and checked it. The
	// type of its resource is not federated.
	Op *pb.Op
}

// WriteAll performs all steps in order in one commit, or none. Each step is
// checked and authorized like a call of Write or Delete. WriteAll returns the
// stored resource of each step, nil for a deletion or an expectation. WriteAll
// makes one attempt: after an ErrConflict, the caller reads and decides again.
// The errors are errors of this package, not gRPC statuses.
func (s *Service) WriteAll(ctx context.Context, steps ...Step) ([]*pb.Resource, error) {
	ops := make([]*pb.Op, len(steps))
	created := map[string]*pb.ID{}
	for i, step := range steps {
		op, err := s.stepOp(ctx, step, created)
		if err != nil {
			return nil, err
		}
		ops[i] = op
	}
	return s.cfg.Backend.Commit(ctx, ops...)
}

// stepOp returns the op of a step. The map created has the ids of the resources
// that earlier steps create, by IDString.
func (s *Service) stepOp(ctx context.Context, step Step, created map[string]*pb.ID) (*pb.Op, error) {
	switch {
	case step.Op != nil:
		return step.Op, nil
	case step.Expect != nil:
		if err := s.allowQuery(ctx, *step.Expect); err != nil {
			return nil, err
		}
		return ExpectOp(*step.Expect, step.Listed), nil
	case (step.Write == nil) == (step.Delete == nil):
		return nil, fmt.Errorf("%w step: it must either write or delete", ErrInvalid)
	case step.Delete != nil:
		id, reg, err := s.admitDelete(ctx, step.Delete)
		if err != nil {
			return nil, err
		}
		return RemoveOp(id, step.Version), s.checkWritable(reg)
	}
	r, reg, err := s.admitWrite(ctx, step.Write)
	if err != nil {
		return nil, err
	}
	if err := s.checkWritable(reg); err != nil {
		return nil, err
	}
	if step.Overwrite {
		if !canOverwrite(r) {
			return nil, fmt.Errorf("%w step: an overwrite must have no version, uid or owner", ErrInvalid)
		}
		return overwriteOp(r, true), nil
	}
	if step.Create {
		return PutOp(r, ""), s.prepareStep(ctx, r, created)
	}
	expect, err := s.prepare(ctx, reg, r)
	return PutOp(r, expect), err
}

// prepareStep completes r, which must not exist yet, and adds its id to
// created.
func (s *Service) prepareStep(ctx context.Context, r *pb.Resource, created map[string]*pb.ID) error {
	owner := created[IDString(r.Owner)] // nil unless an earlier step creates the owner of r
	if owner != nil && r.Owner.GetUid() != "" && r.Owner.GetUid() != owner.GetUid() {
		owner = nil
	}
	if owner != nil {
		r.Owner = nil // the owner is not stored yet, so prepareCreate cannot read it
	}
	err := s.prepareCreate(ctx, Eventual, r)
	if err != nil {
		if err = s.prepareCreate(ctx, Strong, r); err != nil {
			return err
		}
	}
	if owner != nil {
		r.Owner = proto.CloneOf(owner)
	}
	created[IDString(r.Id)] = r.Id
	clearStoreFields(r)
	return nil
}
