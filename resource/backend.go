// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"errors"

	"github.com/wanfed/wanfed/api/pb"
)

// Errors of a Backend. Callers branch on them with errors.Is; the gRPC edge maps each to one status code.
var (
	// ErrNotFound: no resource of that type, tenancy and name (or, with a uid given, not that one).
	ErrNotFound = errors.New("resource not found")
	// ErrConflict: the version expected is not the version stored (compare-and-swap failed). Read and try again.
	ErrConflict = errors.New("resource was changed meanwhile")
	// ErrUIDMismatch: the uid given is that of another resource of that name: an earlier one, mostly.
	ErrUIDMismatch = errors.New("resource has another uid")
	// ErrGroupVersion: the resource is stored as another version of its type. The error is a *GroupVersionError.
	ErrGroupVersion = errors.New("resource is stored as another group version")
	// ErrTerminating: the resource is marked for deletion; only its finalizers may be removed, and its status written.
	ErrTerminating = errors.New("resource is marked for deletion")
	// ErrNotLeader: this server is not the Raft leader (or just lost it); nothing was written.
	ErrNotLeader = errors.New("this server is not the leader")
	// ErrUnknownOutcome: leadership or time was lost while the entry was under way; it may or may not have been committed.
	ErrUnknownOutcome = errors.New("outcome of the write is unknown")
	// ErrWatchReset: the store was replaced (snapshot restore) or the watcher fell too far behind. Open a new watch.
	ErrWatchReset = errors.New("watch was reset")
	// ErrClosed: the backend was closed.
	ErrClosed = errors.New("store is closed")
)

// Consistency is how fresh a read must be.
type Consistency int

const (
	// Eventual reads what this server has applied. Reads and watches of one server never go back in time.
	Eventual Consistency = iota
	// Strong reads everything acknowledged before the call (linearizable). Of a Raft store only the leader answers it:
	// ErrNotLeader elsewhere. Routed asks the leader.
	Strong
)

// Wildcard, as partition or namespace of a List or Watch, matches every one.
const Wildcard = "*"

// AnyVersion, as expected version of a Put or Remove, matches whatever is stored, or nothing.
const AnyVersion = "*"

// MaxCascade bounds how many resources go with their owner in the step that deletes it, and ReapBatch how many in each later
// one. The former is part of what a log means: it must not change.
const (
	MaxCascade = 512
	ReapBatch  = 256
)

// Backend keeps resources. Implementations: memory (tests, caches) and raftstore (servers); Routed makes one of a follower and
// its leader. All pass resourcetest.
//
// Resources that a Backend hands out are shared and immutable: callers clone before they change one. Resources handed in
// are not kept by reference. All methods may be called from any goroutine; those with a context return when it ends.
//
// # Identity
//
// A resource has a uid from its creation to its deletion; no write changes it. Group, kind, tenancy and name are what it is
// stored under: the versions of a group share names. It is stored as one of them, and a write may make it another.
//
// # Consistency
//
// What a server has applied never goes back in time, in Read, List, ListByOwner, Watch and Wait alike: what an event, or an
// answer, has shown, every later call shows, or something newer. Across servers and restarts that holds of strong reads alone.
//
// # Indexes
//
// The index of a query is the store index of the last write to anything that it selects, in any group version, deletions
// included; at least 1. It never goes back, with one server's state, restarts and restores included, and no write moves it without
// moving it above all that it was. For a whole type it is exact. Else it may be higher, never lower: of what was deleted only
// the latest are remembered by name, and forgetting the others moves the index of every query of their type once.
//
// # Deletion
//
// Deleting a resource deletes what it owns, and what that owns: up to MaxCascade resources in the same step. For each owner
// that has more, the step leaves a resource of TombstoneType, and who leads takes the rest in steps of ReapBatch, also after a
// crash: see Reap. Nothing can become the property of a deleted resource meanwhile.
//
// A resource with finalizers (see Finalizers) is not deleted but marked: its metadata get DeletionKey. It can then only lose
// finalizers, and have its status written; the write that leaves none deletes it. A copy of the primary's goes when
// the primary's does: neither its finalizers nor its owner matter.
type Backend interface {
	// Read returns the resource with the id's type, tenancy and name. With a uid in the id, only that one. If it is stored
	// as another version of the type, the error is a *GroupVersionError, which has it.
	Read(ctx context.Context, c Consistency, id *pb.ID) (*pb.Resource, error)

	// List returns the resources that q selects, ordered by tenancy and by the bytes of their names, and the index of q.
	List(ctx context.Context, c Consistency, q Query) ([]*pb.Resource, uint64, error)

	// ListByOwner returns the resources that owner (by uid) owns, in order of type, tenancy and name, as this server has
	// applied them. It also finds what a deleted owner has left, as long as that is there.
	ListByOwner(ctx context.Context, owner *pb.ID) ([]*pb.Resource, error)

	// Commit applies all ops in order in one step, or none: the first op whose expectation fails fails the batch, with
	// ErrConflict, ErrUIDMismatch, ErrGroupVersion, ErrTerminating, or ErrNotFound for an owner that is not there. It returns the
	// stored resource of each op, nil for a Remove or an Expect; for a Put that removed the last finalizer, the resource as it was last.
	// When it returns nil error the batch is durable.
	//
	// A Put stores status and generation as they are given; it is for the writer to leave the generation alone when the
	// data is the same. An Overwrite does so itself, leaves uid, owner and status, and is refused only by a mark. Over another resource's uid it is refused, but for AnyVersion: that deletes the other first. An
	// op that would change nothing (a Replica equal to what is stored, an Overwrite that keeps metadata with the same data, removing what is not there) writes nothing. An Expect
	// sees what the ops before it have done.
	Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error)

	// Watch sends what List would return as upserts, end-of-snapshot, and then every change in commit order. No change
	// between snapshot and events is lost or doubled. A resource that becomes another version of its type is a delete of
	// the one and an upsert of the other. When a snapshot is restored the watch ends with ErrWatchReset.
	Watch(q Query) (Watch, error)

	// Wait returns when the index of q is above after, or ctx ends (its error). It costs nothing while it waits, whatever
	// else is written. Blocking queries are a Wait with the index that the last List returned, and a List.
	Wait(ctx context.Context, q Query, after uint64) error
}

// Query selects resources. Group and kind are required; without a group version, every version is selected. A nil tenancy is
// the default one. Name selects that name alone, Prefix the names that begin with it; not both.
type Query struct {
	Type    *pb.Type
	Tenancy *pb.Tenancy
	Name    string
	Prefix  string
	// MaxBytes, if not 0, has a List fail with ErrTooLarge, before it makes anything, when its resources, encoded, are surely more.
	MaxBytes int
}

// Watch is one subscription. Next blocks until an event, ErrWatchReset, ErrClosed, or the context's end.
// It is for one goroutine; Close may be called from any, and ends Next.
type Watch interface {
	Next(ctx context.Context) (*pb.WatchEvent, error)
	Close()
}
