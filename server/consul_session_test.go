// SPDX-License-Identifier: MPL-2.0

package server

import (
	"net/http"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"
)

// testConsulSession creates, renews and destroys sessions, and locks keys with
// them.
func testConsulSession(t *testing.T, lab *consulLab, dc string) {
	w, q := &consul.WriteOptions{Datacenter: dc}, &consul.QueryOptions{Datacenter: dc}
	sessions, keys := lab.writer.Session(), lab.writer.KV()
	create := func(e *consul.SessionEntry) string {
		t.Helper()
		id, _, err := sessions.Create(e, w)
		if err != nil || len(id) != 36 {
			t.Fatalf("Create(%+v) = %q, %v, want a UUID", e, id, err)
		}
		return id
	}
	id := create(&consul.SessionEntry{Name: "worker", TTL: "10s", Behavior: consul.SessionBehaviorDelete, LockDelay: 5 * time.Second})
	e, _, err := sessions.Renew(id, w)
	if err != nil || e == nil || e.ID != id || e.TTL != "10s" || e.Name != "worker" || e.LockDelay != 5*time.Second ||
		e.Behavior != consul.SessionBehaviorDelete {
		t.Fatalf("Renew() = %+v, %v, want the session", e, err)
	}
	if info, meta, err := sessions.Info(id, q); err != nil || info == nil || info.Node == "" || meta.LastIndex == 0 {
		t.Errorf("Info() = %+v, %v, want the session with its node", info, err)
	} else if all, _, err := sessions.Node(info.Node, q); err != nil || len(all) != 1 || all[0].ID != id {
		t.Errorf("Node(%s) = %+v, %v, want the session", info.Node, all, err)
	}
	for _, bad := range []*consul.SessionEntry{{TTL: "5s"}, {Behavior: "keep"}, {Node: "no-such-node"}, {NodeChecks: []string{"no-such-check"}}} {
		if _, _, err := sessions.Create(bad, w); httpStatus(err) != http.StatusBadRequest {
			t.Errorf("Create(%+v) = %v, want status %d", bad, err, http.StatusBadRequest)
		}
	}
	acquire := func(session string, want bool) {
		t.Helper()
		ok, _, err := keys.Acquire(&consul.KVPair{Key: "lock/a", Value: []byte(session), Session: session}, w)
		if ok != want || err != nil {
			t.Errorf("Acquire() = %t, %v, want %t, nil", ok, err, want)
		}
	}
	get := func(key string) *consul.KVPair {
		t.Helper()
		p, _, err := keys.Get(key, q)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	acquire(id, true)
	other := create(&consul.SessionEntry{})
	acquire(other, false)
	acquire(id, true)
	if _, err := keys.Put(&consul.KVPair{Key: "lock/a", Value: []byte("changed")}, w); err != nil {
		t.Error(err)
	}
	p := get("lock/a")
	if p == nil || p.Session != id || p.LockIndex != 1 || string(p.Value) != "changed" {
		t.Errorf("Get() of a locked key = %+v, want LockIndex 1 and the session", p)
	}
	if ok, _, err := keys.Release(&consul.KVPair{Key: "lock/a", Session: other}, w); ok || err != nil {
		t.Errorf("Release() by another session = %t, %v, want false, nil", ok, err)
	}
	if ok, _, err := keys.Release(&consul.KVPair{Key: "lock/a", Session: id}, w); !ok || err != nil {
		t.Errorf("Release() = %t, %v, want true, nil", ok, err)
	}
	acquire(other, true)
	if p := get("lock/a"); p == nil || p.Session != other || p.LockIndex != 2 {
		t.Errorf("Get() after the second lock = %+v, want LockIndex 2", p)
	}

	waited := make(chan *consul.KVPair, 1)
	_, meta, err := keys.Get("lock/a", q)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		p, _, _ := keys.Get("lock/a", &consul.QueryOptions{Datacenter: dc, WaitIndex: meta.LastIndex, WaitTime: 20 * time.Second})
		waited <- p
	}()
	if _, err := sessions.Destroy(other, w); err != nil {
		t.Fatal(err)
	}
	if p := <-waited; p == nil || p.Session != "" || p.LockIndex != 2 {
		t.Errorf("blocking Get() during Destroy() = %+v, want the key without a session", p)
	}
	acquire(id, false) // lock delay of the destroyed session
	if info, _, err := sessions.Info(other, q); info != nil || err != nil {
		t.Errorf("Info() of a destroyed session = %+v, %v, want nil, nil", info, err)
	}
	if e, _, err := sessions.Renew(other, w); e != nil || err != nil {
		t.Errorf("Renew() of a destroyed session = %+v, %v, want nil, nil", e, err)
	}

	txn := func(want bool, ops ...*consul.KVTxnOp) {
		t.Helper()
		ok, resp, _, err := keys.Txn(ops, q)
		if ok != want || err != nil {
			t.Errorf("Txn() = %t, %+v, %v, want %t, nil", ok, resp, err, want)
		}
	}
	txn(false, &consul.KVTxnOp{Verb: consul.KVCheckSession, Key: "lock/b", Session: id})
	txn(true, &consul.KVTxnOp{Verb: consul.KVLock, Key: "lock/b", Session: id, Value: []byte("1")},
		&consul.KVTxnOp{Verb: consul.KVCheckSession, Key: "lock/b", Session: id},
		&consul.KVTxnOp{Verb: consul.KVUnlock, Key: "lock/b", Session: id},
		&consul.KVTxnOp{Verb: consul.KVLock, Key: "lock/b", Session: id})
	txn(false, &consul.KVTxnOp{Verb: consul.KVUnlock, Key: "lock/b", Session: other})
	if p := get("lock/b"); p == nil || p.Session != id || p.LockIndex != 2 {
		t.Errorf("Get() after Txn() = %+v, want LockIndex 2", p)
	}
	if _, err := sessions.Destroy(id, w); err != nil {
		t.Fatal(err)
	}
	if p := get("lock/b"); p != nil {
		t.Errorf("Get() after the end of a session with behavior delete = %+v, want nil", p)
	}
	if all, _, err := sessions.List(q); err != nil || len(all) != 0 {
		t.Errorf("List() at the end = %+v, %v, want none", all, err)
	}
	if _, err := keys.DeleteTree("", w); err != nil {
		t.Error(err)
	}
}

