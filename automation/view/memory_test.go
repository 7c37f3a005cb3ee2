// SPDX-License-Identifier: MPL-2.0

package view

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/broadcast"
)

// memory is a Source whose data a test changes.
type memory struct {
	changed broadcast.Broadcast
	delay   func() time.Duration // before each event of a stream; nil: none

	mu      sync.Mutex
	data    map[table]map[string]api.Resource
	index   uint64
	watches map[*memoryWatch]struct{}
	down    map[table]bool
	opened  int // streams that were opened
	status  api.Status
	members map[bool][]api.Member
	polls   int
	failing error // of Status
}

// table has the resources of a type in a datacenter.
type table struct{ dc, kind string }

type memoryWatch struct {
	table  table
	prefix string
	queue  []api.ResourceEvent
	cut    bool
}

func newMemory() *memory {
	return &memory{data: map[table]map[string]api.Resource{}, watches: map[*memoryWatch]struct{}{},
		down: map[table]bool{}, members: map[bool][]api.Member{}}
}

var errDown = errors.New("no connection")

func (m *memory) Watch(ctx context.Context, s Stream) iter.Seq2[api.ResourceEvent, error] {
	return func(yield func(api.ResourceEvent, error) bool) {
		w := &memoryWatch{table: table{s.Datacenter, s.Type.Kind}, prefix: s.Prefix}
		if !m.open(w) {
			yield(api.ResourceEvent{}, errDown)
			return
		}
		defer m.close(w)
		for {
			wake := m.changed.Wait()
			m.mu.Lock()
			queue, cut := w.queue, w.cut
			w.queue = nil
			m.mu.Unlock()
			for _, ev := range queue {
				if m.delay != nil {
					time.Sleep(m.delay()) // in a bubble, so no time passes
				}
				if !yield(ev, nil) {
					return
				}
			}
			if cut {
				yield(api.ResourceEvent{}, errDown)
				return
			}
			if len(queue) > 0 {
				continue
			}
			select {
			case <-wake:
			case <-ctx.Done():
				yield(api.ResourceEvent{}, ctx.Err())
				return
			}
		}
	}
}

func (m *memory) open(w *memoryWatch) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down[w.table] || m.down[table{dc: w.table.dc}] {
		return false
	}
	m.opened++
	m.watches[w] = struct{}{}
	for _, name := range slices.Sorted(maps.Keys(m.data[w.table])) {
		if strings.HasPrefix(name, w.prefix) {
			w.queue = append(w.queue, api.ResourceEvent{Type: api.EventUpsert, Resource: m.data[w.table][name]})
		}
	}
	w.queue = append(w.queue, api.ResourceEvent{Type: api.EventEndOfSnapshot})
	return true
}

func (m *memory) close(w *memoryWatch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.watches, w)
}

// streams returns the number of open streams.
func (m *memory) streams() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.watches)
}

func (m *memory) Status(context.Context) (api.Status, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.polls++
	s := m.status
	s.Datacenters = slices.Clone(s.Datacenters)
	return s, m.failing
}

func (m *memory) Members(_ context.Context, wan bool) ([]api.Member, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.members[wan]), m.failing
}

// setDown cuts off or restores a datacenter, or only the streams of a kind.
func (m *memory) setDown(dc, kind string, down bool) {
	m.mu.Lock()
	m.down[table{dc, kind}] = down
	for w := range m.watches {
		if down && w.table.dc == dc && (kind == "" || kind == w.table.kind) {
			w.cut, w.queue = true, nil
		}
	}
	m.mu.Unlock()
	m.changed.Notify()
}

func (m *memory) put(dc, kind, name, owner string, data proto.Message) string {
	m.mu.Lock()
	t := table{dc, kind}
	if m.data[t] == nil {
		m.data[t] = map[string]api.Resource{}
	}
	m.index++
	r := m.data[t][name]
	text, err := protojson.Marshal(data)
	if err != nil {
		panic(err)
	}
	if r.ID.UID == "" {
		r.ID = api.ResourceID{UID: fmt.Sprintf("u%d", m.index), Name: name, Type: api.ResourceTypeName{Kind: kind}}
	}
	r.Data, r.ModifyIndex = text, m.index
	r.Owner = nil
	if owner != "" {
		r.Owner = &api.ResourceID{UID: owner}
	}
	m.data[t][name] = r
	m.send(t, api.ResourceEvent{Type: api.EventUpsert, Resource: r})
	m.mu.Unlock()
	m.changed.Notify()
	return r.ID.UID
}

