// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
)

// Limits of the events that a topic retains for slow watches. The events of the
// latest commit do not count. A watch that would exceed a limit is ended.
const (
	maxTopicEvents = 8192
	maxTopicBytes  = 16 << 20
	maxRetained    = 256 << 20 // bytes of all topics of a state
)

// limits are the limits of one state. Tests lower them.
type limits struct{ events, bytes, total int }

// watchedType has the data that the topics of all versions of a type share.
// State.mu guards it.
type watchedType struct {
	index   uint64            // index of the last write or deletion, at least 1
	topics  map[string]*topic // topics by selection.key
	lengths map[int]int       // number of topics by the length of their key
}

// topic is a list of changes to all resources whose keys begin with one key. A
// topic exists only while a watch or Wait follows it.
//
// The list is a singly linked list of items, one per commit. Each follower has
// a current item. The follower sleeps until the item has a successor, and then
// moves to the successor. Followers share the items and move without a lock.
// New followers begin at the last item. The topic retains the items from the
// oldest item that has a follower to the last item. Their number and size are
// limited.
type topic struct {
	s     *State
	key   string
	users int // number of watches and waits; guarded by State.mu

	mu            sync.Mutex // taken after State.mu; guards the fields below
	tail          *item
	oldest        atomic.Pointer[item] // changed with mu held
	events, bytes int                  // totals of the items after oldest
}

// item holds the events of one commit in a topic. All fields except next and
// followers are immutable.
type item struct {
	events    []*pb.WatchEvent // events in order; empty in the first item of a topic
	bytes     int              // approximate memory of the events
	next      atomic.Pointer[item]
	ready     chan struct{} // closed when next is set
	followers atomic.Int64
}

// cutOff is the successor of an item whose followers must end, because they
// exceed a limit or the state was replaced.
var cutOff = new(item)

func newItem() *item { return &item{ready: make(chan struct{})} }

func newTopic(s *State, key string) *topic {
	t := &topic{s: s, key: key, tail: newItem()}
	t.oldest.Store(t.tail)
	return t
}

// join adds a follower to the last item and returns the item. The caller holds
// State.mu, so the item belongs to the current state.
func (t *topic) join() *item {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tail.followers.Add(1)
	return t.tail
}

// publish appends the item latest to the topic, and returns the item whose
// followers the caller must wake.
func (t *topic) publish(latest *item) (previous *item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	previous = t.tail
	previous.next.Store(latest)
	t.tail = latest
	t.count(latest, 1)
	t.trimLocked()
	return previous
}

// end cuts off all followers, and returns the item whose followers the caller
// must wake.
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

// count adds (n is 1) or subtracts (n is -1) an item from the totals.
func (t *topic) count(it *item, n int) {
	t.events += n * len(it.events)
	t.bytes += n * it.bytes
	t.s.retained.Add(int64(n * it.bytes))
}

// trimLocked releases the oldest items up to the first item with a follower.
// While a limit is exceeded, it cuts off the slowest followers.
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

// step moves a follower to the next item and returns the item. It returns nil
// if no next item exists yet. It returns cutOff if the follower was cut off and
// no longer has an item.
func (t *topic) step(at *item) *item {
	next := at.next.Load()
	if next == nil {
		return nil
	}
	if next != cutOff {
		next.followers.Add(1)
		// If the follower was cut off between the two loads, the topic may have
		// released next.
		if at.next.Load() == cutOff {
			next.followers.Add(-1)
			next = cutOff
		}
	}
	t.stepOff(at)
	return next
}

// stepOff removes a follower from item at.
func (t *topic) stepOff(at *item) {
	if at.followers.Add(-1) == 0 && t.oldest.Load() == at {
		t.mu.Lock()
		t.trimLocked()
		t.mu.Unlock()
	}
}

// maxInlineWakes is the maximum number of followers that the writer wakes
// without another goroutine. Waking thousands of followers takes milliseconds.
const maxInlineWakes = 16

// wakeAll wakes the followers of items.
func wakeAll(items []*item) {
	for _, it := range items {
		if it.followers.Load() > maxInlineWakes {
			go close(it.ready)
		} else {
			close(it.ready)
		}
	}
}

// joinTopicLocked returns the topic with that key, and adds a user.
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

// leaveTopicLocked removes a user, and deletes the topic with its last user.
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

// publishLocked appends the events to their topics, and returns the items whose
// followers the caller must wake.
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

// eventOverhead is a part of the memory of an event, in bytes. The memory of an
// event is approximately twice its encoded size plus eventOverhead.
const eventOverhead = 512

// endTopicsLocked cuts off all followers, and returns the items whose followers
// the caller must wake.
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
