// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"errors"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/backoff"
)

// Consistency is the required freshness of a read.
type Consistency int

const (
	// Eventual reads the state that this server has applied. Reads and watches
	// of one server never go back in time.
	Eventual Consistency = iota
	// Strong reads everything that was acknowledged before the call
	// (linearizable). In a Raft store, only the leader serves strong reads, and
	// other servers return ErrNotLeader. A ForwardingBackend calls the leader.
	Strong
)

// Wildcard, as partition or namespace of a List or Watch, matches every value.
const Wildcard = "*"

// AnyVersion, as the expected version of a Put or Remove, matches every stored
// version, and also a resource that does not exist.
const AnyVersion = "*"

// NewVersion, as the version of a Write, requires that no resource of the name
// is stored. No stored resource has this version.
const NewVersion = "0"

const (
	// MaxCascade is the highest number of owned resources that are deleted in
	// the same step as their owner. Servers that replay a log depend on
	// MaxCascade, so its value must not change.
	MaxCascade = 512
	// ReapBatch is the highest number of owned resources that ReapOnce deletes
	// in one step.
	ReapBatch = 256
)

// Backend stores resources. Package raftstore implements Backend for servers,
// and package resourcetest for tests. A ForwardingBackend combines a follower
// with its leader. All pass the tests of package resourcetest.
//
// Resources that a Backend returns are shared and immutable: clone a resource
// before changing it. A Backend keeps no reference to its arguments. All
// methods may be called from any goroutine. Methods with a context return when
// the context ends.
//
// # Identity
//
// A resource has the same uid from its creation to its deletion. It is stored
// under its group, kind, tenancy and name. The group versions of a type share
// names: a resource is stored with one group version, and a write may change
// the group version.
//
// # Consistency
//
// The state that a server has applied never goes back in time. Once an event or
// a result has shown a change, all later calls of Read, List, ListByOwner,
// Watch and Wait on that server show the change or a newer one. Across servers
// and restarts, only strong reads have this guarantee.
//
// # Indexes
//
// The index of a query is the store index of the last write or deletion of any
// resource that the query selects, in any group version. The index is at least
// 1. It never decreases on one server, not even by a restart or a restore. Each
// write raises the index above all its earlier values. For a query of a whole
// type, the index is exact. For other queries, the index may be too high, but
// never too low. Only the latest deletions are stored by name. When older
// deletions are dropped, the index of every query of their type increases once.
//
// # Deletion
//
// Deleting a resource deletes the resources that it owns, directly or
// indirectly. Up to MaxCascade of them are deleted in the same step. For each
// owner that has more, the step stores a tombstone: a resource of
// TombstoneType. The leader then calls ReapOnce, which deletes the rest in steps
// of ReapBatch. No new resource can be owned by a deleted one.
//
// A resource with finalizers is not deleted at once. It gets a deletion
// timestamp (DeletionKey) instead. From then on, only its status can be written
// and finalizers can be removed. The write that removes the last finalizer
// deletes the resource. A replica is deleted when the primary's resource is
// deleted, regardless of the finalizers and the owner of the replica.
type Backend interface {
	// Read returns the resource with the id's type, tenancy and name. If the id
	// has a uid, the resource must have the same uid. If the resource is stored
	// as another group version, the error is a *GroupVersionError that contains
	// the resource.
	Read(ctx context.Context, c Consistency, id *pb.ID) (*pb.Resource, error)

	// List returns the selected resources and the index of q. The resources are
	// ordered by tenancy and by the bytes of their names.
	List(ctx context.Context, c Consistency, q Query) ([]*pb.Resource, uint64, error)

	// ListByOwner returns the resources whose owner has owner's uid, as this
	// server has applied them, ordered by type, tenancy and name. The owner may
	// be deleted already.
	ListByOwner(ctx context.Context, owner *pb.ID) ([]*pb.Resource, error)

	// Commit applies all ops in order in one step, or none. The first op whose
	// expectation fails makes the batch fail with ErrConflict, ErrUIDMismatch,
	// ErrGroupVersion, ErrTerminating, or, if the owner of a new resource does
	// not exist, ErrNotFound. When Commit returns no error, the batch is
	// durable. Commit returns the stored resource of each op: nil for a Remove
	// and an Expect, and the last state of the resource for a Put that removed
	// the last finalizer.
	//
	// A Put stores status and generation as given; the caller keeps the
	// generation when the data is unchanged. A Put fails if its uid differs
	// from the stored uid. With AnyVersion, such a Put deletes the stored
	// resource first. An Overwrite keeps the stored uid, owner and status. It
	// keeps the generation if the data is unchanged. An Overwrite fails only if
	// the stored resource has a deletion timestamp. An Expect sees the effect
	// of the ops before it.
	//
	// An op that would change nothing writes nothing: a Replica that equals the
	// stored resource, an Overwrite with the same data that keeps the metadata,
	// and a Remove of a resource that does not exist.
	Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error)

	// Watch sends the result of List as upserts, then end-of-snapshot, and then
	// every change in commit order. No change between the snapshot and the
	// events is lost or sent twice. A write that changes the group version of a
	// resource causes a delete of the old version and an upsert of the new
	// version. When a snapshot is restored, the watch ends with ErrWatchReset.
	Watch(q Query) (Watch, error)

	// Wait returns nil when the index of q is above after. Wait checks the
	// index before the context: if ctx has ended, Wait returns nil if the index
	// is above after, and the context's error otherwise. Writes that q does not
	// select do not wake a Wait. A blocking query is a Wait with the index of
	// the last List, followed by a List.
	Wait(ctx context.Context, q Query, after uint64) error
}

