// SPDX-License-Identifier: MPL-2.0

package server

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"

	"github.com/wanfed/wanfed/server/httpapi"
)

func consulKV(t *testing.T, lab *consulLab, dc string) {
	w, r := lab.writer.KV(), lab.reader.KV()
	wo, ro := &consul.WriteOptions{Datacenter: dc}, &consul.QueryOptions{Datacenter: dc}
	must := func(_ *consul.WriteMeta, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	get := func(key string) *consul.KVPair {
		t.Helper()
		p, meta, err := r.Get(key, ro)
		if err != nil || meta.LastIndex == 0 || !meta.KnownLeader {
			t.Fatalf("get %q: %+v, %v", key, meta, err)
		}
		return p
	}
	if p := get("app/color"); p != nil {
		t.Fatalf("there is %+v", p)
	}
	must(w.Put(&consul.KVPair{Key: "app/color", Value: []byte("blue"), Flags: 42}, wo))
	first := get("app/color")
	if first == nil || string(first.Value) != "blue" || first.Flags != 42 || first.Key != "app/color" ||
		first.CreateIndex != first.ModifyIndex || first.LockIndex != 0 || first.Session != "" {
		t.Fatalf("%+v", first)
	}

	// Compare-and-swap, also of a key that must not be there.
	for _, test := range []struct {
		index uint64
		want  bool
	}{{0, false}, {first.ModifyIndex + 1000, false}, {first.ModifyIndex, true}, {first.ModifyIndex, false}} {
		if ok, _, err := w.CAS(&consul.KVPair{Key: "app/color", Value: []byte("red"), ModifyIndex: test.index}, wo); ok != test.want || err != nil {
			t.Errorf("CAS at %d: %t, %v", test.index, ok, err)
		}
	}
	if ok, _, err := w.CAS(&consul.KVPair{Key: "app/new key/é", Value: nil}, wo); !ok || err != nil {
		t.Errorf("CAS of a new key: %t, %v", ok, err)
	}
	second := get("app/color")
	if string(second.Value) != "red" || second.Flags != 0 || second.ModifyIndex <= first.ModifyIndex || second.CreateIndex != first.CreateIndex {
		t.Errorf("%+v after %+v", second, first)
	}
	if p := get("app/new key/é"); p == nil || p.Value != nil {
		t.Errorf("an empty value: %+v", p)
	}

	// Keys that a path would not keep as they are.
	odd := []string{"odd//a", "odd/../b", "odd/./c", "odd/%2F?&#d", "odd/e/"}
	for _, key := range odd {
		must(w.Put(&consul.KVPair{Key: key, Value: []byte(key)}, wo))
		if p := get(key); p == nil || p.Key != key || string(p.Value) != key {
			t.Errorf("key %q: %+v", key, p)
		}
	}
	slices.Sort(odd)
	if keys, _, err := r.Keys("odd/", "", ro); err != nil || !slices.Equal(keys, odd) {
		t.Errorf("keys: %q, %v", keys, err)
	}
	if keys, _, err := r.Keys("", "/", ro); err != nil || !slices.Equal(keys, []string{"app/", "odd/"}) {
		t.Errorf("keys by separator: %q, %v", keys, err)
	}
	pairs, meta, err := r.List("app", ro)
	if err != nil || len(pairs) != 2 || pairs[0].Key != "app/color" || string(pairs[0].Value) != "red" || meta.LastIndex < pairs[1].ModifyIndex {
		t.Errorf("list: %v, %v", pairs, err)
	}
	if pairs, _, err := r.List("nothing", ro); err != nil || pairs != nil {
		t.Errorf("list of nothing: %v, %v", pairs, err)
	}
	for _, o := range []consul.QueryOptions{{Datacenter: dc, AllowStale: true}, {Datacenter: dc, RequireConsistent: true}} {
		if p, _, err := r.Get("app/color", &o); err != nil || p == nil {
			t.Errorf("%+v: %v, %v", o, p, err)
		}
	}

	// Deletion.
	for _, test := range []struct {
		index uint64
		want  bool
	}{{first.ModifyIndex, false}, {second.ModifyIndex, true}, {second.ModifyIndex, true}} {
		if ok, _, err := w.DeleteCAS(&consul.KVPair{Key: "app/color", ModifyIndex: test.index}, wo); ok != test.want || err != nil {
			t.Errorf("DeleteCAS at %d: %t, %v", test.index, ok, err)
		}
	}
	must(w.Delete("app/color", wo))
	must(w.DeleteTree("odd/", wo))
	if keys, _, err := r.Keys("", "", ro); err != nil || !slices.Equal(keys, []string{"app/new key/é"}) {
		t.Errorf("what is left: %q, %v", keys, err)
	}
	must(w.DeleteTree("", wo))
	if keys, _, err := r.Keys("", "", ro); err != nil || keys != nil {
		t.Errorf("what is left of all: %q, %v", keys, err)
	}
}

func consulKVBlocking(t *testing.T, lab *consulLab, dc string) {
	w, wo := lab.writer.KV(), &consul.WriteOptions{Datacenter: dc}
	put := func(key, value string) {
		t.Helper()
		if _, err := w.Put(&consul.KVPair{Key: key, Value: []byte(value)}, wo); err != nil {
			t.Fatal(err)
		}
	}
	type answer struct {
		value string
		index uint64
		err   error
	}
	// query reads wait/a, or keys below wait/, waiting for a change of the index.
	query := func(list bool, index uint64) (a answer) {
		o := &consul.QueryOptions{Datacenter: dc, WaitIndex: index, WaitTime: 20 * time.Second}
		var meta *consul.QueryMeta
		if list {
			var pairs consul.KVPairs
			if pairs, meta, a.err = lab.reader.KV().List("wait/", o); len(pairs) > 0 {
				a.value = string(pairs[0].Value)
			}
		} else {
			var p *consul.KVPair
			if p, meta, a.err = lab.reader.KV().Get("wait/a", o); p != nil {
				a.value = string(p.Value)
			}
		}
		if a.err == nil {
			a.index = meta.LastIndex
		}
		return a
	}
	for _, list := range []bool{false, true} {
		now := query(list, 0)
		if now.err != nil || now.value != "" {
			t.Fatalf("at first: %+v", now)
		}
		for _, step := range []struct {
			want  string
			write func()
		}{
			{"1", func() { put("wait/a", "1") }}, // it was not there
			{"2", func() { put("wait/a", "2") }},
			{"", func() {
				if _, err := w.Delete("wait/a", wo); err != nil {
					t.Error(err)
				}
			}},
		} {
			answers := make(chan answer, 1)
			index := now.index
			go func() { answers <- query(list, index) }()
			put("elsewhere", step.want)
			step.write()
			now = <-answers
			if now.err != nil || now.value != step.want || now.index <= index {
				t.Fatalf("list %t: %+v after index %d, want %q", list, now, index, step.want)
			}
		}
	}
}

// consulKVRefused looks at refusals by plain HTTP: their status and text.
func consulKVRefused(t *testing.T, lab *consulLab, dc string) {
	_, err := lab.reader.KV().Put(&consul.KVPair{Key: "x"}, &consul.WriteOptions{Datacenter: dc})
	if e, ok := err.(consul.StatusError); !ok || e.Code != http.StatusForbidden {
		t.Errorf("a write without a certificate: %v", err)
	}
	_, err = lab.writer.KV().Put(&consul.KVPair{Key: "x", Value: bytes.Repeat([]byte("v"), 512<<10+1)}, &consul.WriteOptions{Datacenter: dc})
	if e, ok := err.(consul.StatusError); !ok || e.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("too large a value: %v", err)
	}
	for n := 1; ; n++ {
		_, err = lab.writer.KV().Put(&consul.KVPair{Key: "x", Value: bytes.Repeat([]byte("v"), 512<<10)}, &consul.WriteOptions{Datacenter: dc})
		// A way that does not answer for a quarter of a second is held to be dead, and a write on it fails. It took so long on a busy machine.
		if e, ok := err.(consul.StatusError); n == 5 || !ok || !strings.Contains(e.Body, httpapi.ErrUnreachable.Error()) {
			break
		}
	}
	if err != nil {
		t.Errorf("the largest value: %v", err)
	}
	_, _, err = lab.writer.KV().Acquire(&consul.KVPair{Key: "x", Session: "s"}, &consul.WriteOptions{Datacenter: dc})
	if e, ok := err.(consul.StatusError); !ok || e.Code != http.StatusBadRequest {
		t.Errorf("a lock: %v", err)
	}
	if _, err := lab.writer.KV().DeleteTree("", &consul.WriteOptions{Datacenter: dc}); err != nil {
		t.Error(err)
	}
}
