// SPDX-License-Identifier: MPL-2.0

package kv

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// txn is a transaction under way: what was read, and what its ops make of it. It reads and writes nothing itself, but for commit.
type txn struct {
	reads   []txnRead
	trees   map[string]bool // prefixes that were read
	slots   map[string]*slot
	results []result
	again   int // bytes of entries that are returned another time
}

// txnRead is a query with its answer.
type txnRead struct {
	query  resource.Query
	listed []*pb.Resource
	index  uint64
}

const (
	// maxAgain bounds what is returned another time, in bytes: as many gets of the largest value as a request may have.
	maxAgain = 128 * (MaxValue + resource.MaxUTF8NameLen + entrySize)
	// entrySize is what an entry takes besides its key and value, in bytes.
	entrySize = 128
)

// slot is one key.
type slot struct {
	key   string
	named bool         // by an op, not only by the prefix of a tree
	blind bool         // was is not read
	was   *pb.Resource // as it was read; nil if there was none

	now     *Entry // what the ops so far have made of it; nil: none
	written bool   // now is to be written
	gone    bool   // was is to be deleted, also if now is to be written
	told    bool   // it is returned
}

// result is what an op returns: the entry as the op saw it.
type result struct {
	entry Entry
	fresh bool // it gets its indexes by the commit
}

func (t *txn) slot(key string) *slot {
	if t.slots[key] == nil {
		t.slots[key] = &slot{key: key}
	}
	return t.slots[key]
}

// moved says whether something that was read first was written before the last was read.
func (t *txn) moved(b resource.Backend) bool {
	return len(t.reads) > 1 && slices.ContainsFunc(t.reads, func(r txnRead) bool { return resource.Changed(b, r.query, r.index) })
}

// run does ops on what was read.
func (t *txn) run(ops []Op) (failed []Failure, err error) {
	for _, sl := range t.slots {
		if sl.was != nil {
			e, err := entryOf(sl.was)
			if err != nil {
				return nil, err
			}
			sl.now = &e
		}
	}
	for i, op := range ops {
		if why := t.do(op); why != "" {
			failed = append(failed, Failure{i, why})
		}
		if t.again > maxAgain {
			return nil, fmt.Errorf("%w transaction: it returns the same keys again and again, more than %d bytes of them: ask for each tree once", resource.ErrInvalid, maxAgain)
		}
	}
	return failed, nil
}

// do does one op, and returns why it failed.
func (t *txn) do(op Op) (why string) {
	if op.Verb.tree() {
		t.doTree(op)
		return ""
	}
	sl := t.slot(op.Key)
	switch op.Verb {
	case VerbSet:
		t.set(sl, op)
	case VerbCAS:
		if sl.index() != op.Index || sl.written {
			return fmt.Sprintf("failed to set key %q, index is stale", op.Key)
		}
		t.set(sl, op)
	case VerbDelete:
		sl.remove()
	case VerbDeleteCAS:
		if sl.now != nil && (sl.written || sl.now.ModifyIndex != op.Index) {
			return fmt.Sprintf("failed to delete key %q, index is stale", op.Key)
		}
		sl.remove()
	case VerbGet, VerbGetOrEmpty:
		switch {
		case sl.now != nil:
			t.add(sl, *sl.now)
		case op.Verb == VerbGet:
			return fmt.Sprintf("key %q doesn't exist", op.Key)
		default:
			t.results = append(t.results, result{entry: Entry{Key: op.Key}})
		}
	case VerbCheckIndex:
		switch {
		case sl.now == nil:
			return fmt.Sprintf("key %q doesn't exist", op.Key)
		case sl.written:
			return fmt.Sprintf("key %q is written by an earlier operation of the transaction", op.Key)
		case sl.now.ModifyIndex != op.Index:
			return fmt.Sprintf("key %q has ModifyIndex %d, not %d", op.Key, sl.now.ModifyIndex, op.Index)
		}
		t.add(sl, withoutValue(*sl.now))
	case VerbCheckNotExists:
		if sl.now != nil {
			return fmt.Sprintf("key %q exists", op.Key)
		}
	}
	return ""
}

