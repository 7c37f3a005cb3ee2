// SPDX-License-Identifier: MPL-2.0

package view

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
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

// record is a decoded resource. It is immutable.
type record struct {
	name, uid string
	owner     string // uid of the owner, or ""
	index     uint64
	data      proto.Message // nil if the feed does not decode the data
	resource  api.Resource  // zero if the feed decodes the data
}

// feedKey identifies a feed. Two queries with equal keys share the feed.
type feedKey struct {
	dc, kind string // kind: a constant of feedKinds
	typ      string // of kind feedResource
	prefix   string
}

// feed is the data of one or more streams that views use together. The streams
// run while a view uses the feed. After the connection of a stream was lost, the
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
	index     uint64    // highest index of an applied resource

	// The next flush has work: changes of the mirror, and views that may have
	// become complete.
	dirty, unfinished bool
}

// stream is one stream of a feed.
type stream struct {
	spec   Stream
	decode func(api.Resource) (*record, error)
	ready  bool               // the stream is open and has sent its snapshot
	now    map[string]*record // what the mirror has, by name
	// held has what the mirror will have when the feed is connected again, by
	// name. A nil record is a deletion. If replace is true, held has all
	// resources, and other names are deletions.
	held    map[string]*record
	replace bool
}

// follow receives the events of a stream of f until ctx ends.
func (v *Views) follow(ctx context.Context, f *feed, i int) {
	s := f.streams[i]
	log := v.cfg.Logger.With("dc", s.spec.Datacenter, "type", s.spec.Type.String())
	pause := backoff.Backoff{Min: minPause, Max: maxPause}
	for ctx.Err() == nil {
		v.opening(s)
		var err error
		for ev, e := range v.src.Watch(ctx, s.spec) {
			if err = e; err != nil {
				break
			}
			if err = v.receive(f, i, ev); err != nil {
				break
			}
			if ev.Type == api.EventEndOfSnapshot {
				pause.Reset()
			}
		}
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("the stream ended")
		}
		v.lost(f, s, err)
		log.Warn("stream lost", "err", err)
		backoff.Sleep(ctx, pause.Next(), nil)
	}
}

// opening prepares s for a snapshot.
func (v *Views) opening(s *stream) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s.held, s.replace = map[string]*record{}, true
}

// lost records that a stream of f is closed.
func (v *Views) lost(f *feed, s *stream, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s.ready = false
	f.disconnect(err)
}

func (f *feed) disconnect(err error) {
	f.err = err
	if f.connected {
		f.connected, f.since = false, time.Now()
	}
}

// receive processes an event of stream i of f.
func (v *Views) receive(f *feed, i int, ev api.ResourceEvent) error {
	s := f.streams[i]
	var r *record
	if ev.Type == api.EventUpsert {
		var err error
		if r, err = s.decode(ev.Resource); err != nil {
			return fmt.Errorf("resource %s %q: %w", ev.Resource.ID.Type, ev.Resource.ID.Name, err)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	switch ev.Type {
	case api.EventEndOfSnapshot:
		s.ready = true
		f.connect()
	case api.EventUpsert, api.EventDelete:
		if f.connected {
			f.put(i, ev.Resource.ID.Name, r)
			break
		}
		if s.held == nil {
			s.held = map[string]*record{}
		}
		s.held[ev.Resource.ID.Name] = r
	}
	v.wakeUp()
	return nil
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
		f.index = max(f.index, r.index)
	case old == nil:
		return
	default:
		delete(now, name)
	}
	f.mirror.apply(i, old, r)
	f.dirty = true
}

// decodeInto returns a function that decodes data into messages of type T.
func decodeInto[T any, M interface {
	*T
	proto.Message
}](r api.Resource) (*record, error) {
	m := M(new(T))
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(r.Data, m); err != nil {
		return nil, err
	}
	return newRecord(r, m), nil
}

func newRecord(r api.Resource, data proto.Message) *record {
	out := &record{name: r.ID.Name, uid: r.ID.UID, index: r.ModifyIndex, data: data}
	if r.Owner != nil {
		out.owner = r.Owner.UID
	}
	return out
}
