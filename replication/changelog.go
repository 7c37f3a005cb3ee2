// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/resource"
)

// Limits of the change log. The latest commit is kept regardless of its size.
const (
	maxLogChanges = 8192
	maxLogBytes   = 16 << 20
)

// errEvicted reports that the log does not contain the next commit of a
// follower any more.
var errEvicted = errors.New("the follower lags behind the log, or the primary restored a snapshot: compare again")

// change is the change of one resource. It contains the replica, or the id of a
// deleted resource. Both are shared and immutable.
type change struct {
	kind    kind
	put     *pb.Resource // nil: the resource was deleted
	deleted *pb.ID       // nil unless the resource was deleted
	size    int          // encoded size in bytes
}

func (c change) id() *pb.ID {
	if c.put != nil {
		return c.put.Id
	}
	return c.deleted
}

// commit contains the changes of federated resources in one commit of the
// primary's store.
type commit struct {
	index    uint64
	checksum uint64
	changes  []change
	size     int // of all changes, in bytes
}

// newCommit computes the sizes and the checksum. The checksum is equal on all
// servers of the primary that federate the same kinds, because the encoding is
// deterministic.
func newCommit(kinds []kind, index uint64, changes []change) *commit {
	c := &commit{index: index, changes: changes}
	sum := sha256.New()
	for _, k := range kinds {
		_, _ = sum.Write([]byte(k.group + "\x00" + k.name + "\x00"))
	}
	var buf []byte
	for i, ch := range changes {
		var m proto.Message = ch.deleted
		if ch.put != nil {
			m = ch.put
		}
		var err error
		buf, err = proto.MarshalOptions{Deterministic: true}.MarshalAppend(buf[:0], m)
		if err != nil {
			panic(err) // impossible: the store has encoded the message before
		}
		changes[i].size = len(buf)
		c.size += len(buf)
		_, _ = sum.Write(binary.AppendUvarint(nil, uint64(len(buf))))
		_, _ = sum.Write(buf)
	}
	c.checksum = binary.BigEndian.Uint64(sum.Sum(nil))
	return c
}

func (c *commit) position() *pb.FollowPosition {
	return &pb.FollowPosition{Index: c.index, Check: c.checksum}
}

// changeLog keeps the latest commits for all followers. Each commit has a
// number, which increases by one per commit. All methods may be called from any
// goroutine.
type changeLog struct {
	grown broadcast.Broadcast // notified after every change of the log

	mu      sync.Mutex
	ready   bool // the log was started
	commits []*commit
	first   uint64             // number of commits[0]
	before  *pb.FollowPosition // position before commits[0]
	changes int                // in all commits
	size    int                // of all commits, in bytes
}

// start empties the log and starts it at a store index. Earlier commit numbers
// become invalid.
func (l *changeLog) start(index uint64) {
	// The commit at index is unknown, so its checksum is unknown too. With a
	// random checksum, no other server accepts the position.
	var random [8]byte
	rand.Read(random[:])
	l.reset(&pb.FollowPosition{Index: index, Check: binary.BigEndian.Uint64(random[:])}, true)
}

// stop empties the log. Followers cannot use the log until it is started again.
func (l *changeLog) stop() { l.reset(nil, false) }

func (l *changeLog) reset(before *pb.FollowPosition, ready bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first += uint64(len(l.commits)) + 1
	l.commits, l.changes, l.size = nil, 0, 0
	l.before, l.ready = before, ready
	l.grown.Notify()
}

// append adds commits. It evicts the oldest commits while the log exceeds a
// limit.
func (l *changeLog) append(all ...*commit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range all {
		l.commits = append(l.commits, c)
		l.changes += len(c.changes)
		l.size += c.size
	}
	for len(l.commits) > 1 && (l.changes > maxLogChanges || l.size > maxLogBytes) {
		c := l.commits[0]
		l.before = c.position()
		l.changes -= len(c.changes)
		l.size -= c.size
		l.commits[0] = nil
		l.commits = l.commits[1:]
		l.first++
	}
	l.grown.Notify()
}

// end returns the number of the next commit and the position before that
// commit. ok is false if the log is not started.
func (l *changeLog) end() (next uint64, position *pb.FollowPosition, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	position = l.before
	if n := len(l.commits); n > 0 {
		position = l.commits[n-1].position()
	}
	return l.first + uint64(len(l.commits)), position, l.ready
}

// find returns the number of the commit after a position. ok is false if the
// log does not contain the position.
func (l *changeLog) find(p *pb.FollowPosition) (next uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ready || p == nil {
		return 0, false
	}
	if l.before.Index == p.Index && l.before.Check == p.Check {
		return l.first, true
	}
	i := slices.IndexFunc(l.commits, func(c *commit) bool { return c.index == p.Index && c.checksum == p.Check })
	return l.first + uint64(i) + 1, i >= 0
}

