// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
)

// FollowerConfig configures a Follower. All fields but PrimaryManager are
// required.
type FollowerConfig struct {
	Backend resource.Backend
	// Registry contains the types. The types that are federated when the Follower
	// is created are replicated.
	Registry *resource.Registry
	// Connect returns a client of any server of the primary.
	Connect func() (pb.ReplicationServiceClient, error)
	// PathsChanged returns a channel that is closed when the paths to the primary
	// may have changed.
	PathsChanged func() <-chan struct{}
	Logger       *slog.Logger
	// PrimaryManager stores the primary from which the replicas come. nil means
	// that the primary never changes.
	PrimaryManager *PrimaryManager
}

// Follower keeps replicas of the primary's federated resources.
type Follower struct {
	cfg   FollowerConfig
	order []kind
	types map[kind][]*pb.Type
	known map[string]bool // by resource.TypeString

	// position is the position in the primary's changes up to which the store
	// is complete. nil means unknown. Only Run uses it.
	position *pb.FollowPosition

	mu         sync.Mutex
	status     FollowerStatus
	kinds      map[kind]*kindStatus
	resetIndex bool      // status.Index is older than the running comparison
	synced     time.Time // last time at which the replicas were in sync
	// successor is HandedTo of the running stream. syncedSuccessor is the value
	// of successor at the time synced.
	successor, syncedSuccessor string
}

// Backoff between attempts to open a stream or to send an update. An attempt
// itself waits until the primary is connected, so the backoff applies to errors
// that the primary returns.
const (
	minRetryPause = 100 * time.Millisecond
	maxRetryPause = 3 * time.Second
)

