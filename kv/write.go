// SPDX-License-Identifier: MPL-2.0

package kv

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// DeleteTreeBatch is how many keys DeleteTree deletes in one commit.
const DeleteTreeBatch = 4096

// Only says on which condition a key is changed. The zero value is none.
type Precondition struct {
	Required bool
	// Index is the ModifyIndex that the key must have. 0: it must not exist.
	Index uint64
}

// If is the condition that a key has that ModifyIndex, or, for 0, that there is none.
func IfIndex(index uint64) Precondition { return Precondition{Required: true, Index: index} }

func (o Precondition) holds(r *pb.Resource) bool { return !o.Required || o.Index == r.GetModifyIndex() }

// Put writes key, value and flags of e; where they are there already it changes nothing. done is false when the condition does not hold;
// nothing was written then.
func (s *Store) Put(ctx context.Context, e Entry, only Precondition) (done bool, err error) {
	if !only.Required {
		if done, err := s.putOver(ctx, e); !errors.Is(err, resource.ErrUnsupported) {
			return done, err
		}
	}
	return s.change(ctx, e.Key, func(stored *pb.Resource) (*resource.Step, bool, error) {
		if !only.holds(stored) {
			return nil, false, nil
		}
		step, err := putStep(e, stored)
		if err == nil && stored != nil && proto.Equal(step.Write.Data, stored.Data) {
			return nil, true, nil // it changes nothing
		}
		return step, true, err
	})
}

// putOver writes e over whatever is there. Others who write the same key cost it nothing.
func (s *Store) putOver(ctx context.Context, e Entry) (done bool, err error) {
	if err := s.allow(ctx, resource.VerbWrite); err != nil {
		return false, err
	}
	if err := resource.CheckUTF8Name(e.Key); err != nil {
		return false, err
	}
	step, err := putStep(e, nil)
	if err != nil {
		return false, err
	}
	step.Create, step.Overwrite = false, true
	_, err = s.res.WriteAll(ctx, *step)
	return err == nil, err
}

// Delete deletes a key. That it is not there is no error, and done. With a condition, done is false when the key is there with
// another ModifyIndex.
func (s *Store) Delete(ctx context.Context, key string, only Precondition) (done bool, err error) {
	return s.change(ctx, key, func(stored *pb.Resource) (*resource.Step, bool, error) {
		if only.Required && (stored == nil || !only.holds(stored)) {
			return nil, stored == nil, nil
		}
		return deleteStep(key, stored, only), true, nil
	})
}

// change commits the step that decide makes of the stored resource, nil if there is none. Without a step, decide's answer is
// the answer. What is read first may be old: a commit proves that it was not, and without one it is read again.
func (s *Store) change(ctx context.Context, key string, decide func(*pb.Resource) (*resource.Step, bool, error)) (bool, error) {
	if err := s.allow(ctx, resource.VerbWrite); err != nil {
		return false, err
	}
	for c := resource.Eventual; ; c = resource.Strong {
		stored, err := s.stored(ctx, c, key)
		if err != nil {
			return false, err
		}
		step, done, err := decide(stored)
		switch {
		case err != nil:
			return false, err
		case step == nil && c == resource.Strong:
			return done, nil
		case step == nil:
			continue
		}
		if _, err = s.res.WriteAll(ctx, *step); !errors.Is(err, resource.ErrConflict) {
			return err == nil && done, err
		}
	}
}

// stored returns the resource of a key, nil if there is none.
func (s *Store) stored(ctx context.Context, c resource.Consistency, key string) (*pb.Resource, error) {
	if err := resource.CheckUTF8Name(key); err != nil {
		return nil, err
	}
	r, err := s.backend.Read(ctx, c, resource.ID(EntryType, key))
	if errors.Is(err, resource.ErrNotFound) {
		return nil, nil
	}
	return r, err
}

func putStep(e Entry, stored *pb.Resource) (*resource.Step, error) {
	data, err := anypb.New(&pb.KVEntry{Value: e.Value, Flags: e.Flags})
	if err != nil {
		return nil, fmt.Errorf("encode %q: %w", e.Key, err)
	}
	r := &pb.Resource{Id: resource.ID(EntryType, e.Key), Data: data, Metadata: stored.GetMetadata(), Version: stored.GetVersion()}
	return &resource.Step{Write: r, Create: stored == nil}, nil
}

func deleteStep(key string, stored *pb.Resource, only Precondition) *resource.Step {
	st := &resource.Step{Delete: resource.ID(EntryType, key)}
	if only.Required {
		st.Version = stored.GetVersion()
	}
	return st
}

// DeleteTree deletes every key that begins with prefix; an empty one is all keys. Up to DeleteTreeBatch keys go in one commit; above,
// in several, in order of their keys, and what was deleted before an error stays so. Keys that are made while it runs may stay.
func (s *Store) DeleteTree(ctx context.Context, prefix string) error {
	if err := s.allow(ctx, resource.VerbDelete); err != nil {
		return err
	}
	all, _, err := s.list(ctx, resource.Strong, prefix)
	if err != nil {
		return err
	}
	for batch := range slices.Chunk(all, DeleteTreeBatch) {
		steps := make([]resource.Step, len(batch))
		for i, r := range batch {
			steps[i].Delete = r.GetId()
		}
		if _, err := s.res.WriteAll(ctx, steps...); err != nil {
			return err
		}
	}
	return nil
}