func (t *txn) doTree(op Op) {
	for _, sl := range t.sorted() {
		if !strings.HasPrefix(sl.key, op.Key) || sl.now == nil {
			continue
		}
		if op.Verb == VerbDeleteTree {
			sl.remove()
		} else {
			t.add(sl, *sl.now)
		}
	}
}

// sorted returns the slots in order of the bytes of their keys.
func (t *txn) sorted() []*slot {
	all := make([]*slot, 0, len(t.slots))
	for _, sl := range t.slots {
		all = append(all, sl)
	}
	slices.SortFunc(all, func(a, b *slot) int { return strings.Compare(a.key, b.key) })
	return all
}

func (t *txn) set(sl *slot, op Op) {
	sl.now, sl.written = &Entry{Key: op.Key, Value: op.Value, Flags: op.Flags}, true
	t.add(sl, withoutValue(*sl.now))
}

func (t *txn) add(sl *slot, e Entry) {
	if sl.told {
		t.again += len(e.Key) + len(e.Value) + entrySize
	}
	sl.told = true
	t.results = append(t.results, result{e, sl.written})
}

// index is the ModifyIndex of a key; 0 if there is none.
func (s *slot) index() uint64 {
	if s.now == nil {
		return 0
	}
	return s.now.ModifyIndex
}

func (s *slot) remove() { s.now, s.written, s.gone = nil, false, s.was != nil || s.blind }

func withoutValue(e Entry) Entry {
	e.Value = nil
	return e
}

// changes says whether the ops change anything.
func (t *txn) changes() bool {
	for _, sl := range t.slots {
		if sl.written || sl.gone {
			return true
		}
	}
	return false
}

// commit makes the changes, if what was read is as it was, and returns what is stored then, by key. Else resource.ErrConflict.
func (t *txn) commit(ctx context.Context, res *resource.Service) (map[string]*pb.Resource, error) {
	var steps []resource.Step
	for _, r := range t.reads {
		steps = append(steps, resource.Step{Expect: &r.query, Listed: r.listed})
	}
	at := map[string]int{} // of the writes among the steps
	for _, sl := range t.sorted() {
		was := sl.was
		if sl.gone {
			if sl.written && len(resource.Finalizers(was)) > 0 { // it would stay, marked
				return nil, fmt.Errorf("set %q after its deletion in one transaction: %w", sl.key, resource.ErrTerminating)
			}
			steps = append(steps, resource.Step{Delete: resource.ID(EntryType, sl.key), Version: was.GetVersion()}) // blind: of any version
			was = nil
		}
		if sl.written {
			step, err := putStep(*sl.now, was)
			if err != nil {
				return nil, err
			}
			if sl.blind {
				step.Create, step.Overwrite = false, true
			}
			at[sl.key] = len(steps)
			steps = append(steps, *step)
		}
	}
	out, err := res.WriteAll(ctx, steps...)
	if err != nil {
		return nil, err
	}
	stored := make(map[string]*pb.Resource, len(at))
	for key, i := range at {
		stored[key] = out[i]
	}
	return stored, nil
}

// answers returns the entries that the ops return, once what they write is stored.
func (t *txn) answers(stored map[string]*pb.Resource) []Entry {
	var index uint64 // of the commit; what was there already keeps its own
	for _, r := range stored {
		index = max(index, r.GetModifyIndex())
	}
	out := make([]Entry, len(t.results))
	for i, r := range t.results {
		out[i] = r.entry
		if r.fresh {
			out[i].CreateIndex, out[i].ModifyIndex = index, index
			if is := stored[r.entry.Key]; is != nil {
				out[i].CreateIndex, out[i].ModifyIndex = is.GetCreateIndex(), is.GetModifyIndex()
			}
		}
	}
	return out
}
