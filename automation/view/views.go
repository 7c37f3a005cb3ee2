// SPDX-License-Identifier: MPL-2.0

package view

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/backoff"
)

// coalesce is the time from the first change to the rendering of all changes.
// The resources of one write arrive on several streams. Without the delay, a
// view could have an instance without its critical check.
const coalesce = 2 * time.Millisecond

// Config configures Views.
type Config struct {
	// Datacenter is the datacenter of queries without one: that of the source.
	// Required for New. NewConsul ignores it: the agent knows its datacenter.
	Datacenter string
	// Logger reports streams that were lost. Default: slog.Default().
	Logger *slog.Logger
}

// Views are the views of a daemon. Run maintains them. The other methods may be
// called from any goroutine, also before Run.
type Views struct {
	src   Source       // nil with agent
	agent *consulAgent // nil with src
	cfg   Config
	wake  chan struct{} // of size 1: Run has work to do

	mu      sync.Mutex
	views   map[string]*view
	feeds   map[feedKey]*feed
	touched []*view // whose values have changed since the last flush
}

// New returns Views of the data of src, or an error if cfg is invalid.
func New(src Source, cfg Config) (*Views, error) {
	if src == nil || cfg.Datacenter == "" {
		return nil, errors.New("views need a source and a datacenter")
	}
	v := newViews(cfg)
	v.src = src
	return v, nil
}

func newViews(cfg Config) *Views {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Views{cfg: cfg, wake: make(chan struct{}, 1), views: map[string]*view{}, feeds: map[feedKey]*feed{}}
}

// wakeUp makes Run look for work. It does not block.
func (v *Views) wakeUp() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// Run maintains the views until ctx ends, and returns nil when all its goroutines
// have ended. It may be called once.
func (v *Views) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for {
		v.start(ctx, &wg)
		select {
		case <-v.wake:
		case <-ctx.Done():
			return nil
		}
		backoff.Sleep(ctx, coalesce, nil)
		v.flush()
	}
}

// start starts the goroutines of new feeds.
func (v *Views) start(ctx context.Context, wg *sync.WaitGroup) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, f := range v.feeds {
		if f.cancel != nil {
			continue
		}
		var fctx context.Context
		fctx, f.cancel = context.WithCancel(ctx)
		for i := range f.streams {
			wg.Go(func() { v.follow(fctx, f, i) })
		}
	}
}

// flush renders all changes and notifies the views that have changed.
func (v *Views) flush() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, f := range v.feeds {
		if !f.dirty {
			continue
		}
		f.dirty = false
		f.mirror.flush()
		if f.connected { // otherwise events are held back
			f.index = 0
			for _, s := range f.streams {
				f.index = max(f.index, s.index)
			}
		}
		if !f.unfinished {
			continue
		}
		f.unfinished = false
		for w := range f.views {
			if f.complete && !w.complete && !w.waiting {
				w.complete = true
				w.touch()
			}
			f.unfinished = f.unfinished || !w.complete
		}
	}
	for _, w := range v.touched {
		w.publish()
	}
	v.touched = v.touched[:0]
}

// publish notifies of a change of the value.
func (v *view) publish() {
	v.touched = false
	v.at = time.Now()
	if v.complete {
		v.changed.Notify()
	}
}

// Open returns a View of the data that q selects, in the datacenter of q. Equal
// queries share their data. q has been checked by task.Check. Open returns an
// error if q is not supported. The caller closes the View.
func (v *Views) Open(q *pb.TaskQuery) (*View, error) {
	w, key, err := v.prepare(q)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if open := v.views[w.id]; open != nil {
		open.refs++
		return &View{view: open}, nil
	}
	w.refs = 1
	v.views[w.id] = w
	f := v.feeds[key]
	if f == nil {
		f = v.newFeed(key)
		v.feeds[key] = f
	}
	w.feed = f
	f.views[w] = struct{}{}
	f.dirty, f.unfinished = true, true
	f.mirror.add(w)
	v.wakeUp()
	return &View{view: w}, nil
}

// Check returns the error of Open for q, without opening a View.
func (v *Views) Check(q *pb.TaskQuery) error {
	_, _, err := v.prepare(q)
	return err
}

// prepare returns a new view for q, which is not open, and its feed.
func (v *Views) prepare(q *pb.TaskQuery) (*view, feedKey, error) {
	q = v.normalize(q)
	id, err := proto.MarshalOptions{Deterministic: true}.Marshal(q)
	if err != nil {
		return nil, feedKey{}, err
	}
	w, err := newView(v, q)
	if err != nil {
		return nil, feedKey{}, err
	}
	w.id = string(id)
	key, err := v.feedOf(q)
	return w, key, err
}

// normalize returns the part of q that defines the data, with the datacenter.
func (v *Views) normalize(q *pb.TaskQuery) *pb.TaskQuery {
	q = proto.CloneOf(q)
	q.TriggerOnly = false
	slices.Sort(q.Names)
	slices.Sort(q.On)
	q.Names, q.On = slices.Compact(q.Names), slices.Compact(q.On)
	if q.Kind == task.KindKV && !q.Recurse { // selectors find it by name
		q.Names, q.Path = []string{q.Path}, ""
	}
	if q.Datacenter == "" && !isFederation(q.Kind) {
		q.Datacenter = v.cfg.Datacenter
	}
	return q
}

// View is an open view. Its methods may be called from any goroutine.
type View struct {
	view   *view
	closed sync.Once
}

// Value returns the current value. It returns false until the view was complete
// once; the Value then has only Connected, Since and Err. A view that is cut off
// keeps its last value.
func (w *View) Value() (Value, bool) {
	w.view.views.mu.Lock()
	defer w.view.views.mu.Unlock()
	return w.view.current()
}

// Changed returns a channel that is closed at the next change of the value. The
// caller calls Changed before Value. Changes of Connected, Since and Err do not
// close the channel.
func (w *View) Changed() <-chan struct{} { return w.view.changed.Wait() }

// Close releases the view. Streams that no other view needs end. Further calls
// have no effect.
func (w *View) Close() { w.closed.Do(w.close) }

func (w *View) close() {
	v := w.view.views
	v.mu.Lock()
	defer v.mu.Unlock()
	if w.view.refs--; w.view.refs > 0 {
		return
	}
	delete(v.views, w.view.id)
	f := w.view.feed
	f.mirror.remove(w.view)
	delete(f.views, w.view)
	if len(f.views) > 0 {
		return
	}
	if f.cancel != nil {
		f.cancel()
	}
	delete(v.feeds, f.key)
}
