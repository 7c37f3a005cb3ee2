// SPDX-License-Identifier: MPL-2.0

package kv

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Entry is a key with what stands under it. The value is shared: it must not be changed.
type Entry struct {
	Key   string
	Value []byte
	Flags uint64
	// Indexes of the writes that made the key and that changed it last. What a caller writes has none.
	CreateIndex, ModifyIndex uint64
}

// Store reads and writes the entries of one datacenter.
type Store struct {
	res     *resource.Service
	backend resource.Backend
}

// New returns the Store over res, which authorizes, and the Backend that res has.
func New(res *resource.Service, backend resource.Backend) (*Store, error) {
	if res == nil || backend == nil {
		return nil, errors.New("kv: the resource service and its backend are required")
	}
	return &Store{res: res, backend: backend}, nil
}

// Get returns the entry of a key, nil if there is none, and the index of the key. The caller of ctx must be allowed to read.
func (s *Store) Get(ctx context.Context, c resource.Consistency, key string) (*Entry, uint64, error) {
	if err := s.allow(ctx, resource.VerbRead); err != nil {
		return nil, 0, err
	}
	if err := resource.CheckUTF8Name(key); err != nil {
		return nil, 0, err
	}
	all, index, err := s.backend.List(ctx, c, ofKey(key))
	if err != nil || len(all) == 0 {
		return nil, index, err
	}
	e, err := entryOf(all[0])
	return &e, index, err
}

// List returns the entries whose keys begin with prefix, ordered by the bytes of their keys, and the index of the prefix.
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

// Keys returns the keys that begin with prefix, in order, and the index of the prefix. With a separator, keys that are the same up to
// the first separator after the prefix become one, which ends there.
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
		if len(keys) == 0 || keys[len(keys)-1] != key { // the same ones stand side by side
			keys = append(keys, key)
		}
	}
	return keys, index, nil
}

// WaitKey blocks until the index of a key is above after, or ctx ends (its error).
func (s *Store) WaitKey(ctx context.Context, key string, after uint64) error {
	return s.backend.Wait(ctx, ofKey(key), after)
}

// WaitPrefix blocks until the index of a prefix is above after, or ctx ends (its error).
func (s *Store) WaitPrefix(ctx context.Context, prefix string, after uint64) error {
	return s.backend.Wait(ctx, resource.Query{Type: EntryType, Prefix: prefix}, after)
}

func (s *Store) list(ctx context.Context, c resource.Consistency, prefix string) ([]*pb.Resource, uint64, error) {
	if err := s.allow(ctx, resource.VerbList); err != nil {
		return nil, 0, err
	}
	if prefix != "" {
		if err := resource.CheckUTF8Name(prefix); err != nil {
			return nil, 0, err
		}
	}
	return s.backend.List(ctx, c, resource.Query{Type: EntryType, Prefix: prefix})
}

func (s *Store) allow(ctx context.Context, verb resource.Verb) error {
	return s.res.Allow(ctx, verb, EntryType)
}

func ofKey(key string) resource.Query { return resource.Query{Type: EntryType, Name: key} }

func entryOf(r *pb.Resource) (Entry, error) {
	e := pb.KVEntry{}
	if a := r.GetData(); a.GetTypeUrl() != entryURL {
		return Entry{}, fmt.Errorf("%s holds a %q, not a %q", resource.IDString(r.GetId()), a.GetTypeUrl(), entryURL)
	}
	if err := proto.Unmarshal(r.GetData().GetValue(), &e); err != nil {
		return Entry{}, fmt.Errorf("%s: %w", resource.IDString(r.GetId()), err)
	}
	return Entry{
		Key: r.GetId().GetName(), Value: e.Value, Flags: e.Flags, CreateIndex: r.GetCreateIndex(), ModifyIndex: r.GetModifyIndex(),
	}, nil
}

// entryURL is the type URL of an entry's data, as anypb writes it.
var entryURL = func() string {
	a, err := anypb.New(&pb.KVEntry{})
	if err != nil {
		panic(err) // an empty message always has an encoding
	}
	return a.GetTypeUrl()
}()
