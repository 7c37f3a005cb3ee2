// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// feed puts what is committed of federated records into the log, in the order of commits, until ctx ends or a watch does.
//
// Each kind has a watch of its own, and a commit may change several. The store publishes one commit after the other, so once a
// round of polls has seen anything of a commit, the next round sees all that came before: only then it is passed on. Of
// the last commit it sees all too, but in the moment in which that is published; then the log has it in two parts.
func (s *Source) feed(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	watches, index, err := s.open(ctx)
	defer func() {
		for _, w := range watches {
			w.Close()
		}
	}()
	if err != nil {
		return err
	}
	s.log.start(index)
	defer s.log.stop()
	wake := make(chan struct{}, 1)
	for _, k := range s.kinds {
		wg.Go(func() { resource.Notify(ctx, s.cfg.Backend, k.everywhere(), wake) })
	}
	var seen []event
	for {
		if seen, err = poll(watches, seen); err != nil {
			return err
		}
		if len(seen) == 0 {
			select {
			case <-wake:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		complete := slices.MaxFunc(seen, event.compare).index
		if seen, err = poll(watches, seen); err != nil {
			return err
		}
		var commits []*commit
		commits, seen = cut(s.kinds, seen, complete)
		s.log.append(commits...)
	}
}

// open opens the watches, reads their snapshots, which nobody needs here, and returns an index that the store had reached
// before.
func (s *Source) open(ctx context.Context) (watches []resource.Watch, index uint64, err error) {
	for _, k := range s.kinds {
		_, at, err := s.cfg.Backend.List(ctx, resource.Eventual, k.everywhere())
		if err != nil {
			return watches, 0, err
		}
		index = max(index, at)
	}
	for _, k := range s.kinds {
		w, err := s.cfg.Backend.Watch(k.everywhere())
		if err != nil {
			return watches, 0, err
		}
		watches = append(watches, w)
		for {
			e, err := w.Next(ctx)
			if err != nil {
				return watches, 0, err
			}
			if e.GetEndOfSnapshot() != nil {
				break
			}
		}
	}
	return watches, index, nil
}

// event is a change with the index of its commit.
type event struct {
	change
	index uint64
}

func (e event) compare(other event) int {
	switch {
	case e.index < other.index:
		return -1
	case e.index > other.index:
		return 1
	}
	return 0
}

// ended is a context by which Watch.Next returns what there is, and does not wait.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// poll appends what the watches have now.
func poll(watches []resource.Watch, seen []event) ([]event, error) {
	for _, w := range watches {
		for {
			e, err := w.Next(ended)
			if errors.Is(err, context.Canceled) {
				break
			}
			if err != nil {
				return seen, err
			}
			if ev, ok := eventOf(e); ok {
				seen = append(seen, ev)
			}
		}
	}
	return seen, nil
}

func eventOf(e *pb.WatchEvent) (event, bool) {
	if r := e.GetUpsert().GetResource(); r != nil {
		return event{change{kind: kindOf(r.GetId().GetType()), put: outgoing(r)}, r.GetModifyIndex()}, true
	}
	if r := e.GetDelete().GetResource(); r != nil {
		return event{change{kind: kindOf(r.GetId().GetType()), gone: r.GetId()}, r.GetModifyIndex()}, true
	}
	return event{}, false
}

// cut makes commits of the events up to an index, and returns those that are left. Events of one kind are in order.
func cut(kinds []kind, seen []event, upTo uint64) (commits []*commit, left []event) {
	slices.SortStableFunc(seen, event.compare)
	for len(seen) > 0 && seen[0].index <= upTo {
		n := slices.IndexFunc(seen, func(e event) bool { return e.index != seen[0].index })
		if n < 0 {
			n = len(seen)
		}
		commits = append(commits, newCommit(kinds, seen[0].index, changesOf(seen[:n])))
		seen = seen[n:]
	}
	return commits, slices.Clone(seen)
}

// changesOf returns the changes of one commit, in an order that is the same on all servers. A record that became one of
// another group version was seen as gone and as come: it came.
func changesOf(events []event) []change {
	slices.SortStableFunc(events, func(a, b event) int { return a.kind.compare(b.kind) })
	last := map[string]int{} // where a uid was last put
	for i, e := range events {
		if e.put != nil {
			last[e.put.Id.GetUid()] = i
		}
	}
	out := make([]change, 0, len(events))
	for i, e := range events {
		if at, put := last[e.id().GetUid()]; e.put != nil || !put || at < i {
			out = append(out, e.change)
		}
	}
	return out
}

// outgoing is the copy of a resource that a secondary stores: no status, and our index as the primary's.
func outgoing(r *pb.Resource) *pb.Resource {
	return &pb.Resource{
		Id: r.Id, Owner: r.Owner, Generation: r.Generation, Metadata: r.Metadata, Data: r.Data,
		PrimaryModifyIndex: r.ModifyIndex,
	}
}
