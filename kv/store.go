// SPDX-License-Identifier: MPL-2.0

package kv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/session"
)

// EntryType is the type of entries. It is not federated.
var EntryType = &pb.Type{Group: "kv", GroupVersion: "v1", Kind: "Entry"}

const (
	// MaxValue bounds a value, in bytes.
	MaxValue = 512 << 10
	// DeleteTreeBatch is the number of keys per commit of DeleteTree.
	DeleteTreeBatch = 4096
)

// Register adds EntryType to a registry.
func Register(r *resource.Registry) error {
	return r.Register(resource.Registration{
		Type: EntryType, Message: &pb.KVEntry{}, CheckName: resource.CheckUTF8Name,
		Validate: resource.ValidateData(checkEntry),
	})
}

func checkEntry(e *pb.KVEntry) error {
	if n := len(e.Value); n > MaxValue {
		return fmt.Errorf("data.value has %d bytes: more than %d", n, MaxValue)
	}
	return nil
}

// Entry is a key with its value. The value is shared and must not be changed.
type Entry struct {
	Key   string
	Value []byte
	Flags uint64
	// Session is the id of the session that has locked the key. Empty: none. Put
	// ignores Session and LockIndex.
	Session string
	// LockIndex is the number of times that the key was locked.
	LockIndex uint64
	// CreateIndex and ModifyIndex are the indexes of the first and the last
	// write of the key. Put ignores both.
	CreateIndex, ModifyIndex uint64
}

// Precondition is the condition of a write. Its zero value always holds.
type Precondition struct {
	Required bool
	// Index is the required ModifyIndex. 0: the key must not exist.
	Index uint64
}

// IfIndex returns the condition that the ModifyIndex of a key is index.
// IfIndex(0) requires that the key does not exist.
func IfIndex(index uint64) Precondition { return Precondition{Required: true, Index: index} }

// Store reads and writes the entries of one datacenter.
type Store struct {
	res     *resource.Service
	backend resource.Backend
}

// New returns a Store that writes through res and reads from backend. The
// argument backend must be the Backend of res.
func New(res *resource.Service, backend resource.Backend) (*Store, error) {
	if res == nil || backend == nil {
		return nil, errors.New("kv: the resource service and its backend are required")
	}
	return &Store{res: res, backend: backend}, nil
}

// Get returns the entry and the index of a key. The entry is nil if the key
// does not exist. The peer in ctx must have permission to read.
func (s *Store) Get(ctx context.Context, c resource.Consistency, key string) (*Entry, uint64, error) {
	if err := s.admit(ctx, resource.VerbRead, key); err != nil {
		return nil, 0, err
	}
	all, index, err := s.backend.List(ctx, c, keyQuery(key))
	if err != nil || len(all) == 0 {
		return nil, index, err
	}
	e, err := entryOf(all[0])
	return &e, index, err
}

// List returns the entries whose keys begin with prefix, in byte order of their
// keys, and the index of the prefix.
func (s *Store) List(ctx context.Context, c resource.Consistency, prefix string) ([]Entry, uint64, error) {
	all, index, err := s.list(ctx, c, prefix)
	if err != nil {
		return nil, 0, err
	}
	entries := make([]Entry, len(all))
	for i, r := range all {
		if entries[i], err = entryOf(r); err != nil {
			return nil, 0, err
		}
	}
	return entries, index, nil
}

// Keys returns the keys that begin with prefix, in byte order, and the index of
// the prefix. If separator is not empty, Keys cuts each key after the first
// separator that follows the prefix, and returns equal results once.
func (s *Store) Keys(ctx context.Context, c resource.Consistency, prefix, separator string) ([]string, uint64, error) {
	all, index, err := s.list(ctx, c, prefix)
	if err != nil {
		return nil, 0, err
	}
	var keys []string
	for _, r := range all {
		key := r.GetId().GetName()
		if separator != "" {
			if i := strings.Index(key[len(prefix):], separator); i >= 0 {
				key = key[:len(prefix)+i+len(separator)]
			}
		}
		if len(keys) == 0 || keys[len(keys)-1] != key { // equal keys are adjacent
			keys = append(keys, key)
		}
	}
	return keys, index, nil
}

// WaitKey blocks until the index of a key exceeds after. If ctx ends first,
// WaitKey returns the context's error.
func (s *Store) WaitKey(ctx context.Context, key string, after uint64) error {
	return s.backend.Wait(ctx, keyQuery(key), after)
}

// WaitPrefix blocks until the index of a prefix exceeds after. If ctx ends
// first, WaitPrefix returns the context's error.
func (s *Store) WaitPrefix(ctx context.Context, prefix string, after uint64) error {
	return s.backend.Wait(ctx, prefixQuery(prefix), after)
}

func (s *Store) list(ctx context.Context, c resource.Consistency, prefix string) ([]*pb.Resource, uint64, error) {
	if err := s.allow(ctx, resource.VerbList, prefix); err != nil {
		return nil, 0, err
	}
	if prefix != "" {
		if err := resource.CheckUTF8Name(prefix); err != nil {
			return nil, 0, err
		}
	}
	return s.backend.List(ctx, c, prefixQuery(prefix))
}

func (s *Store) allow(ctx context.Context, verb resource.Verb, name string) error {
	return s.res.Allow(ctx, verb, EntryType, name)
}