// retryLevel returns the log level of an error. Only the first error in a row is
// a warning.
func retryLevel(failing bool) slog.Level {
	if failing {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// NewFollower checks cfg.
func NewFollower(cfg FollowerConfig) (*Follower, error) {
	if cfg.Backend == nil || cfg.Registry == nil || cfg.Connect == nil || cfg.PathsChanged == nil || cfg.Logger == nil {
		return nil, errors.New("replication: every field of FollowerConfig but PrimaryManager is required")
	}
	f := &Follower{cfg: cfg, known: map[string]bool{}, kinds: map[kind]*kindStatus{}}
	f.order, f.types = kindsOf(cfg.Registry)
	for k, types := range f.types {
		f.kinds[k] = &kindStatus{}
		for _, t := range types {
			f.known[resource.TypeString(t)] = true
		}
	}
	return f, nil
}

// Run replicates from the primary until ctx ends. It belongs to the leader and
// must not run twice at a time.
func (f *Follower) Run(ctx context.Context) error {
	f.position = nil // another server may have led in between
	retry := backoff.Backoff{Min: minRetryPause, Max: maxRetryPause}
	failing := false
	for {
		pathsChanged := f.cfg.PathsChanged()
		start := time.Now()
		err := f.runStream(ctx)
		f.recordEnd(err)
		if ctx.Err() != nil {
			return nil
		}
		if f.syncedSince(start) {
			retry.Reset()
			failing = false
		}
		pause := max(0, retry.Next()-time.Since(start))
		if status.Code(err) == codes.Canceled { // the connection moved to a better path
			f.cfg.Logger.Debug("reopening the stream from the primary", "err", err)
		} else {
			f.cfg.Logger.Log(ctx, retryLevel(failing), "cannot follow the primary", "err", err, "retry", pause)
			failing = true
		}
		if backoff.Sleep(ctx, pause, pathsChanged) {
			retry.Reset()
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// FollowerStatus is the state of a Follower. The counters begin at the start of
// the process.
type FollowerStatus struct {
	Connected bool
	// LastContact is the time of the last message from the primary. An idle
	// stream carries a heartbeat every SourceHeartbeat.
	LastContact time.Time
	// Index is the index of the primary up to which the replicas are complete.
	Index uint64
	// LastError is nil after a success.
	LastError   error
	LastErrorAt time.Time
	// ReceivedBytes is the encoded size of all messages.
	ReceivedBytes uint64
	// Commits and Changes count the stored commits and their changes.
	Commits, Changes uint64
	// Resumed counts the streams that continued at a position.
	Resumed uint64
	// Compared counts the streams that began with a comparison.
	Compared uint64
	// Refused counts invalid resources from the primary. They are not stored.
	Refused uint64
}

// TypeStatus is the state of the replicas of one type.
type TypeStatus struct {
	// Type is group/version/Kind as registered here, with the first of several
	// versions. It has no version if the type is unknown here.
	Type string
	// Known reports whether the type is federated here. Resources of other
	// types are not replicated.
	Known bool
	// Records counts the replicas here.
	Records uint64
	// Primary counts the resources that the primary had when the stream began.
	Primary uint64
	// Unknown counts the resources in Primary whose type this version does not
	// support.
	Unknown uint64
	// Index is the highest index of the primary among the replicas.
	Index uint64
	// Changed is the time of the last change of a replica since the start of
	// the process.
	Changed time.Time
	// Changes and Bytes count the received changes and their encoded size.
	Changes, Bytes uint64
}

// kindStatus is guarded by Follower.mu.
type kindStatus struct {
	index, changes, bytes uint64
	primary, unknown      uint64
	changed               time.Time
	warned                bool // a type that one side does not support was logged
}

// Status returns the current state.
func (f *Follower) Status() FollowerStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// TypeStatuses returns the state of each type, ordered by name. The result
// includes the types federated here and other types of the primary. It reads
// all replicas.
func (f *Follower) TypeStatuses(ctx context.Context) ([]TypeStatus, error) {
	records, highest := map[kind]uint64{}, map[kind]uint64{}
	for _, k := range f.order {
		all, _, err := f.cfg.Backend.List(ctx, resource.Eventual, k.query())
		if err != nil {
			return nil, err
		}
		records[k] = uint64(len(all))
		for _, r := range all {
			highest[k] = max(highest[k], r.GetPrimaryModifyIndex())
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := []TypeStatus{}
	for k, st := range f.kinds {
		t := TypeStatus{
			Type: k.String(), Records: records[k], Primary: st.primary, Unknown: st.unknown,
			Index: max(st.index, highest[k]), Changed: st.changed, Changes: st.changes, Bytes: st.bytes,
		}
		if types := f.types[k]; types != nil {
			t.Known, t.Type = true, resource.TypeString(types[0])
		}
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b TypeStatus) int { return strings.Compare(a.Type, b.Type) })
	return out, nil
}

// HighestIndex returns the highest index of the primary among the replicas. The
// result does not require a response of the primary. It is 0 if the store is
// closed. HighestIndex reads all replicas.
func (f *Follower) HighestIndex() (index uint64) {
	for _, k := range f.order {
		all, _, err := f.cfg.Backend.List(context.Background(), resource.Eventual, k.query()) // reads memory
		if err != nil {
			return 0
		}
		for _, r := range all {
			index = max(index, r.GetPrimaryModifyIndex())
		}
	}
	return index
}

// syncedSince reports whether the replicas were in sync with the primary after t.
func (f *Follower) syncedSince(t time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.synced.After(t)
}

// syncedAfterDemotion reports whether the replicas were last in sync with a
// primary that was demoted in favor of dc. Then no record is missing.
func (f *Follower) syncedAfterDemotion(dc string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.syncedSuccessor == dc
}

func (f *Follower) recordContact() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Connected = true
	f.status.LastContact = time.Now()
	f.status.LastError = nil
}

// recordEnd records the end of a stream.
func (f *Follower) recordEnd(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Connected = false
	if err != nil {
		f.status.LastError, f.status.LastErrorAt = err, time.Now()
	}
}

// recordBegin records the first message of a stream. A comparison starts with a
// new index, because the index of the primary may have decreased.
func (f *Follower) recordBegin(begin *pb.FollowBegin) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.successor = begin.GetHandedTo()
	if begin.GetResumed() {
		f.status.Resumed++
		return
	}
	f.status.Compared++
	f.resetIndex = true
}

// recordStored records stored messages. The argument changes is the number of
// changes in them.
func (f *Follower) recordStored(ms []*pb.FollowResponse, changes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if changes > 0 {
		f.status.Commits++
		f.status.Changes += uint64(changes)
	}
	for _, m := range ms {
		if m.GetIndex() > 0 {
			f.synced, f.syncedSuccessor = time.Now(), f.successor
		}
		if f.resetIndex && m.GetIndex() > 0 {
			f.resetIndex, f.status.Index = false, 0
		}
		f.status.Index = max(f.status.Index, m.GetIndex())
		f.status.ReceivedBytes += uint64(proto.Size(m))
	}
}

// recordChange records a received change. index is 0 for a deletion.
func (f *Follower) recordChange(k kind, index uint64, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.kinds[k]
	st.changes++
	st.bytes += uint64(bytes)
	st.index = max(st.index, index)
	st.changed = time.Now()
}

// maxKinds limits the kinds that a primary can add to Follower.kinds.
const maxKinds = 256

// recordKinds records the kinds that the primary federates. It logs each kind
// that one side does not support once.
func (f *Follower) recordKinds(primary []*pb.FollowKind) {
	present := map[kind]bool{}
	unknownHere := map[kind]uint64{}
	var unknownThere []kind
	f.mu.Lock()
	for _, p := range primary {
		k := kindOf(p.GetType())
		present[k] = true
		st := f.kinds[k]
		if st == nil {
			if len(f.kinds) >= maxKinds {
				continue
			}
			st = &kindStatus{}
			f.kinds[k] = st
		}
		st.primary, st.unknown = p.GetRecords(), p.GetUnknown()
		if (p.GetUnknown() > 0 || f.types[k] == nil) && !st.warned {
			st.warned = true
			unknownHere[k] = p.GetUnknown()
		}
	}
	for k := range f.types {
		if st := f.kinds[k]; !present[k] && !st.warned {
			st.warned = true
			unknownThere = append(unknownThere, k)
		}
	}
	f.mu.Unlock()
	for k, n := range unknownHere {
		f.cfg.Logger.Warn("records of a type that this version of wanfed does not know are not replicated",
			"type", k.String(), "count", n)
	}
	for _, k := range unknownThere {
		f.cfg.Logger.Warn("the primary does not know a federated type: its replicas stay unchanged", "type", k.String())
	}
}
