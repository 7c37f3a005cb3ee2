// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
)

// Limits of what is kept for watches that lag, beside the latest commit. A watch that would exceed one is cut off.
const (
	keepEvents = 8192      // of one topic
	keepBytes  = 16 << 20  // of one topic
	keepTotal  = 256 << 20 // of all topics of a state
)

// limits of a state; tests make them small.
type limits struct{ events, bytes, total int }

// kind is what all versions of a type share. State.mu guards it.
type kind struct {
	index   uint64            // of the last write, at least 1
	topics  map[string]*topic // by their key, which is a selection's reads
	lengths map[int]int       // how many topics have a key of that length
}

// topic is the changes to all resources whose keys begin with one key, for those who watch exactly these. It is there only as
// long as somebody does.
//
// It is a list that only grows: who follows it stands on an item, sleeps until that has a next one, and steps on. Followers
// share the items and lock nothing. The topic itself remembers the last item, where new followers begin, and the oldest that a
// follower stands on; what is between is there for the slowest, and bounded.
type topic struct {
	s     *State
	key   string
	users int // guarded by State.mu

	mu            sync.Mutex // taken after State.mu; guards what follows
	tail          *item
	oldest        atomic.Pointer[item] // changed with mu held
	events, bytes int                  // of the items after oldest
}

// item is one commit's events in a topic. All but next, readers and asleep is immutable.
type item struct {
	events  []*published // in order; none in a topic's first item
	bytes   int          // about what the events keep alive
	next    atomic.Pointer[item]
	ready   chan struct{} // closed when next is set
	readers atomic.Int64  // who stands here
	asleep  sleepers      // who of them has others send, and all that there is
}

// lost is the next item of a follower that was cut off.
var lost = new(item)

func newTopic(s *State, key string) *topic {
	t := &topic{s: s, key: key, tail: &item{ready: make(chan struct{})}}
	t.oldest.Store(t.tail)
	return t
}

// join returns the item after which a new follower begins. It needs State.mu, so that the place is that of a state.
func (t *topic) join() *item {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tail.readers.Add(1)
	return t.tail
}

// publish appends a commit and returns the item whose followers are to be woken.
func (t *topic) publish(it *item) (was *item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was = t.tail
	was.next.Store(it)
	t.tail = it
	t.count(it, 1)
	t.trimLocked()
	return was
}

// end cuts off all followers, and returns the item whose followers are to be woken.
func (t *topic) end() (was *item) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.oldest.Load() != t.tail {
		o := t.oldest.Load()
		next := o.next.Swap(lost)
		t.count(next, -1)
		t.oldest.Store(next)
	}
	t.tail.next.Store(lost)
	return t.tail
}

func (t *topic) count(it *item, n int) {
	t.events += n * len(it.events)
	t.bytes += n * it.bytes
	t.s.kept.Add(int64(n * it.bytes))
}

// trimLocked lets go of what nobody will read, and cuts off the slowest followers while too much is kept.
func (t *topic) trimLocked() {
	for o := t.oldest.Load(); o != t.tail; o = t.oldest.Load() {
		next := o.next.Load()
		if o.readers.Load() > 0 {
			if next == t.tail || !t.over() {
				return
			}
			o.next.Store(lost) // before oldest moves: see step
		}
		t.count(next, -1)
		t.oldest.Store(next)
	}
}

func (t *topic) over() bool {
	l := &t.s.limits
	return t.events > l.events || t.bytes > l.bytes || t.s.kept.Load() > int64(l.total)
}

// step moves a follower to the next item: nil if there is none yet, lost if it was cut off. In the latter case it
// stands nowhere.
func (t *topic) step(at *item) *item {
	next := at.next.Load()
	if next == nil {
		return nil
	}
	if next != lost {
		next.readers.Add(1)
		// Cut off between the two, it would stand on an item that the topic may have let go of, and keep all after it.
		if at.next.Load() == lost {
			next.readers.Add(-1)
			next = lost
		}
	}
	t.stepOff(at)
	return next
}

