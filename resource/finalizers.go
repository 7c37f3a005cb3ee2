// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
)

// Keys of metadata that have a meaning to every Backend. Both are Consul's.
const (
	// FinalizersKey holds names divided by spaces: each of somebody who has to clean up before the resource may go.
	FinalizersKey = "finalizers"
	// DeletionKey holds the time (RFC 3339, UTC) at which a resource with finalizers was asked to go. Only a Backend sets it.
	DeletionKey = "deletionTimestamp"
)

// Finalizers returns the names that hold back the deletion of r, in order.
func Finalizers(r *pb.Resource) []string { return strings.Fields(r.GetMetadata()[FinalizersKey]) }

// Marked says whether r is marked for deletion, and since when.
func Terminating(r *pb.Resource) (since time.Time, marked bool) {
	at, marked := r.GetMetadata()[DeletionKey]
	since, _ = time.Parse(time.RFC3339, at) // what a Backend wrote can be parsed
	return since, marked
}

// AddFinalizer adds a name, without spaces, to r, which the caller owns. Adding one that is there changes nothing.
func AddFinalizer(r *pb.Resource, name string) {
	all := Finalizers(r)
	if slices.Contains(all, name) {
		return
	}
	if r.Metadata == nil {
		r.Metadata = make(map[string]string)
	}
	r.Metadata[FinalizersKey] = strings.Join(append(all, name), " ")
}

// RemoveFinalizer takes a name from r, which the caller owns. If it was the last, the key goes too.
func RemoveFinalizer(r *pb.Resource, name string) {
	left := slices.DeleteFunc(Finalizers(r), func(f string) bool { return f == name })
	if len(left) > 0 {
		r.Metadata[FinalizersKey] = strings.Join(left, " ")
		return
	}
	delete(r.Metadata, FinalizersKey)
}

// Mark returns a copy of r that is marked for deletion. It is for Backends.
func MarkTerminating(r *pb.Resource, at time.Time) *pb.Resource {
	r = proto.CloneOf(r)
	if r.Metadata == nil {
		r.Metadata = make(map[string]string)
	}
	r.Metadata[DeletionKey] = at.UTC().Format(time.RFC3339)
	return r
}
