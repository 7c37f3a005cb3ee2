// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
)

// Limits of the events that are retained for slow watches. The latest commit
// does not count. A watch that would exceed a limit is cut off.
const (
	maxTopicEvents = 8192
	maxTopicBytes  = 16 << 20
	maxRetained    = 256 << 20 // bytes of all topics of a state
)

// limits of a state; tests lower them.
type limits struct{ events, bytes, total int }

// watchedType is the data that the topics of all versions of one type share.
// State.mu guards it.
type watchedType struct {
	index   uint64            // of the last write, at least 1
	topics  map[string]*topic // by selection.key
	lengths map[int]int       // number of topics whose key has that length
}

// topic is the list of changes to all resources whose keys begin with one key.
// It exists only while a watch or Wait follows it.
//
// The list only grows at its end. A follower has a current item. It sleeps
// until that item has a successor, and then moves to the successor. Followers
// share the items and step without a lock. The topic refers to the last item,
// where new followers begin, and to the oldest item that has a follower. The
// items between the two are retained for the slowest follower, and limited.
type topic struct {
	s     *State
	key   string
	users int // guarded by State.mu

	mu            sync.Mutex // taken after State.mu; guards the fields below
	tail          *item
	oldest        atomic.Pointer[item] // changed with mu held
	events, bytes int                  // of the items after oldest
}

// item holds the events of one commit in a topic. All fields but next and
// followers are immutable.
type item struct {
	events    []*pb.WatchEvent // in order; empty in a topic's first item
	bytes     int              // approximate memory of the events
	next      atomic.Pointer[item]
	ready     chan struct{} // closed when next is set
	followers atomic.Int64
}

// cutOff is the successor of an item whose followers were cut off.
var cutOff = new(item)

func newItem() *item { return &item{ready: make(chan struct{})} }

func newTopic(s *State, key string) *topic {
	t := &topic{s: s, key: key, tail: newItem()}
	t.oldest.Store(t.tail)
	return t
}

// join returns the item on which a new follower begins. It needs State.mu, so
// that the item belongs to the present state.
func (t *topic) join() *item {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tail.followers.Add(1)
	return t.tail
}

// publish appends a commit and returns the item whose followers are to be woken.
func (t *topic) publish(it *item) (previous *item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	previous = t.tail
	previous.next.Store(it)
	t.tail = it
	t.count(it, 1)
	t.trimLocked()
	return previous
}

// end cuts off all followers and returns the item whose followers are to be
// woken.
func (t *topic) end() (last *item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for o := t.oldest.Load(); o != t.tail; o = t.oldest.Load() {
		next := o.next.Swap(cutOff)
		t.count(next, -1)
		t.oldest.Store(next)
	}
	t.tail.next.Store(cutOff)
	return t.tail
}

func (t *topic) count(it *item, n int) {
	t.events += n * len(it.events)
	t.bytes += n * it.bytes
	t.s.retained.Add(int64(n * it.bytes))
}

// trimLocked releases the items that have no follower before them. While a limit
// is exceeded, it also cuts off the slowest followers.
func (t *topic) trimLocked() {
	for o := t.oldest.Load(); o != t.tail; o = t.oldest.Load() {
		next := o.next.Load()
		if o.followers.Load() > 0 {
			if next == t.tail || !t.exceedsLimit() {
				return
			}
			o.next.Store(cutOff) // before oldest changes: see step
		}
		t.count(next, -1)
		t.oldest.Store(next)
	}
}

func (t *topic) exceedsLimit() bool {
	l := &t.s.limits
	return t.events > l.events || t.bytes > l.bytes || t.s.retained.Load() > int64(l.total)
}

// step moves a follower to the next item. It returns nil if there is none yet.
// It returns cutOff if the follower was cut off; the follower then stands on no
// item.
func (t *topic) step(at *item) *item {
	next := at.next.Load()
	if next == nil {
		return nil
	}
	if next != cutOff {
		next.followers.Add(1)
		// A follower that was cut off between the two loads must not stay on
		// next: the topic may have released that item.
		if at.next.Load() == cutOff {
			next.followers.Add(-1)
			next = cutOff
		}
	}
	t.stepOff(at)
	return next
}

// stepOff removes a follower from its item.
func (t *topic) stepOff(at *item) {
	if at.followers.Add(-1) == 0 && t.oldest.Load() == at {
		t.mu.Lock()
		t.trimLocked()
		t.mu.Unlock()
	}
}

// maxInlineWakes is the maximum number of followers that the writer wakes
// itself. Another goroutine wakes a larger number, because that takes
// milliseconds.
const maxInlineWakes = 16

func wakeAll(items []*item) {
	for _, it := range items {
		if it.followers.Load() > maxInlineWakes {
			go close(it.ready)
		} else {
			close(it.ready)
		}
	}
}

// joinTopicLocked returns the topic with that key, with one more user.
func (s *State) joinTopicLocked(typ, key string) *topic {
	k := s.watchedTypeLocked(typ)
	t := k.topics[key]
	if t == nil {
		if k.topics == nil {
			k.topics, k.lengths = make(map[string]*topic), make(map[int]int)
		}
		t = newTopic(s, key)
		k.topics[key] = t
		k.lengths[len(key)]++
	}
	t.users++
	return t
}

// leaveTopicLocked undoes joinTopicLocked.
func (s *State) leaveTopicLocked(typ string, t *topic) {
	t.users--
	if k := s.watchedTypeLocked(typ); t.users == 0 && k.topics[t.key] == t {
		delete(k.topics, t.key)
		if k.lengths[len(t.key)]--; k.lengths[len(t.key)] == 0 {
			delete(k.lengths, len(t.key))
		}
	}
}

func (s *State) watchedTypeLocked(typ string) *watchedType {
	k := s.types[typ]
	if k == nil {
		k = &watchedType{index: 1}
		s.types[typ] = k
	}
	return k
}

// publishLocked appends events to their topics and returns the items whose
// followers are to be woken.
func (s *State) publishLocked(events []*pb.WatchEvent) (woken []*item) {
	items := make(map[*topic]*item, 1)
	for _, ev := range events {
		r := resourceOf(ev)
		k := s.watchedTypeLocked(typeKey(r.Id.Type))
		k.index = r.ModifyIndex
		if len(k.topics) == 0 {
			continue
		}
		key, size := idKey(r.Id), 0
		for n := range k.lengths {
			if n > len(key) || k.topics[key[:n]] == nil {
				continue
			}
			t := k.topics[key[:n]]
			it := items[t]
			if it == nil {
				it = newItem()
				items[t] = it
			}
			if size == 0 {
				size = 2*proto.Size(ev) + eventOverhead
			}
			it.events = append(it.events, ev)
			it.bytes += size
		}
	}
	for t, it := range items {
		woken = append(woken, t.publish(it))
	}
	return woken
}

// eventOverhead is the approximate memory of an event in bytes, in addition to
// twice its encoded size.
const eventOverhead = 512

// endTopicsLocked cuts off all followers and returns the items whose followers
// are to be woken.
func (s *State) endTopicsLocked() (woken []*item) {
	for _, k := range s.types {
		for _, t := range k.topics {
			woken = append(woken, t.end())
		}
		k.topics, k.lengths = nil, nil
	}
	return woken
}

// resourceOf returns the resource of an event, with the index of the change as
// ModifyIndex.
func resourceOf(ev *pb.WatchEvent) *pb.Resource {
	if d := ev.GetDelete(); d != nil {
		return d.GetResource()
	}
	return ev.GetUpsert().GetResource()
}