func (m *memory) del(dc, kind, name string) {
	m.mu.Lock()
	t := table{dc, kind}
	if r, ok := m.data[t][name]; ok {
		delete(m.data[t], name)
		m.send(t, api.ResourceEvent{Type: api.EventDelete, Resource: r})
	}
	m.mu.Unlock()
	m.changed.Notify()
}

// send adds an event to the streams. The caller holds m.mu.
func (m *memory) send(t table, ev api.ResourceEvent) {
	for w := range m.watches {
		if w.table == t && !w.cut && strings.HasPrefix(ev.Resource.ID.Name, w.prefix) {
			w.queue = append(w.queue, ev)
		}
	}
}

func (m *memory) node(dc, name, addr string) {
	m.put(dc, "Node", name, "", &pb.Node{Node: name, Address: addr})
}

// service writes an instance of a service on a node, with the status of its
// check.
func (m *memory) service(dc, node, id, name, status string, tags ...string) {
	m.put(dc, "Service", node+"/"+id, "", &pb.Service{Node: node, Id: id, Service: name, Port: 80, Tags: tags})
	m.put(dc, "Check", node+"/"+id, "", &pb.Check{Node: node, CheckId: id, ServiceId: id, Status: status})
}

// sampleCatalog writes the catalog to which testdata/values.json refers.
func sampleCatalog(m *memory) {
	m.put("dc1", "Node", "n1", "", &pb.Node{Node: "n1", Address: "10.0.0.1", Meta: map[string]string{"rack": "r1"},
		TaggedAddresses: map[string]string{"lan": "10.0.0.1", "wan": "192.0.2.1"}})
	m.node("dc1", "n2", "10.0.0.2")
	m.node("dc1", "n3", "10.0.0.3")
	m.node("dc2", "m1", "10.2.0.1")
	m.put("dc1", "Service", "n1/web-1", "", &pb.Service{Node: "n1", Id: "web-1", Service: "web", Address: "10.0.0.11",
		Port: 80, Tags: []string{"v1", "blue"}, Meta: map[string]string{"owner": `a "quoted" ${x}`}})
	m.put("dc1", "Service", "n1/api-1", "", &pb.Service{Node: "n1", Id: "api-1", Service: "api", Port: 81})
	m.service("dc1", "n2", "web-2", "web", "warning", "v2")
	m.service("dc1", "n3", "web-3", "web", "critical", "v2")
	m.put("dc1", "Check", "n1/c1", "", &pb.Check{Node: "n1", CheckId: "c1", ServiceId: "web-1", Status: "passing"})
	m.put("dc1", "Check", "n1/c2", "", &pb.Check{Node: "n1", CheckId: "c2", ServiceId: "api-1", Status: "passing"})
	m.put("dc2", "Service", "m1/db-1", "", &pb.Service{Node: "m1", Id: "db-1", Service: "db", Port: 5432})
	m.put("dc2", "Check", "m1/c1", "", &pb.Check{Node: "m1", CheckId: "c1", ServiceId: "db-1", Status: "passing"})
	for key, value := range map[string]string{"app/color": "blue", "app/shape": "square", "app/deep/key": "nested"} {
		m.put("dc1", "Entry", key, "", &pb.KVEntry{Value: []byte(value)})
	}
}

// start runs Views of m until the end of the test.
func start(t *testing.T, m *memory) *Views {
	t.Helper()
	return startWith(t, m, slog.New(slog.DiscardHandler))
}

func startWith(t *testing.T, m *memory, logger *slog.Logger) *Views {
	t.Helper()
	v, err := New(m, Config{Datacenter: "dc1", Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- v.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if n := m.streams(); n != 0 {
			t.Errorf("%d streams are open after Run, want 0", n)
		}
	})
	return v
}

// open opens the view of a query in the JSON of pb.TaskQuery.
func open(t *testing.T, v *Views, query string) *View {
	t.Helper()
	var q pb.TaskQuery
	if err := protojson.Unmarshal([]byte(query), &q); err != nil {
		t.Fatalf("query %s: %v", query, err)
	}
	w, err := v.Open(&q)
	if err != nil {
		t.Fatalf("Open(%s) = %v, want nil", query, err)
	}
	return w
}
