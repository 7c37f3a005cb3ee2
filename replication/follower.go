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

// Follower keeps replicas of the primary's federated resources. PrimaryManager
// runs it.
type Follower struct {
	manager *PrimaryManager
	cfg     PrimaryManagerConfig // of manager
	kinds   []kind               // federated kinds, in order
	types   map[kind][]*pb.Type  // federated types of each kind
	known   map[string]bool      // federated types, by resource.TypeString

	// position is the last position of the primary whose changes are stored.
	// nil means unknown. Only run uses it.
	position *pb.FollowPosition
	// reachedAt is the time of the last storeReached. Only run uses it.
	reachedAt time.Time

	mu         sync.Mutex
	status     FollowerStatus
	perKind    map[kind]*kindStatus
	resetIndex bool      // the running comparison will replace status.Index
	synced     time.Time // last time at which the replicas were in sync
	// successor is the consent that the running stream announced.
	// syncedSuccessor is the value of successor at the time synced.
	successor, syncedSuccessor consent
}

// Limits of the backoff between attempts to open a stream or to write a
// federation state. The backoff applies to errors that the primary returns,
// because an attempt waits until a server of the primary is connected.
const (
	minRetryPause = 100 * time.Millisecond
	maxRetryPause = 3 * time.Second
)

// retryLevel returns the log level of an error: a warning for the first error
// in a row. failing reports whether the previous attempt failed.
func retryLevel(failing bool) slog.Level {
	if failing {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

func newFollower(p *PrimaryManager) *Follower {
	f := &Follower{manager: p, cfg: p.cfg, known: map[string]bool{}, perKind: map[kind]*kindStatus{}}
	f.kinds, f.types = kindsOf(p.cfg.Registry)
	for k, types := range f.types {
		f.perKind[k] = &kindStatus{}
		for _, t := range types {
			f.known[resource.TypeString(t)] = true
		}
	}
	return f
}

// run replicates from the primary until ctx ends. Only the leader calls it. Two
// calls must not run at the same time.
func (f *Follower) run(ctx context.Context) error {
	f.position = nil // another server may have been the leader since the last run
	retry := backoff.Backoff{Min: minRetryPause, Max: maxRetryPause}
	failing := false
	for {
		pathsChanged := f.cfg.Remote.PathsChanged()
		start := time.Now()
		err := f.runStream(ctx)
		f.recordEnd(err)
		if ctx.Err() != nil {
			return nil
		}
		if reachedErr := f.storeReached(ctx, 0); reachedErr != nil {
			f.cfg.Logger.Debug("cannot store the index of the primary", "err", reachedErr)
		}
		if _, other := errors.AsType[*otherGroupError](err); other {
			f.cfg.Remote.Disconnect(f.manager.followedDC()) // another path may lead to the accepted group
		}
		if f.syncedSince(start) {
			retry.Reset()
			failing = false
		}
		pause := max(0, retry.Next()-time.Since(start))
		if status.Code(err) == codes.Canceled { // the connection moved to a better path
			f.cfg.Logger.Debug("stream from the primary closed", "err", err)
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
	// Connected reports whether a stream is open.
	Connected bool
	// LastContact is the time of the last message from the primary. An idle
	// stream carries a heartbeat every 2 s.
	LastContact time.Time
	// Index is the primary's index. All changes up to Index are stored.
	Index       uint64
	LastError   error     // nil after a success
	LastErrorAt time.Time // time of the last error; zero: never
	// ReceivedBytes is the encoded size of all stored messages.
	ReceivedBytes uint64
	// Commits counts the commits to the local store.
	Commits uint64
	// Changes counts the changes in these commits.
	Changes uint64
	// Resumed counts the streams that continued at a position.
	Resumed uint64
	// Compared counts the streams that began with a comparison.
	Compared uint64
	// Refused counts invalid resources from the primary. They are not stored.
	Refused uint64
}

// TypeStatus is the state of the replicas of one type.
type TypeStatus struct {
	// Type is group/version/Kind with the first registered version. It is
	// group/Kind if the type is not registered.
	Type string
	// Known reports whether the type is federated here. Resources of other
	// types are not replicated.
	Known bool
	// Records is the number of local resources.
	Records uint64
	// Primary is the number of resources in the primary when the stream began.
	Primary uint64
	// Unknown is the number of resources in the primary whose type this version
	// does not support.
	Unknown uint64
	// Index is the highest PrimaryModifyIndex of a replica.
	Index uint64
	// Changed is the time of the last received change. Zero: none since the
	// start of the process.
	Changed time.Time
	// Changes is the number of received changes.
	Changes uint64
	// Bytes is the encoded size of the received changes.
	Bytes uint64
}

// kindStatus is a TypeStatus without Type, Known and Records.
type kindStatus struct {
	TypeStatus
	warned bool // recordKinds has logged a warning
}

// Status returns the current state.
func (f *Follower) Status() FollowerStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// TypeStatuses returns the state of each type that is federated here or in the
// primary, ordered by name. It reads all replicas.
func (f *Follower) TypeStatuses(ctx context.Context) ([]TypeStatus, error) {
	counts, indexes, err := f.readReplicas(ctx)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := []TypeStatus{}
	for k, st := range f.perKind {
		t := st.TypeStatus
		t.Type, t.Records, t.Index = k.String(), counts[k], max(st.Index, indexes[k])
		if types := f.types[k]; types != nil {
			t.Known, t.Type = true, resource.TypeString(types[0])
		}
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b TypeStatus) int { return strings.Compare(a.Type, b.Type) })
	return out, nil
}

// HighestIndex returns the highest PrimaryModifyIndex of a replica. It returns
// 0 if the store is closed. It reads all replicas and does not call the
// primary.
func (f *Follower) HighestIndex() (index uint64) {
	_, indexes, err := f.readReplicas(context.Background()) // reads memory
	if err != nil {
		return 0
	}
	for _, at := range indexes {
		index = max(index, at)
	}
	return index
}

// readReplicas returns the number of resources of each kind, and their highest
// PrimaryModifyIndex.
func (f *Follower) readReplicas(ctx context.Context) (counts, indexes map[kind]uint64, err error) {
	counts, indexes = map[kind]uint64{}, map[kind]uint64{}
	for _, k := range f.kinds {
		all, _, err := f.cfg.Backend.List(ctx, resource.Eventual, k.query())
		if err != nil {
			return nil, nil, err
		}
		counts[k] = uint64(len(all))
		for _, r := range all {
			indexes[k] = max(indexes[k], r.GetPrimaryModifyIndex())
		}
	}
	return counts, indexes, nil
}

// syncedSince reports whether the replicas were in sync with the primary after
// t.
func (f *Follower) syncedSince(t time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.synced.After(t)
}

// syncedAfterDemotion reports whether the primary was demoted in favor of dc
// when the replicas were last in sync. In that case no resource is missing.
func (f *Follower) syncedAfterDemotion(dc string) (c consent, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.syncedSuccessor, f.syncedSuccessor.dc == dc
}

// clearIndex removes the index, which belongs to another primary.
func (f *Follower) clearIndex() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Index = 0
}

// OtherGroup returns the reason why the last stream was refused because another
// datacenter has the name of the primary, with the remedy, or "".
func (f *Follower) OtherGroup() string {
	if other, ok := errors.AsType[*otherGroupError](f.Status().LastError); ok {
		return other.Error()
	}
	return ""
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

// recordBegin records the first message of a stream. After a comparison,
// status.Index may decrease, because the index of the primary may have
// decreased.
func (f *Follower) recordBegin(begin *pb.FollowBegin) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.successor = consent{begin.GetHandedTo(), begin.GetConsentEpoch(), begin.GetConsent()}
	if begin.GetResumed() {
		f.status.Resumed++
		return
	}
	f.status.Compared++
	f.resetIndex = true
}

// recordStored records the messages of a commit and its number of changes.
func (f *Follower) recordStored(ms []*pb.FollowResponse, changes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if changes > 0 {
		f.status.Commits++
		f.status.Changes += uint64(changes)
	}
	for _, m := range ms {
		f.status.ReceivedBytes += uint64(proto.Size(m))
		if m.GetIndex() == 0 {
			continue
		}
		f.synced, f.syncedSuccessor = time.Now(), f.successor
		if f.resetIndex {
			f.resetIndex, f.status.Index = false, 0
		}
		f.status.Index = max(f.status.Index, m.GetIndex())
	}
}

// recordChange records a received change. index is 0 for a deletion.
func (f *Follower) recordChange(k kind, index uint64, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.perKind[k]
	st.Changes++
	st.Bytes += uint64(bytes)
	st.Index = max(st.Index, index)
	st.Changed = time.Now()
}

// maxKinds limits the kinds that a primary can add to Follower.perKind.
const maxKinds = 256

// recordKinds records the kinds that the primary federates. It logs each kind
// that only one side supports once.
func (f *Follower) recordKinds(primary []*pb.FollowKind) {
	inPrimary := map[kind]bool{}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range primary {
		k := kindOf(p.GetType())
		inPrimary[k] = true
		st := f.perKind[k]
		if st == nil {
			if len(f.perKind) >= maxKinds {
				continue
			}
			st = &kindStatus{}
			f.perKind[k] = st
		}
		st.Primary, st.Unknown = p.GetRecords(), p.GetUnknown()
		if (p.GetUnknown() > 0 || f.types[k] == nil) && !st.warned {
			st.warned = true
			f.cfg.Logger.Warn("resources are not replicated: this version of wanfed does not support their type",
				"type", k.String(), "count", p.GetUnknown())
		}
	}
	for k := range f.types {
		if st := f.perKind[k]; !inPrimary[k] && !st.warned {
			st.warned = true
			f.cfg.Logger.Warn("replicas stay unchanged: the primary does not support their type", "type", k.String())
		}
	}
}