// since returns commits from number next on: at least one commit, and more
// while their total size is at most size bytes. If commit next does not exist
// yet, since returns a channel that is closed when the log changes. If commit
// next is evicted, since returns errEvicted.
func (l *changeLog) since(next uint64, size int) (commits []*commit, grown <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ready || next < l.first {
		return nil, nil, errEvicted
	}
	total := 0
	for _, c := range l.commits[next-l.first:] {
		if total += c.size; total > size && len(commits) > 0 {
			break
		}
		commits = append(commits, c)
	}
	if len(commits) == 0 {
		return nil, l.grown.Wait(), nil
	}
	return commits, nil, nil
}

// collect copies the commits of federated resources into the log, in order,
// until ctx or a watch ends.
//
// Each kind has its own watch, and one commit may change several kinds. The
// store publishes commits one after another. Therefore collect reads all
// watches twice: after the first round has returned an event of a commit, the
// second round returns the remaining events of all earlier commits. The events
// of a commit that is published during the second round may enter the log in
// two parts.
func (s *Source) collect(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	watches, index, err := s.openWatches(ctx)
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
		wg.Go(func() { resource.Notify(ctx, s.backend, k.query(), wake) })
	}
	var pending []event
	for {
		if pending, err = poll(watches, pending); err != nil {
			return err
		}
		if len(pending) == 0 {
			select {
			case <-wake:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		complete := slices.MaxFunc(pending, event.compare).index
		if pending, err = poll(watches, pending); err != nil {
			return err
		}
		var commits []*commit
		commits, pending = splitCommits(s.kinds, pending, complete)
		s.log.append(commits...)
	}
}

// openWatches opens a watch of each kind and skips its snapshot. It returns an
// index that the store had reached before the watches were opened.
func (s *Source) openWatches(ctx context.Context) (watches []resource.Watch, index uint64, err error) {
	for _, k := range s.kinds {
		_, at, err := s.backend.List(ctx, resource.Eventual, k.query())
		if err != nil {
			return watches, 0, err
		}
		index = max(index, at)
	}
	for _, k := range s.kinds {
		w, err := s.backend.Watch(k.query())
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

func (e event) compare(other event) int { return cmp.Compare(e.index, other.index) }

// ended is a canceled context. With it, Watch.Next returns buffered events and
// does not wait.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// poll appends the buffered events of all watches to events.
func poll(watches []resource.Watch, events []event) ([]event, error) {
	for _, w := range watches {
		for {
			e, err := w.Next(ended)
			if errors.Is(err, context.Canceled) {
				break
			}
			if err != nil {
				return events, err
			}
			if r := e.GetUpsert().GetResource(); r != nil {
				c := change{kind: kindOf(r.GetId().GetType()), put: replicaOf(r)}
				events = append(events, event{c, r.GetModifyIndex()})
			} else if r := e.GetDelete().GetResource(); r != nil {
				c := change{kind: kindOf(r.GetId().GetType()), deleted: r.GetId()}
				events = append(events, event{c, r.GetModifyIndex()})
			}
		}
	}
	return events, nil
}

// splitCommits groups the events up to index last into commits. It also returns
// the remaining events. The events of each kind must be in order.
func splitCommits(kinds []kind, events []event, last uint64) (commits []*commit, rest []event) {
	slices.SortStableFunc(events, event.compare)
	for len(events) > 0 && events[0].index <= last {
		n := slices.IndexFunc(events, func(e event) bool { return e.index != events[0].index })
		if n < 0 {
			n = len(events)
		}
		commits = append(commits, newCommit(kinds, events[0].index, changesOf(events[:n])))
		events = events[n:]
	}
	return commits, slices.Clone(events)
}

// changesOf returns the changes of one commit, in the same order on all
// servers. If a resource changes its group version, the store publishes a
// deletion and an upsert. changesOf drops the deletion.
func changesOf(events []event) []change {
	slices.SortStableFunc(events, func(a, b event) int { return a.kind.compare(b.kind) })
	lastPut := map[string]int{} // by uid
	for i, e := range events {
		if e.put != nil {
			lastPut[e.put.Id.GetUid()] = i
		}
	}
	out := make([]change, 0, len(events))
	for i, e := range events {
		if at, put := lastPut[e.id().GetUid()]; e.put != nil || !put || at < i {
			out = append(out, e.change)
		}
	}
	return out
}

// replicaOf returns the replica of a resource of the primary, as a secondary
// stores it. A replica has no status. Its PrimaryModifyIndex is the ModifyIndex
// in the primary.
func replicaOf(r *pb.Resource) *pb.Resource {
	return &pb.Resource{
		Id: r.Id, Owner: r.Owner, Generation: r.Generation, Metadata: r.Metadata, Data: r.Data,
		PrimaryModifyIndex: r.ModifyIndex, PrimaryEpoch: r.PrimaryEpoch,
	}
}
