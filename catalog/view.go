// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

type pbMessage = proto.Message

// types are those that make a catalog.
var types = []*pb.Type{NodeType, ServiceType, CheckType}

// View reads the catalog as snapshots. While nothing changes they are the same one; after a change only what changed is decoded.
// It may be used from any goroutine.
type View struct {
	backend resource.Backend
	last    atomic.Pointer[Snapshot]
	reading chan struct{} // size 1: who makes the next snapshot holds it
}

// NewView returns a View of what b has.
func NewView(b resource.Backend) *View { return &View{backend: b, reading: make(chan struct{}, 1)} }

// At returns the catalog: with resource.Strong, with everything that was acknowledged before the call.
func (v *View) At(ctx context.Context, c resource.Consistency) (*Snapshot, error) {
	if c == resource.Strong {
		// A strong read of anything: what is read here after it is fresh enough.
		if _, err := v.backend.Read(ctx, c, resource.ID(NodeType, "-")); err != nil && !errors.Is(err, resource.ErrNotFound) {
			return nil, err
		}
	}
	if s := v.last.Load(); s != nil && !v.moved(s.at) {
		return s, nil
	}
	select {
	case v.reading <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-v.reading }()
	before := v.last.Load()
	if before != nil && !v.moved(before.at) { // somebody else was quicker
		return before, nil
	}
	r, err := v.records(ctx)
	if err != nil {
		return nil, err
	}
	s, err := newSnapshot(r, before)
	if err != nil {
		return nil, err
	}
	v.last.Store(s)
	return s, nil
}

// records reads the three types as they were at one moment, or, where writes never pause, as nearly as can be.
func (v *View) records(ctx context.Context) (r records, err error) {
	for range maxListTries {
		for i, to := range []struct {
			all   *[]*pb.Resource
			index *uint64
		}{{&r.nodes, &r.at.nodes}, {&r.services, &r.at.services}, {&r.checks, &r.at.checks}} {
			if *to.all, *to.index, err = v.backend.List(ctx, resource.Eventual, resource.Query{Type: types[i]}); err != nil {
				return r, err
			}
		}
		if !v.moved(r.at) {
			break
		}
	}
	return r, nil
}

// moved says whether something was written since the types had those indexes.
func (v *View) moved(at indexes) bool {
	for i, index := range at.all() {
		if resource.Changed(v.backend, resource.Query{Type: types[i]}, index) {
			return true
		}
	}
	return false
}

func (at indexes) all() [3]uint64 { return [...]uint64{at.nodes, at.services, at.checks} }

// Wait blocks until something of the catalog was written after s, or ctx ends (its error).
func (v *View) Wait(ctx context.Context, s *Snapshot) error {
	wctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	errs := make(chan error, len(types))
	for i, after := range s.at.all() {
		wg.Go(func() { errs <- v.backend.Wait(wctx, resource.Query{Type: types[i]}, after) })
	}
	return <-errs
}
