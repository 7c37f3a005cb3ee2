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

// kvTest reads and writes keys of one datacenter.
type kvTest struct {
	*testing.T
	reader, writer *consul.KV
	query          *consul.QueryOptions
	write          *consul.WriteOptions
}

func newKVTest(t *testing.T, lab *consulLab, dc string) *kvTest {
	return &kvTest{t, lab.reader.KV(), lab.writer.KV(), &consul.QueryOptions{Datacenter: dc},
		&consul.WriteOptions{Datacenter: dc}}
}

func (t *kvTest) put(key, value string, flags uint64) {
	t.Helper()
	if _, err := t.writer.Put(&consul.KVPair{Key: key, Value: []byte(value), Flags: flags}, t.write); err != nil {
		t.Fatalf("Put(%q) = %v, want nil", key, err)
	}
}

// get returns nil if the key does not exist.
func (t *kvTest) get(key string) *consul.KVPair {
	t.Helper()
	p, meta, err := t.reader.Get(key, t.query)
	if err != nil || meta.LastIndex == 0 || !meta.KnownLeader {
		t.Fatalf("Get(%q) = %v with %+v, want nil, an index and a known leader", key, err, meta)
	}
	return p
}

func (t *kvTest) wantKeys(prefix, separator string, want ...string) {
	t.Helper()
	if keys, _, err := t.reader.Keys(prefix, separator, t.query); err != nil || !slices.Equal(keys, want) {
		t.Errorf("Keys(%q, %q) = %q, %v, want %q", prefix, separator, keys, err, want)
	}
}

// wantCAS makes a compare-and-swap at each index and checks whether it
// succeeds.
func (t *kvTest) wantCAS(name string, cas func(index uint64) (bool, *consul.WriteMeta, error), attempts []casAttempt) {
	t.Helper()
	for _, a := range attempts {
		if ok, _, err := cas(a.index); ok != a.want || err != nil {
			t.Errorf("%s(index %d) = %t, %v, want %t, nil", name, a.index, ok, err, a.want)
		}
	}
}

type casAttempt struct {
	index uint64
	want  bool
}

// testConsulKV writes, reads and deletes keys in datacenter dc.
func testConsulKV(parent *testing.T, lab *consulLab, dc string) {
	t := newKVTest(parent, lab, dc)
	if p := t.get("app/color"); p != nil {
		t.Fatalf("Get(app/color) = %+v before the first write, want nil", p)
	}
	t.put("app/color", "blue", 42)
	first := t.get("app/color")
	if first == nil || string(first.Value) != "blue" || first.Flags != 42 || first.Key != "app/color" ||
		first.CreateIndex != first.ModifyIndex || first.LockIndex != 0 || first.Session != "" {
		t.Fatalf("Get(app/color) = %+v, want blue with flags 42 and equal indexes", first)
	}
	swap := func(index uint64) (bool, *consul.WriteMeta, error) {
		return t.writer.CAS(&consul.KVPair{Key: "app/color", Value: []byte("red"), ModifyIndex: index}, t.write)
	}
	t.wantCAS("CAS", swap, []casAttempt{
		{0, false}, {first.ModifyIndex + 1000, false}, {first.ModifyIndex, true}, {first.ModifyIndex, false},
	})
	second := t.get("app/color")
	if string(second.Value) != "red" || second.Flags != 0 || second.ModifyIndex <= first.ModifyIndex ||
		second.CreateIndex != first.CreateIndex {
		t.Errorf("Get(app/color) = %+v after CAS, want red with a later index than %+v", second, first)
	}
	if ok, _, err := t.writer.CAS(&consul.KVPair{Key: "app/new key/é", Value: nil}, t.write); !ok || err != nil {
		t.Errorf("CAS() of a new key = %t, %v, want true, nil", ok, err)
	}
	if p := t.get("app/new key/é"); p == nil || p.Value != nil {
		t.Errorf("Get() of an empty value = %+v, want a pair without value", p)
	}
	t.testKeysAndLists()
	for _, o := range []consul.QueryOptions{{Datacenter: dc, AllowStale: true},
		{Datacenter: dc, RequireConsistent: true}} {
		if p, _, err := t.reader.Get("app/color", &o); err != nil || p == nil {
			t.Errorf("Get(app/color) with %+v = %v, %v, want a pair", o, p, err)
		}
	}
	deleteAt := func(index uint64) (bool, *consul.WriteMeta, error) {
		return t.writer.DeleteCAS(&consul.KVPair{Key: "app/color", ModifyIndex: index}, t.write)
	}
	t.wantCAS("DeleteCAS", deleteAt, []casAttempt{
		{first.ModifyIndex, false}, {second.ModifyIndex, true}, {second.ModifyIndex, true}, // the key no longer exists
	})
	if _, err := t.writer.Delete("app/color", t.write); err != nil {
		t.Errorf("Delete() of a deleted key = %v, want nil", err)
	}
	t.deleteTree("odd/")
	t.wantKeys("", "", "app/new key/é")
	t.deleteTree("")
	t.wantKeys("", "")
}

