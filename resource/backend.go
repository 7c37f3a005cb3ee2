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
	// Strong reads everything acknowledged before the call (linearizable). Only the leader answers it: ErrNotLeader elsewhere.
	Strong
)

// Wildcard, as partition or namespace of a List or Watch, matches every one.
const Wildcard = "*"

// AnyVersion, as expected version of a Put or Remove, matches whatever is stored, or nothing.
const AnyVersion = "*"

// Backend keeps resources. Implementations: memory (tests, caches) and raftstore (servers). All pass resourcetest.
//
// Resources that a Backend hands out are shared and immutable: callers clone before they change one. Resources handed in
// are not kept by reference. All methods may be called from any goroutine; those with a context return when it ends.
type Backend interface {
	// Read returns the resource with the id's type, tenancy and name. With a uid in the id, only that one.
	Read(ctx context.Context, c Consistency, id *pb.ID) (*pb.Resource, error)

	// List returns the resources of a type whose name begins with prefix, ordered by tenancy and name, and the index up to
	// which it is true: the store index of the last write to that type (at least 1).
	List(ctx context.Context, c Consistency, q Query) ([]*pb.Resource, uint64, error)

	// ListByOwner returns the resources that owner (by uid) owns.
	ListByOwner(ctx context.Context, owner *pb.ID) ([]*pb.Resource, error)

	// Commit applies all ops in order in one step, or none: the first op whose expectation fails fails the batch with
	// ErrConflict. It returns the stored resource of each op, nil for a Remove. When it returns nil error the batch is durable.
	// An op that would change nothing (a Replica equal to what is stored, removing what is not there) writes nothing.
	Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error)

	// Watch sends what List would return as upserts, end-of-snapshot, and then every change in commit order. No change
	// between snapshot and events is lost or doubled.
	Watch(q Query) (Watch, error)

	// Wait returns when the index of the type is above after, or ctx ends (its error). It costs nothing while it waits.
	Wait(ctx context.Context, typ *pb.Type, after uint64) error
}

// Query selects resources. Type is required; a nil tenancy is the default one.
type Query struct {
	Type    *pb.Type
	Tenancy *pb.Tenancy
	Prefix  string
}

// Watch is one subscription. Next blocks until an event, ErrWatchReset, ErrClosed, or the context's end.
// It is for one goroutine; Close may be called from any, and ends Next.
type Watch interface {
	Next(ctx context.Context) (*pb.WatchEvent, error)
	Close()
}