// testConsulLocks uses the helpers Lock and Semaphore.
func testConsulLocks(t *testing.T, lab *consulLab, dc string) {
	if dc != "dc1" {
		t.Skip("Lock has no datacenter for its sessions")
	}
	newLock := func() *consul.Lock {
		l, err := lab.writer.LockOpts(&consul.LockOptions{Key: "helper/lock", SessionTTL: "10s", LockTryOnce: true, LockWaitTime: 100 * time.Millisecond, LockDelay: time.Nanosecond})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	first, second := newLock(), newLock()
	lost, err := first.Lock(nil)
	if err != nil || lost == nil {
		t.Fatalf("Lock() = %v, want nil", err)
	}
	if c, err := second.Lock(nil); c != nil || err != nil {
		t.Errorf("Lock() of a held lock = %v, %v, want nil, nil", c, err)
	}
	if err := first.Unlock(); err != nil {
		t.Errorf("Unlock() = %v, want nil", err)
	}
	if c, err := second.Lock(nil); c == nil || err != nil {
		t.Errorf("Lock() after Unlock() = %v, %v, want a channel", c, err)
	}
	if err := second.Unlock(); err != nil {
		t.Error(err)
	}
	if err := second.Destroy(); err != nil {
		t.Errorf("Destroy() = %v, want nil", err)
	}

	newSemaphore := func() *consul.Semaphore {
		s, err := lab.writer.SemaphoreOpts(&consul.SemaphoreOptions{Prefix: "helper/semaphore", Limit: 2, SessionTTL: "10s", SemaphoreTryOnce: true, SemaphoreWaitTime: 100 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	all := []*consul.Semaphore{newSemaphore(), newSemaphore(), newSemaphore()}
	for i, s := range all {
		if c, err := s.Acquire(nil); (c != nil) != (i < 2) || err != nil {
			t.Errorf("Acquire() %d of a semaphore of 2 = %v, %v, want %t", i, c, err, i < 2)
		}
	}
	if err := all[0].Release(); err != nil {
		t.Error(err)
	}
	if c, err := all[2].Acquire(nil); c == nil || err != nil {
		t.Errorf("Acquire() after Release() = %v, %v, want a channel", c, err)
	}
	for _, s := range all[1:] {
		if err := s.Release(); err != nil {
			t.Error(err)
		}
	}
	if err := all[0].Destroy(); err != nil {
		t.Errorf("Destroy() = %v, want nil", err)
	}
	if _, err := lab.writer.KV().DeleteTree("helper/", nil); err != nil {
		t.Error(err)
	}
}
