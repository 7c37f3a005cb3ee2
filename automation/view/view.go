// SPDX-License-Identifier: MPL-2.0

package view

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/filter"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/broadcast"
)

// Value is the data of a view at one moment. JSON and Keys are immutable.
type Value struct {
	// JSON is the value of the variable task.Variable(kind): an element of an
	// input.Set.
	JSON json.RawMessage
	// Trigger is the digest of what starts a run. It does not depend on the
	// daemon or on the time. Values with equal digests do not start a run.
	Trigger string
	// Keys has the digest of each object, by the key of the object in JSON. See
	// Changes.
	Keys map[string]string
	// Index is the index of the data: the view has all changes up to it.
	Index uint64
	// At is the time of the last change.
	At time.Time
	// Connected reports whether the value is current. Otherwise Since is the time
	// of the loss of the connection, and Err is the reason.
	Connected bool
	Since     time.Time
	// Err is the reason why the value is not current: the connection was lost, or
	// the filter cannot be evaluated for an object.
	Err error
}

// view is the data of equal queries. Views.mu guards the fields, except for those
// that newView sets.
type view struct {
	views     *Views
	id        string
	query     *pb.TaskQuery // with the datacenter
	match     func(name string) bool
	filter    *filter.Expression
	anyStatus bool            // instances that do not pass are also selected
	userMeta  json.RawMessage // nil: none
	namesOnly bool            // the trigger has only the names of the objects

	refs     int
	feed     *feed
	waiting  bool             // the data is not complete, although the feed is
	complete bool             // the view has a value
	parts    map[string]*part // by id; the order of ids is the order of keys
	ids      []string         // sorted; nil: not up to date
	errs     map[string]error // of objects that cannot be rendered, by id
	touched  bool             // in Views.touched
	value    *Value           // nil: to be built
	at       time.Time
	changed  broadcast.Broadcast
}

// part is an object of a view. It is immutable.
type part struct {
	key    string
	text   []byte // "key":value
	digest string // of text; empty: not in Value.Keys
}

// newPart renders a value, whose encoding as JSON cannot fail.
func newPart(key string, value any) *part {
	name, err := json.Marshal(key)
	if err != nil {
		panic(err)
	}
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return digested(key, slices.Concat(name, []byte{':'}, text))
}

func digested(key string, text []byte) *part {
	return &part{key, text, digestOf(text)}
}

func digestOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// newView returns the view of a query, or an error for a query that task.Check
// accepts and that a view does not support.
func newView(v *Views, q *pb.TaskQuery) (*view, error) {
	w := &view{views: v, query: q, parts: map[string]*part{}, errs: map[string]error{}}
	if q.Namespace != "" {
		return nil, fmt.Errorf("%s: namespace %q: namespaces are not supported: remove namespace", q.Kind, q.Namespace)
	}
	re, err := regexp.Compile(q.GetRegexp())
	if err != nil {
		return nil, fmt.Errorf("%s: regexp: %w", q.Kind, err)
	}
	switch {
	case isFederation(q.Kind):
		w.match = func(dc string) bool { return (q.Datacenter == "" || q.Datacenter == dc) && re.MatchString(dc) }
	case q.Kind == task.KindKV && q.Recurse:
		w.match = func(name string) bool { return strings.HasPrefix(name, q.Path) }
	case len(q.Names) > 0:
		w.match = func(name string) bool { return slices.Contains(q.Names, name) && strings.HasPrefix(name, q.Prefix) }
	case q.Regexp != nil:
		w.match = re.MatchString
	default:
		w.match = func(name string) bool { return strings.HasPrefix(name, q.Prefix) }
	}
	switch q.Kind {
	case task.KindServices:
		if w.filter, err = filter.Parse[api.ServiceEntry](q.Filter); err == nil { // finds unknown names of checks
			_, err = w.filter.Matches(api.ServiceEntry{Checks: []api.Check{{}}})
		}
		w.anyStatus = len(q.Names) > 0 && strings.Contains(q.Filter, "Checks.Status")
	case task.KindNodes:
		w.filter, err = filter.Parse[api.Node](q.Filter)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: filter: %w", q.Kind, err)
	}
	if len(q.UserMeta) > 0 {
		if w.userMeta, err = json.Marshal(q.UserMeta); err != nil {
			return nil, err
		}
	}
	w.namesOnly = !slices.Contains(q.On, "changed") && (len(q.On) > 0 || q.Kind == task.KindCatalogServices)
	return w, nil
}

// setPart adds or changes the object id. A nil part removes it.
func (v *view) setPart(id string, p *part) {
	if p == nil {
		v.remove(id)
		return
	}
	delete(v.errs, id)
	old := v.parts[id]
	if old == p || old != nil && old.digest == p.digest && bytes.Equal(old.text, p.text) {
		return
	}
	if old == nil {
		v.ids = nil
	}
	v.parts[id] = p
	v.touch()
}

func (v *view) remove(id string) {
	delete(v.errs, id)
	if _, ok := v.parts[id]; ok {
		delete(v.parts, id)
		v.ids = nil
		v.touch()
	}
}

// setError records that an object cannot be rendered. The view keeps its
// previous part. A nil error has no effect.
func (v *view) setError(id string, err error) {
	if err != nil {
		v.errs[id] = err
	}
}

// touch records that the value has changed.
func (v *view) touch() {
	v.value = nil
	if !v.touched {
		v.touched = true
		v.views.touched = append(v.views.touched, v)
	}
}

// current returns the value with the state of the connection. It returns false
// for a view that was never complete.
func (v *view) current() (Value, bool) {
	var out Value
	if v.complete {
		if v.value == nil {
			v.value = v.build()
		}
		out = *v.value
	}
	out.Index = v.feed.index
	if out.Connected = v.feed.connected; !out.Connected {
		out.Since, out.Err = v.feed.since, v.feed.err
	}
	for _, err := range v.errs {
		out.Err = err
		break
	}
	return out, v.complete
}

// build joins the parts.
func (v *view) build() *Value {
	if v.ids == nil {
		v.ids = slices.Sorted(maps.Keys(v.parts))
	}
	size := 2
	for _, p := range v.parts {
		size += len(p.text) + 1
	}
	text := append(make([]byte, 0, size), '{')
	keys := make(map[string]string, len(v.ids))
	trigger := make([]byte, 0, 128*len(v.ids))
	var last *part
	for _, id := range v.ids {
		p := v.parts[id]
		if last != nil {
			if p.key == last.key {
				continue
			}
			text = append(text, ',')
		}
		text, last = append(text, p.text...), p
		if p.digest == "" {
			continue
		}
		keys[p.key] = p.digest
		trigger = binary.AppendUvarint(trigger, uint64(len(p.key)))
		trigger = append(trigger, p.key...)
		if !v.namesOnly {
			trigger = append(trigger, p.digest...)
		}
	}
	return &Value{JSON: append(text, '}'), Trigger: digestOf(trigger), Keys: keys, At: v.at}
}