// admit authorizes a request for one key and checks the key.
func (s *Store) admit(ctx context.Context, verb resource.Verb, key string) error {
	if err := s.allow(ctx, verb, key); err != nil {
		return err
	}
	return resource.CheckUTF8Name(key)
}

// access returns the verb that authorizes op. A deletion of a tree also needs
// the permission to delete each key, which WriteAll checks.
func (op Op) access(writes bool) resource.Verb {
	switch {
	case writes:
		return resource.VerbWrite
	case op.Verb.ofTree():
		return resource.VerbList
	}
	return resource.VerbRead
}

func keyQuery(key string) resource.Query { return resource.Query{Type: EntryType, Name: key} }

func prefixQuery(prefix string) resource.Query {
	return resource.Query{Type: EntryType, Prefix: prefix}
}

// Put writes key, value and flags of e. If they equal the stored ones, Put
// changes nothing. If the condition does not hold, Put writes nothing and
// returns false.
func (s *Store) Put(ctx context.Context, e Entry, cond Precondition) (done bool, err error) {
	op := Op{Verb: VerbSet, Key: e.Key, Value: e.Value, Flags: e.Flags}
	if cond.Required {
		op.Verb, op.Index = VerbCAS, cond.Index
	}
	return s.perform(ctx, op)
}

// Delete deletes a key. If the key does not exist, Delete returns true. If the
// condition is required and the key has another ModifyIndex, Delete deletes
// nothing and returns false.
func (s *Store) Delete(ctx context.Context, key string, cond Precondition) (done bool, err error) {
	op := Op{Verb: VerbDelete, Key: key}
	if cond.Required {
		op.Verb, op.Index = VerbDeleteCAS, cond.Index
	}
	return s.perform(ctx, op)
}

// Lock writes key, value and flags of e, and locks the key for session e.Session.
// If the session has locked the key already, Lock writes only value and flags.
// Lock writes nothing and returns false if another session has locked the key,
// or during a lock delay. It returns ErrNoSession if the session does not exist.
func (s *Store) Lock(ctx context.Context, e Entry) (done bool, err error) {
	if err := s.admit(ctx, resource.VerbWrite, e.Key); err != nil {
		return false, err
	}
	op := Op{Verb: VerbLock, Key: e.Key, Value: e.Value, Flags: e.Flags, Session: e.Session}
	_, failures, err := s.Txn(ctx, resource.Eventual, []Op{op})
	if failures != nil && failures[0].Reason == noSession(e.Session) {
		return false, fmt.Errorf("%w %q", ErrNoSession, e.Session)
	}
	return err == nil && failures == nil, err
}

// Unlock writes key, value and flags of e, and removes the lock of session
// e.Session. It writes nothing and returns false if that session has not locked
// the key.
func (s *Store) Unlock(ctx context.Context, e Entry) (done bool, err error) {
	return s.perform(ctx, Op{Verb: VerbUnlock, Key: e.Key, Value: e.Value, Flags: e.Flags, Session: e.Session})
}

// ErrNoSession is the error of Lock for a session that does not exist. The text
// is Consul's.
var ErrNoSession = errors.New("invalid session")

// perform performs a transaction of one op. done is false if the op fails.
func (s *Store) perform(ctx context.Context, op Op) (done bool, err error) {
	if err := s.admit(ctx, resource.VerbWrite, op.Key); err != nil {
		return false, err
	}
	_, failures, err := s.Txn(ctx, resource.Eventual, []Op{op})
	return err == nil && failures == nil, err
}

// DeleteTree deletes every key that begins with prefix. An empty prefix matches
// all keys. Each commit deletes at most DeleteTreeBatch keys, in order of the
// keys. An error does not undo earlier commits. Concurrently created keys may
// remain.
func (s *Store) DeleteTree(ctx context.Context, prefix string) error {
	if err := s.allow(ctx, resource.VerbDelete, prefix); err != nil {
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

// putStep returns the step that writes e. The step fails unless the store still
// has the version in stored, or, if stored is nil, unless the key does not
// exist. With overwrite and without stored, the step writes in any case.
func putStep(e Entry, stored *pb.Resource, overwrite bool) (*resource.Step, error) {
	data, err := anypb.New(&pb.KVEntry{Value: e.Value, Flags: e.Flags})
	if err != nil {
		return nil, fmt.Errorf("encode %q: %w", e.Key, err)
	}
	r := &pb.Resource{
		Id: resource.ID(EntryType, e.Key), Data: data, Version: stored.GetVersion(),
		Metadata: session.WithLock(stored.GetMetadata(), session.Lock{Session: e.Session, Index: e.LockIndex}),
	}
	return &resource.Step{Write: r, Create: stored == nil && !overwrite, Overwrite: overwrite}, nil
}

func entryOf(r *pb.Resource) (Entry, error) {
	e, err := resource.Decode[*pb.KVEntry](r)
	if err != nil {
		return Entry{}, err
	}
	lock := session.LockOf(r)
	return Entry{
		Key: r.GetId().GetName(), Value: e.Value, Flags: e.Flags, Session: lock.Session, LockIndex: lock.Index,
		CreateIndex: r.GetCreateIndex(), ModifyIndex: r.GetModifyIndex(),
	}, nil
}