// stepOff takes a follower off its item.
func (t *topic) stepOff(at *item) {
	if at.readers.Add(-1) == 0 && t.oldest.Load() == at {
		t.mu.Lock()
		t.trimLocked()
		t.mu.Unlock()
	}
}

// published is one event that watches share.
type published struct {
	*pb.WatchEvent
	shared  bool
	encoded atomic.Pointer[pb.WatchEvent]
}

// raw returns what is encoded as the event is, if there is a point: all of it is in unknown fields, which are only copied.
func (p *published) raw() *pb.WatchEvent {
	if !p.shared {
		return p.WatchEvent
	}
	if ev := p.encoded.Load(); ev != nil {
		return ev
	}
	b, err := proto.Marshal(p.WatchEvent)
	if err != nil {
		return p.WatchEvent // for the sender to fail with
	}
	ev := new(pb.WatchEvent)
	ev.ProtoReflect().SetUnknown(b)
	if !p.encoded.CompareAndSwap(nil, ev) {
		return p.encoded.Load() // another's, made at the same time: one is kept
	}
	return ev
}

// wakeInline is how many sleepers a writer wakes itself.
const wakeInline = 16

// wake wakes those who sleep at an item that has a next one. It takes the writer no longer if they are many.
func (it *item) wake() {
	if it.readers.Load() > wakeInline {
		go it.rouse()
		return
	}
	it.rouse()
}

func (it *item) rouse() {
	close(it.ready)
	it.deliver()
}

// topicLocked returns the topic of a key, which it makes if need be, with one more user.
func (s *State) topicLocked(typ, key string) *topic {
	k := s.kindLocked(typ)
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

// leaveLocked undoes topicLocked.
func (s *State) leaveLocked(typ string, t *topic) {
	t.users--
	if k := s.kindLocked(typ); t.users == 0 && k.topics[t.key] == t {
		delete(k.topics, t.key)
		if k.lengths[len(t.key)]--; k.lengths[len(t.key)] == 0 {
			delete(k.lengths, len(t.key))
		}
	}
}

func (s *State) kindLocked(typ string) *kind {
	k := s.kinds[typ]
	if k == nil {
		k = &kind{index: 1}
		s.kinds[typ] = k
	}
	return k
}

// publishLocked hands events to the topics that they are in, and returns the items to wake.
func (s *State) publishLocked(events []*pb.WatchEvent) (woken []*item) {
	items := make(map[*topic]*item, 1)
	for _, ev := range events {
		r := resourceOf(ev)
		k := s.kindLocked(typeKey(r.Id.Type))
		k.index = r.ModifyIndex
		if len(k.topics) == 0 {
			continue
		}
		key, size, p := idKey(r.Id), 0, &published{WatchEvent: ev, shared: true}
		for n := range k.lengths {
			if n > len(key) {
				continue
			}
			t := k.topics[key[:n]]
			if t == nil {
				continue
			}
			it := items[t]
			if it == nil {
				it = &item{ready: make(chan struct{})}
				items[t] = it
			}
			if size == 0 {
				size = 2*proto.Size(ev) + overhead
			}
			it.events = append(it.events, p)
			it.bytes += size
		}
	}
	for t, it := range items {
		woken = append(woken, t.publish(it))
	}
	return woken
}

// overhead is about what an event and its resource take in memory beside twice what they take encoded.
const overhead = 512

// endLocked cuts off every follower, and returns the items to wake.
func (s *State) endLocked() (woken []*item) {
	for _, k := range s.kinds {
		for _, t := range k.topics {
			woken = append(woken, t.end())
		}
		k.topics, k.lengths = nil, nil
	}
	return woken
}

func wakeAll(items []*item) {
	for _, it := range items {
		it.wake()
	}
}

// resourceOf is what an event tells of, with the index of the write that it tells of.
func resourceOf(ev *pb.WatchEvent) *pb.Resource {
	if d := ev.GetDelete(); d != nil {
		return d.GetResource()
	}
	return ev.GetUpsert().GetResource()
}