func (t *kvTest) deleteTree(prefix string) {
	t.Helper()
	if _, err := t.writer.DeleteTree(prefix, t.write); err != nil {
		t.Fatalf("DeleteTree(%q) = %v, want nil", prefix, err)
	}
}

// testKeysAndLists writes keys that differ from their path in a URL, and lists
// keys and pairs.
func (t *kvTest) testKeysAndLists() {
	t.Helper()
	odd := []string{"odd//a", "odd/../b", "odd/./c", "odd/%2F?&#d", "odd/e/"}
	for _, key := range odd {
		t.put(key, key, 0)
		if p := t.get(key); p == nil || p.Key != key || string(p.Value) != key {
			t.Errorf("Get(%q) = %+v, want the key as value", key, p)
		}
	}
	slices.Sort(odd)
	t.wantKeys("odd/", "", odd...)
	t.wantKeys("", "/", "app/", "odd/")
	pairs, meta, err := t.reader.List("app", t.query)
	if err != nil || len(pairs) != 2 || pairs[0].Key != "app/color" || string(pairs[0].Value) != "red" ||
		meta.LastIndex < pairs[1].ModifyIndex {
		t.Errorf("List(app) = %v, %v with %+v, want app/color = red and one more pair", pairs, err, meta)
	}
	if pairs, _, err := t.reader.List("nothing", t.query); err != nil || pairs != nil {
		t.Errorf("List(nothing) = %v, %v, want nil, nil", pairs, err)
	}
}

// testConsulKVBlocking proves that a blocking query returns when its key or
// prefix changes, and not when another key changes.
func testConsulKVBlocking(parent *testing.T, lab *consulLab, dc string) {
	t := newKVTest(parent, lab, dc)
	type result struct {
		value string // of wait/a; empty if the key does not exist
		index uint64
		err   error
	}
	query := func(list bool, index uint64) (r result) {
		o := &consul.QueryOptions{Datacenter: dc, WaitIndex: index, WaitTime: 20 * time.Second}
		var pairs consul.KVPairs
		var meta *consul.QueryMeta
		if list {
			pairs, meta, r.err = t.reader.List("wait/", o)
		} else {
			pairs = make(consul.KVPairs, 1)
			pairs[0], meta, r.err = t.reader.Get("wait/a", o)
		}
		if len(pairs) > 0 && pairs[0] != nil {
			r.value = string(pairs[0].Value)
		}
		if r.err == nil {
			r.index = meta.LastIndex
		}
		return r
	}
	for _, list := range []bool{false, true} {
		now := query(list, 0)
		if now.err != nil || now.value != "" {
			t.Fatalf("query (list %t) before the first write = %+v, want no value", list, now)
		}
		for _, want := range []string{"1", "2", ""} {
			results := make(chan result, 1)
			index := now.index
			go func() { results <- query(list, index) }()
			t.put("elsewhere", want, 0)
			if want != "" {
				t.put("wait/a", want, 0)
			} else if _, err := t.writer.Delete("wait/a", t.write); err != nil {
				t.Errorf("Delete(wait/a) = %v, want nil", err)
			}
			now = <-results
			if now.err != nil || now.value != want || now.index <= index {
				t.Fatalf("query (list %t) = %+v, want %q with an index above %d", list, now, want, index)
			}
		}
	}
	t.deleteTree("elsewhere")
}

// testConsulKVRejected checks the HTTP status of rejected writes, and writes a
// value of the maximum size.
func testConsulKVRejected(parent *testing.T, lab *consulLab, dc string) {
	t := newKVTest(parent, lab, dc)
	const maxValue = 512 << 10
	if _, err := t.reader.Put(&consul.KVPair{Key: "x"}, t.write); httpStatus(err) != http.StatusForbidden {
		t.Errorf("Put() without a certificate = %v, want status %d", err, http.StatusForbidden)
	}
	tooLarge := &consul.KVPair{Key: "x", Value: bytes.Repeat([]byte("v"), maxValue+1)}
	if _, err := t.writer.Put(tooLarge, t.write); httpStatus(err) != http.StatusRequestEntityTooLarge {
		t.Errorf("Put() of %d bytes = %v, want status %d", maxValue+1, err, http.StatusRequestEntityTooLarge)
	}
	var err error
	for range 5 { // on a slow machine, a late response makes the server replace the path and reject the write
		_, err = t.writer.Put(&consul.KVPair{Key: "x", Value: bytes.Repeat([]byte("v"), maxValue)}, t.write)
		if e, ok := err.(consul.StatusError); !ok || !strings.Contains(e.Body, httpapi.ErrUnreachable.Error()) {
			break
		}
	}
	if err != nil {
		t.Errorf("Put() of %d bytes = %v, want nil", maxValue, err)
	}
	_, _, err = t.writer.Acquire(&consul.KVPair{Key: "x", Session: "s"}, t.write)
	if httpStatus(err) != http.StatusInternalServerError {
		t.Errorf("Acquire() for no session = %v, want status %d", err, http.StatusInternalServerError)
	}
	t.deleteTree("")
}
