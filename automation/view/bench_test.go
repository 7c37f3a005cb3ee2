// SPDX-License-Identifier: MPL-2.0

package view

import (
	"fmt"
	"log/slog"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
)

// catalogBench has 1,000 views of two datacenters with 10,000 services each, on
// 100 nodes.
type catalogBench struct {
	b     *testing.B
	views *Views
	feeds map[string]*feed // catalogs, by datacenter
	index uint64
}

const benchServices = 10_000

func newCatalogBench(b *testing.B) *catalogBench {
	v, err := New(newMemory(), Config{Datacenter: "dc1", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	c := &catalogBench{b: b, views: v, feeds: map[string]*feed{}}
	for i := range 1000 {
		dc := fmt.Sprintf("dc%d", 1+i%2)
		q := &pb.TaskQuery{Kind: "services", Datacenter: dc}
		switch i / 2 % 10 {
		case 0:
			q.Regexp = new(fmt.Sprintf("^svc-%d[0-9]$", i))
		case 1:
			q.Kind, q.Regexp = "catalog-services", new(fmt.Sprintf("^svc-%d", i))
		default:
			q.Names = []string{fmt.Sprintf("svc-%d", i), fmt.Sprintf("svc-%d", i+1)}
		}
		c.open(q)
	}
	for _, dc := range []string{"dc1", "dc2"} {
		for i := range 100 {
			c.put(dc, 0, fmt.Sprintf("n%d", i), &pb.Node{Node: fmt.Sprintf("n%d", i), Address: "10.0.0.1",
				Meta: map[string]string{"rack": "r1"}})
		}
		for i := range benchServices {
			c.service(dc, i, fmt.Sprintf("svc-%d", i), 80)
			c.put(dc, 2, fmt.Sprint(i), &pb.Check{Node: fmt.Sprintf("n%d", i%100), CheckId: fmt.Sprint(i),
				ServiceId: fmt.Sprint(i), Status: "passing"})
		}
		for i := range 3 {
			v.receive(c.feeds[dc], i, event{typ: api.EventEndOfSnapshot})
		}
	}
	v.flush()
	return c
}

func (c *catalogBench) open(q *pb.TaskQuery) *View {
	w, err := c.views.Open(q)
	if err != nil {
		c.b.Fatal(err)
	}
	c.feeds[q.Datacenter] = w.view.feed
	return w
}

// put decodes and applies an event of a stream.
func (c *catalogBench) put(dc string, stream int, name string, data proto.Message) {
	text, err := protojson.Marshal(data)
	if err != nil {
		c.b.Fatal(err)
	}
	decode := []func(api.Resource) (any, error){decodeInto[pb.Node], decodeInto[pb.Service], decodeInto[pb.Check]}[stream]
	decoded, err := decode(api.Resource{Data: text})
	if err != nil {
		c.b.Fatal(err)
	}
	c.index++
	c.views.receive(c.feeds[dc], stream,
		event{typ: api.EventUpsert, name: name, record: &record{name: name, uid: name, index: c.index, data: decoded}})
}

func (c *catalogBench) service(dc string, i int, name string, port int) {
	c.put(dc, 1, fmt.Sprint(i), &pb.Service{Node: fmt.Sprintf("n%d", i%100), Id: fmt.Sprint(i), Service: name,
		Port: uint32(port), Tags: []string{"v1", "blue"}, Meta: map[string]string{"owner": "team"}})
}

// BenchmarkViews measures one change of the catalog until the views have their
// values.
func BenchmarkViews(b *testing.B) {
	b.Run("change", func(b *testing.B) {
		c := newCatalogBench(b)
		w := c.open(&pb.TaskQuery{Kind: "services", Datacenter: "dc2", Names: []string{"svc-7"}})
		c.views.flush()
		n := 0
		for b.Loop() {
			n++
			c.service("dc2", 7, "svc-7", n%2+1)
			c.views.flush()
			if v, ok := w.Value(); !ok || len(v.Keys) != 1 {
				b.Fatalf("Value() = %s, %v, want one instance", v.JSON, ok)
			}
		}
	})
	b.Run("new name", func(b *testing.B) {
		c := newCatalogBench(b)
		n := 0
		for b.Loop() {
			n++
			c.service("dc2", 7, fmt.Sprint("other-", n), 80)
			c.views.flush()
		}
	})
	b.Run("view of 10000 instances", func(b *testing.B) {
		c := newCatalogBench(b)
		w := c.open(&pb.TaskQuery{Kind: "services", Datacenter: "dc2", Regexp: new("")})
		c.views.flush()
		n := 0
		for b.Loop() {
			n++
			c.service("dc2", 7, "svc-7", n%2+1)
			c.views.flush()
			if v, ok := w.Value(); !ok || len(v.Keys) != benchServices {
				b.Fatalf("Value() has %d instances, %v, want %d", len(v.Keys), ok, benchServices)
			}
		}
	})
	b.Run("snapshots", func(b *testing.B) {
		for b.Loop() {
			newCatalogBench(b)
		}
	})
}
