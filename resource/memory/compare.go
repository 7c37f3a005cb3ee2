// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// TypeChange counts the resources of one type that a restore would change.
type TypeChange struct {
	Type                                 string // group/version/Kind
	Created, Changed, Deleted, Unchanged int
}

// CompareSnapshots returns the effect of replacing the state of snapshot
// current with the state of snapshot next, sorted by type. The version and the
// index of a resource do not count, because a restore replaces them.
// CompareSnapshots reads both snapshots once, and holds one resource of each in
// memory.
func CompareSnapshots(current, next io.Reader) ([]TypeChange, error) {
	var currentErr, nextErr error
	nextResource, stop := iter.Pull(resourcesOf(next, &nextErr))
	defer stop()
	changes := map[string]*TypeChange{}
	change := func(r *pb.Resource) *TypeChange {
		name := resource.TypeString(r.Id.Type)
		if changes[name] == nil {
			changes[name] = &TypeChange{Type: name}
		}
		return changes[name]
	}
	n, more := nextResource()
	createUntil := func(key string) { // counts the resources of next before key
		for more && idKey(n.Id) < key {
			change(n).Created++
			n, more = nextResource()
		}
	}
	for c := range resourcesOf(current, &currentErr) {
		createUntil(idKey(c.Id))
		switch {
		case !more || idKey(n.Id) != idKey(c.Id):
			change(c).Deleted++
			continue
		case proto.Equal(n, c):
			change(c).Unchanged++
		default:
			change(c).Changed++
		}
		n, more = nextResource()
	}
	for ; more; n, more = nextResource() {
		change(n).Created++
	}
	if err := errors.Join(currentErr, nextErr); err != nil {
		return nil, fmt.Errorf("compare snapshots: %w", err)
	}
	out := make([]TypeChange, 0, len(changes))
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		out = append(out, *changes[name])
	}
	return out, nil
}

// errStopped ends readRecords when the consumer of a sequence stops.
var errStopped = errors.New("stopped")

// resourcesOf returns the resources of a snapshot in the order of their keys,
// without version and index. At the end of the sequence, *err is the read
// error.
func resourcesOf(snapshot io.Reader, err *error) iter.Seq[*pb.Resource] {
	return func(yield func(*pb.Resource) bool) {
		last := ""
		*err = readRecords(snapshot, func(rec record) error {
			if rec.kind != recordResource {
				return nil
			}
			key := idKey(rec.resource.Id)
			if key <= last {
				return fmt.Errorf("%s is duplicate or out of order", resource.IDString(rec.resource.Id))
			}
			last = key
			rec.resource.Version, rec.resource.ModifyIndex = "", 0
			if !yield(rec.resource) {
				return errStopped
			}
			return nil
		})
	}
}