// Query selects resources.
type Query struct {
	// Type has a group and a kind. An empty group version selects all versions.
	Type *pb.Type
	// Tenancy defaults to the default tenancy. Its parts may be Wildcard.
	Tenancy *pb.Tenancy
	// Name selects one name. Empty: the names that Prefix selects.
	Name string
	// Prefix selects all names that begin with it. Name must be empty.
	Prefix string
	// MaxBytes limits the encoded size of a List result. A List with a larger
	// result fails with ErrTooLarge. Zero means no limit.
	MaxBytes int
}

// Watch is one subscription. Next blocks until there is an event. After the
// last event, Next returns ErrWatchReset, ErrClosed or the context's error.
// Only one goroutine may call Next. Any goroutine may call Close, which ends
// Next.
type Watch interface {
	Next(ctx context.Context) (*pb.WatchEvent, error)
	Close()
}

// canceled is an ended context, with which Wait does not block.
var canceled = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// Changed reports whether the index of q on this server is above after, or
// cannot be read. Changed does not block. If the indexes of several Lists have
// not changed when the last List returns, all Lists show the state of one
// moment.
func Changed(b Backend, q Query, after uint64) bool {
	err := b.Wait(canceled, q, after)
	return err == nil || !errors.Is(err, context.Canceled)
}

// Notify puts a token into wake, a channel of size 1, after every change of a
// resource that q selects. Several changes may cause one token. The receiver
// repeats its reads after each token. Notify returns when ctx ends or the
// backend is closed.
func Notify(ctx context.Context, b Backend, q Query, wake chan<- struct{}) {
	for ctx.Err() == nil {
		err := notifyWatch(ctx, b, q, wake)
		if errors.Is(err, ErrClosed) {
			return
		}
		notify(wake) // a change between two watches has no event
		if !errors.Is(err, ErrWatchReset) {
			backoff.Sleep(ctx, time.Second, nil) // the fault is temporary: watch again later
		}
	}
}

// notifyWatch puts a token into wake for each event of one watch, after its
// snapshot. notifyWatch returns the error that ends the watch.
func notifyWatch(ctx context.Context, b Backend, q Query, wake chan<- struct{}) error {
	w, err := b.Watch(q)
	if err != nil {
		return err
	}
	defer w.Close()
	for live := false; ; {
		e, err := w.Next(ctx)
		if err != nil {
			return err
		}
		if live = live || e.GetEndOfSnapshot() != nil; live {
			notify(wake)
		}
	}
}

func notify(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
