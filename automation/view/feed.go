// SPDX-License-Identifier: MPL-2.0

package view

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/consul"
	"github.com/wanfed/wanfed/internal/backoff"
)

// Pauses between the attempts to open a stream.
const (
	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second
)

// mirror has the objects of a feed and renders them into views. Views.mu guards
// it.
type mirror interface {
	// apply replaces the resource old by the resource new of stream i. Either may
	// be nil.
	apply(i int, old, new *record)
	// flush renders what has changed since the last flush into the views.
	flush()
	// add renders all objects into a new view, and remove removes a view.
	add(v *view)
	remove(v *view)
}

// record is a decoded resource, or a part of the result of a poll. It is
// immutable.
type record struct {
	name, uid string // name: of the resource, datacenter or member
	owner     string // uid of the owner, or ""
	index     uint64
	data      any // depends on the stream
}

// event is a change of a record in a stream.
type event struct {
	typ    string  // api.EventUpsert, api.EventDelete, api.EventEndOfSnapshot or eventTick
	name   string  // of the record in its stream
	record *record // of an upsert
	index  uint64  // of the change, or of the snapshot; 0: unknown
}

// eventTick reports that the source was polled: all records are current.
const eventTick = "tick"

// feedKey identifies a feed. Two queries with equal keys share the feed.
type feedKey struct {
	dc, kind string
	typ      api.ResourceTypeName // of feedResource
	prefix   string
}

// feed is the data of related streams. The streams run while a view uses the
// feed. After the connection of a stream was lost, the
// mirror does not change until every stream has sent a snapshot. All streams
// then change the mirror together. Views.mu guards the fields.
type feed struct {
	key     feedKey
	streams []*stream
	mirror  mirror
	views   map[*view]struct{}
	cancel  context.CancelFunc // ends the goroutines; nil before their start

	connected bool      // every stream is open and has sent its snapshot
	complete  bool      // connected now or earlier
	since     time.Time // last change of connected
	err       error     // why the feed is not connected, if that is known
	index     uint64    // highest index of the events that the views have

	// The next flush has work: changes of the mirror, and views that may have
	// become complete.
	dirty, unfinished bool
}

// stream is one stream of a feed.
type stream struct {
	name  string                                            // for logs
	watch func(ctx context.Context) iter.Seq2[event, error] // has the contract of Source.Watch
	ready bool                                              // the stream is open and has sent its snapshot
	now   map[string]*record                                // what the mirror has, by name
	// confirmed is the time of the last response of a source that is polled.
	// Zero: the stream receives changes, so it is current while it is open.
	confirmed time.Time
	// held has what the mirror will have when the feed is connected again, by
	// name. A nil record is a deletion. If replace is true, held has all
	// resources, and other names are deletions.
	held    map[string]*record
	replace bool
	index   uint64 // highest index of the events since the stream was opened
}

// follow receives the events of a stream of f until ctx ends. It reports the
// first failure after a success, and the next success.
func (v *Views) follow(ctx context.Context, f *feed, i int) {
	s := f.streams[i]
	log := v.cfg.Logger.With("dc", f.key.dc, "type", s.name)
	pause := backoff.Backoff{Min: minPause, Max: maxPause}
	failed := false
	for ctx.Err() == nil {
		v.opening(s)
		var err error
		for ev, e := range s.watch(ctx) {
			if err = e; err != nil {
				break
			}
			v.receive(f, i, ev)
			if ev.typ == api.EventEndOfSnapshot {
				pause.Reset()
				if failed {
					log.Info("stream restored")
					failed = false
				}
			}
		}
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("the stream ended")
		}
		v.lost(f, s, err)
		if !failed {
			log.Warn("stream lost", "err", err)
			failed = true
		}
		backoff.Sleep(ctx, max(pause.Next(), consul.RetryAfter(err)), nil)
	}
}

// opening prepares s for a snapshot.
func (v *Views) opening(s *stream) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s.held, s.replace = map[string]*record{}, true
	s.index = 0 // another server may have older data
}

// lost records that a stream of f is closed.
func (v *Views) lost(f *feed, s *stream, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	at := time.Now()
	if !s.confirmed.IsZero() {
		at = s.confirmed
	}
	if f.connected || s.ready && at.Before(f.since) {
		f.connected, f.since = false, at
	}
	s.ready = false
	f.err = err
}

// receive processes an event of stream i of f.
func (v *Views) receive(f *feed, i int, ev event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := f.streams[i]
	s.index = max(s.index, ev.index)
	switch ev.typ {
	case api.EventEndOfSnapshot:
		s.ready = true
		f.connect()
	case api.EventUpsert, api.EventDelete:
		if f.connected {
			f.put(i, ev.name, ev.record)
			break
		}
		if s.held == nil {
			s.held = map[string]*record{}
		}
		s.held[ev.name] = ev.record
	case eventTick:
		f.dirty = f.dirty || f.connected // otherwise the mirror is not current
	}
	if ev.typ == eventTick {
		s.confirmed = time.Now()
	}
	v.wakeUp()
}

// connect applies what the streams hold, if all are ready.
func (f *feed) connect() {
	for _, s := range f.streams {
		if !s.ready {
			return
		}
	}
	for i, s := range f.streams {
		if s.replace {
			for name := range s.now {
				if s.held[name] == nil {
					f.put(i, name, nil)
				}
			}
		}
		for name, r := range s.held {
			f.put(i, name, r)
		}
		s.held, s.replace = nil, false
	}
	f.connected, f.complete, f.since, f.err = true, true, time.Now(), nil
	f.dirty, f.unfinished = true, true
}

// put changes the resource with the name in stream i. r is nil for a deletion.
func (f *feed) put(i int, name string, r *record) {
	now := f.streams[i].now
	old := now[name]
	switch {
	case r != nil:
		now[name] = r
	case old == nil:
		return
	default:
		delete(now, name)
	}
	f.mirror.apply(i, old, r)
	f.dirty = true
}

// decoded returns the events of a stream of the source.
func (v *Views) decoded(s Stream, decode func(api.Resource) (any, error)) func(context.Context) iter.Seq2[event, error] {
	return func(ctx context.Context) iter.Seq2[event, error] {
		return func(yield func(event, error) bool) {
			for ev, err := range v.src.Watch(ctx, s) {
				r := ev.Resource
				out := event{typ: ev.Type, name: r.ID.Name, index: max(ev.Index, r.ModifyIndex)}
				if err == nil && ev.Type == api.EventUpsert {
					out.record = &record{name: r.ID.Name, uid: r.ID.UID, index: r.ModifyIndex}
					if r.Owner != nil {
						out.record.owner = r.Owner.UID
					}
					if out.record.data, err = decode(r); err != nil {
						err = fmt.Errorf("resource %q: %w", r.ID.Name, err)
					}
				}
				if !yield(out, err) || err != nil {
					return
				}
			}
		}
	}
}

// decodeInto decodes data into a message of type T.
func decodeInto[T any, M interface {
	*T
	proto.Message
}](r api.Resource) (any, error) {
	m := M(new(T))
	return m, protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(r.Data, m)
}
