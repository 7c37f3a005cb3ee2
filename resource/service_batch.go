// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
)

// Step is one change that WriteAll makes: a write or a deletion. Or it makes none, and says what must be.
type Step struct {
	// Write is what Service.Write takes. With a version it is a compare-and-swap. Its owner may be what an earlier step
	// creates, and then needs no uid.
	Write *pb.Resource
	// New: Write must create it; there must be none.
	Create bool
	// Over: Write, which has no version, uid or owner, goes over whatever is stored when the commit is applied, and that keeps its
	// metadata. It costs no read, and no ErrConflict.
	Overwrite bool
	// Delete names what is deleted instead; Version, if given, is the version that it must have.
	Delete  *pb.ID
	Version string
	// Expect is a query of which a List returned Listed: else ErrConflict.
	Expect *Query
	Listed []*pb.Resource
}

// Allow says whether the caller of ctx may do verb with resources of a type whose Authorize looks at the type alone: nil, or an ErrDenied. It is
// for code of a server that then asks the Backend itself.
func (s *Service) Allow(ctx context.Context, verb Verb, typ *pb.Type) error {
	peer, reg, err := s.admit(ctx, typ)
	if err != nil {
		return err
	}
	return s.authorize(reg, peer, verb, &pb.Resource{Id: &pb.ID{Type: typ}})
}

// WriteAll makes all steps in one commit, in order, or none. Each is checked and authorized as Write and Delete do. It returns
// the stored resource of each, nil for a deletion or what is only expected.
//
// It tries once: ErrConflict when something of it was written meanwhile, or is otherwise than the steps say. The caller reads
// again, and decides again. Errors are this package's, not gRPC's.
func (s *Service) WriteAll(ctx context.Context, steps ...Step) ([]*pb.Resource, error) {
	ops := make([]*pb.Op, len(steps))
	made := map[string]*pb.ID{}
	for i, step := range steps {
		op, err := s.opOf(ctx, step, made)
		if err != nil {
			return nil, err
		}
		ops[i] = op
	}
	return s.cfg.Backend.Commit(ctx, ops...)
}

// opOf makes the op of a step. made has what earlier steps create, by madeKey.
func (s *Service) opOf(ctx context.Context, step Step, made map[string]*pb.ID) (*pb.Op, error) {
	if step.Expect != nil {
		if err := s.Allow(ctx, VerbList, step.Expect.Type); err != nil {
			return nil, err
		}
		return ExpectOp(*step.Expect, step.Listed), nil
	}
	if (step.Write == nil) == (step.Delete == nil) {
		return nil, fmt.Errorf("%w step: it must write or delete, and not both", ErrInvalid)
	}
	if step.Delete != nil {
		return s.deletion(ctx, &pb.DeleteRequest{Id: step.Delete, Version: step.Version})
	}
	r, reg, err := s.admitWrite(ctx, step.Write)
	if err != nil {
		return nil, err
	}
	if err := s.checkWritable(reg); err != nil {
		return nil, err
	}
	if step.Overwrite {
		if !overwrites(r) {
			return nil, fmt.Errorf("%w step: what is written over whatever is stored has no version, uid or owner", ErrInvalid)
		}
		return overwriteOp(r, true), nil
	}
	expect := ""
	if step.Create {
		err = s.prepareNew(ctx, r, made)
	} else {
		expect, err = s.prepareFresh(ctx, reg, r)
	}
	if err != nil {
		return nil, err
	}
	return PutOp(r, expect), nil
}

// prepareNew completes r, of which there is none yet.
func (s *Service) prepareNew(ctx context.Context, r *pb.Resource, made map[string]*pb.ID) error {
	owner := r.Owner
	madeOwner := made[madeKey(owner)]
	if madeOwner != nil && (owner.GetUid() == "" || owner.GetUid() == madeOwner.GetUid()) {
		r.Owner = nil // it is not stored yet: prepareCreate would not find it
	}
	err := s.prepareCreate(ctx, Eventual, r)
	if err != nil {
		err = s.prepareCreate(ctx, Strong, r)
	}
	if err != nil {
		return err
	}
	if r.Owner == nil && owner != nil {
		r.Owner = proto.CloneOf(madeOwner)
	}
	made[madeKey(r.Id)] = r.Id
	cleanIndexes(r)
	return nil
}

// madeKey tells resources of one WriteAll apart, whatever their uids.
func madeKey(id *pb.ID) string {
	if id == nil {
		return ""
	}
	return IDString(id)
}
