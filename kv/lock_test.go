// SPDX-License-Identifier: MPL-2.0

package kv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/session"
)

// lockTest has keys and sessions in fake time. The manager runs.
type lockTest struct {
	*testing.T
	backend  *resourcetest.Store
	keys     *Store
	sessions *session.Store
	manager  *session.Manager
	end      func() // ends the leadership
}

func runLockTest(t *testing.T, f func(t *lockTest)) {
	t.Helper()
	testutil.Bubble(t, func(t *testing.T) {
		b := resourcetest.NewStore()
		defer b.Close()
		lt := &lockTest{T: t, backend: b, keys: newStore(t, b, operator())}
		var err error
		lt.manager, err = session.NewManager(session.ManagerConfig{
			Backend: b, Locked: EntryType, Confirm: func(context.Context) error { return nil },
			Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		lt.sessions, err = session.NewStore(session.StoreConfig{
			Resources: lt.keys.res, Backend: b, Locked: EntryType, Renew: lt.manager.Renew,
		})
		if err != nil {
			t.Fatal(err)
		}
		lt.elect()
		defer func() { lt.end() }()
		f(lt)
	})
}

func (t *lockTest) elect() {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- t.manager.Run(ctx) }()
	t.end = func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	}
	synctest.Wait()
}

func (t *lockTest) create(s *pb.Session) string {
	t.Helper()
	id, err := t.sessions.Create(t.Context(), s, false)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return id
}

func (t *lockTest) wantLock(key, id string, want bool) {
	t.Helper()
	if ok, err := t.keys.Lock(t.Context(), Entry{Key: key, Session: id}); ok != want || err != nil {
		t.Errorf("Lock(%s) = %t, %v, want %t, nil", key, ok, err, want)
	}
}

func (t *lockTest) wantHolder(key, want string) {
	t.Helper()
	synctest.Wait()
	if e := get(t, t.keys, key); e == nil || e.Session != want {
		t.Errorf("key %s = %+v, want session %q", key, e, want)
	}
}

func ttl(d time.Duration) *pb.Session { return &pb.Session{Node: "n", Ttl: durationpb.New(d)} }

func TestSession_EndsBetweenOneAndTwoTTLs(t *testing.T) {
	runLockTest(t, func(t *lockTest) {
		id, other := t.create(ttl(10*time.Second)), t.create(&pb.Session{Node: "n"})
		t.wantLock("a", id, true)
		t.wantLock("a", other, false)
		for range 20 {
			time.Sleep(10 * time.Second)
			if ok, err := t.sessions.Renew(t.Context(), id); !ok || err != nil {
				t.Fatalf("Renew() = %t, %v, want true, nil", ok, err)
			}
			t.end() // each new leader gives a full TTL
			t.elect()
		}
		index := t.backend.Index()
		time.Sleep(10 * time.Second)
		t.wantHolder("a", id)
		if now := t.backend.Index(); now != index {
			t.Errorf("commits while the session was renewed = %d, want 0", now-index)
		}
		time.Sleep(10 * time.Second)
		t.wantHolder("a", "")
		if ok, err := t.sessions.Renew(t.Context(), id); ok || err != nil {
			t.Errorf("Renew() of an ended session = %t, %v, want false, nil", ok, err)
		}
		if ok, err := t.sessions.Renew(t.Context(), other); !ok || err != nil {
			t.Errorf("Renew() of a session without a TTL = %t, %v, want true, nil", ok, err)
		}
		if _, err := t.keys.Lock(t.Context(), Entry{Key: "a", Session: id}); !errors.Is(err, ErrNoSession) {
			t.Errorf("Lock() for an ended session = %v, want ErrNoSession", err)
		}
	})
}

// TestSession_ManyExpireTogether has 1000 sessions that expire at one time, 15 s
// after an election. Some of them hold keys with large values.
func TestSession_ManyExpireTogether(t *testing.T) {
	runLockTest(t, func(t *lockTest) {
		const n = 1000
		for i := range n {
			e := Entry{Key: fmt.Sprint("k", i), Session: t.create(ttl(10 * time.Second))}
			if i%100 == 0 {
				e.Value = make([]byte, 200<<10)
			}
			if ok, err := t.keys.Lock(t.Context(), e); !ok || err != nil {
				t.Fatalf("Lock(%s) = %t, %v, want true, nil", e.Key, ok, err)
			}
		}
		t.end()
		t.elect()
		index := t.backend.Index()
		locked := func() (n int) {
			synctest.Wait()
			all, _, err := t.keys.List(t.Context(), resource.Strong, "k")
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range all {
				if e.Session != "" {
					n++
				}
			}
			return n
		}
		time.Sleep(15*time.Second - 1)
		if got := locked(); got != n {
			t.Errorf("locked keys before the deadline = %d, want %d", got, n)
		}
		time.Sleep(time.Second)
		if got := locked(); got != 0 {
			t.Errorf("locked keys 1 s after the deadline = %d, want 0", got)
		}
		if commits := t.backend.Index() - index; commits > 20 {
			t.Errorf("commits = %d, want at most 20", commits)
		}
	})
}

func TestSession_LockDelayContinuesAtNewLeader(t *testing.T) {
	runLockTest(t, func(t *lockTest) {
		id, other := t.create(ttl(10*time.Second)), t.create(&pb.Session{Node: "n"})
		t.wantLock("a", id, true)
		if err := t.sessions.Destroy(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		t.wantHolder("a", "")
		t.wantLock("a", other, false)
		time.Sleep(14 * time.Second)
		t.wantLock("a", other, false)
		t.end()
		t.elect()
		time.Sleep(14 * time.Second)
		t.wantLock("a", other, false)
		time.Sleep(2 * time.Second)
		t.wantLock("a", other, true)
		if ok, err := t.keys.Unlock(t.Context(), Entry{Key: "a", Session: other}); !ok || err != nil {
			t.Errorf("Unlock() = %t, %v, want true, nil", ok, err)
		}
		t.wantLock("a", other, true) // no delay after a release
		if e := get(t, t.keys, "a"); e.LockIndex != 3 {
			t.Errorf("LockIndex = %d, want 3", e.LockIndex)
		}
	})
}

func TestSession_EndsWithCheckAndNode(t *testing.T) {
	runLockTest(t, func(t *lockTest) {
		put := func(typ *pb.Type, name string, data *pb.Check, node *pb.Node) *pb.Resource {
			t.Helper()
			var r *pb.Resource
			var err error
			if node != nil {
				r, err = resource.New(typ, name, node)
			} else {
				r, err = resource.NewNamed(typ, name, resource.CheckUTF8Name, data)
			}
			if err != nil {
				t.Fatal(err)
			}
			out, err := t.backend.Commit(t.Context(), resource.PutOp(r, resource.AnyVersion))
			if err != nil {
				t.Fatal(err)
			}
			return out[0]
		}
		node := put(catalog.NodeType, "n", nil, &pb.Node{Node: "n", Address: "192.0.2.1"})
		status := func(s string) {
			put(catalog.CheckType, "n/c", &pb.Check{Node: "n", CheckId: "c", Status: s}, nil)
		}
		status(catalog.StatusPassing)
		withCheck := t.create(&pb.Session{Node: "n", NodeChecks: []string{"c"}, Behavior: session.BehaviorDelete})
		onNode := t.create(&pb.Session{Node: "n"})
		t.wantLock("a", withCheck, true)
		t.wantLock("b", onNode, true)
		status(catalog.StatusWarning)
		time.Sleep(time.Second)
		t.wantHolder("a", withCheck)
		status(catalog.StatusCritical)
		time.Sleep(time.Second)
		if e := get(t, t.keys, "a"); e != nil {
			t.Errorf("key of a session whose check is critical = %+v, want nil", e)
		}
		t.wantHolder("b", onNode)
		if _, err := t.sessions.Create(t.Context(), &pb.Session{Node: "n", NodeChecks: []string{"c"}}, true); !errors.Is(err, resource.ErrInvalid) {
			t.Errorf("Create() with a critical check = %v, want ErrInvalid", err)
		}
		if _, err := t.backend.Commit(t.Context(), resource.RemoveOp(node.Id, resource.AnyVersion)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		t.wantHolder("b", "")
	})
}

// TestLock_WritesKeepLock proves that writes which do not read a key keep its
// lock, and that deletions remove it.
func TestLock_WritesKeepLock(t *testing.T) {
	runLockTest(t, func(t *lockTest) {
		id, other := t.create(&pb.Session{Node: "n"}), t.create(&pb.Session{Node: "n"})
		t.wantLock("a", id, true)
		mustPut(t, t.keys, "a", "1")
		e := get(t, t.keys, "a")
		if done, err := t.keys.Put(t.Context(), Entry{Key: "a", Value: []byte("2")}, IfIndex(e.ModifyIndex)); !done || err != nil {
			t.Fatalf("Put() with an index = %t, %v, want true", done, err)
		}
		if e := get(t, t.keys, "a"); e.Session != id || e.LockIndex != 1 || string(e.Value) != "2" {
			t.Errorf("key after writes = %+v, want its lock", e)
		}
		if _, err := t.keys.Delete(t.Context(), "a", Precondition{}); err != nil {
			t.Fatal(err)
		}
		t.wantLock("a", other, true) // a deletion ignores locks
		if err := t.sessions.Destroy(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		t.wantHolder("a", other)
		if e := get(t, t.keys, "a"); e.LockIndex != 1 {
			t.Errorf("LockIndex of a new key = %d, want 1", e.LockIndex)
		}
	})
}

// TestLock_ShortDelay proves that a delay of 1 ms is none, so that a waiting
// client acquires the key when it learns of the end of the session.
func TestLock_ShortDelay(t *testing.T) {
	runLockTest(t, func(t *lockTest) {
		for _, delay := range []time.Duration{0, time.Millisecond, 10 * time.Millisecond} {
			id := t.create(&pb.Session{Node: "n", LockDelay: durationpb.New(delay)})
			other := t.create(&pb.Session{Node: "n"})
			t.wantLock("a", id, true)
			if err := t.sessions.Destroy(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			t.wantLock("a", other, delay < 10*time.Millisecond)
			if err := t.sessions.Destroy(t.Context(), other); err != nil {
				t.Fatal(err)
			}
			time.Sleep(session.DefaultLockDelay + time.Second)
		}
	})
}

func TestLock_LimitOfOneSession(t *testing.T) {
	runLockTest(t, func(t *lockTest) {
		id := t.create(&pb.Session{Node: "n", LockDelay: durationpb.New(0)})
		for first := 0; first < session.MaxLocks; first += 128 {
			ops := make([]Op, 128)
			for i := range ops {
				ops[i] = Op{Verb: VerbLock, Key: fmt.Sprintf("k/%d", first+i), Session: id}
			}
			if _, failures, err := t.keys.Txn(t.Context(), resource.Strong, ops); failures != nil || err != nil {
				t.Fatalf("Txn() = %v, %v, want nil, nil", failures, err)
			}
		}
		t.wantLock("one-more", id, false)
		if err := t.sessions.Destroy(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		t.wantHolder("k/4095", "")
		locks, _, err := t.backend.List(t.Context(), resource.Strong, session.LocksQuery(id))
		if err != nil || len(locks) != 0 {
			t.Errorf("locks after Destroy() = %d, %v, want 0", len(locks), err)
		}
	})
}

// TestLock_NoKeyOfEndedSession locks, writes and deletes keys at random while
// sessions expire and the leader changes. At the end no key has a session that
// does not exist.
func TestLock_NoKeyOfEndedSession(t *testing.T) {
	for seed := range uint64(5) {
		runLockTest(t, func(t *lockTest) {
			stop := time.Now().Add(5 * time.Minute)
			done := make(chan struct{})
			for i := range 6 {
				go func() {
					defer func() { done <- struct{}{} }()
					r := rand.New(rand.NewPCG(seed, uint64(i)))
					var id string
					for time.Now().Before(stop) {
						time.Sleep(time.Duration(r.Int64N(int64(3 * time.Second))))
						key := fmt.Sprintf("k%d", r.IntN(5))
						var err error
						switch r.IntN(8) {
						case 0, 1:
							s := ttl(10 * time.Second)
							s.Behavior = []string{session.BehaviorRelease, session.BehaviorDelete}[r.IntN(2)]
							s.LockDelay = durationpb.New(time.Duration(r.IntN(3)) * time.Second)
							id, err = t.sessions.Create(t.Context(), s, false)
						case 2:
							_, err = t.keys.Delete(t.Context(), key, Precondition{})
						case 3:
							_, err = t.keys.Put(t.Context(), Entry{Key: key, Value: []byte{byte(r.Int())}}, Precondition{})
						case 4:
							_, err = t.keys.Unlock(t.Context(), Entry{Key: key, Session: id})
						case 5:
							err = t.sessions.Destroy(t.Context(), "x"+id)
						default:
							if id != "" {
								_, err = t.keys.Lock(t.Context(), Entry{Key: key, Session: id})
							}
						}
						if err != nil && !errors.Is(err, ErrNoSession) {
							t.Errorf("operation = %v, want nil", err)
						}
					}
				}()
			}
			for range 50 {
				time.Sleep(5 * time.Second)
				t.end()
				t.elect()
			}
			for range 6 {
				<-done
			}
			live := map[string]bool{}
			all, _, err := t.sessions.List(t.Context(), resource.Strong)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range all {
				live[s.ID] = true
			}
			entries, _, err := t.keys.List(t.Context(), resource.Strong, "")
			if err != nil || len(entries) == 0 {
				t.Fatalf("List() = %v, %v, want keys", entries, err)
			}
			for _, e := range entries {
				if e.Session != "" && !live[e.Session] {
					t.Errorf("seed %d: key %s has the ended session %s", seed, e.Key, e.Session)
				}
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			entries, _, err = t.keys.List(t.Context(), resource.Strong, "")
			for _, e := range entries {
				if e.Session != "" || err != nil {
					t.Errorf("seed %d: key %s has session %s after all have expired, %v", seed, e.Key, e.Session, err)
				}
			}
			if locks, _, _ := t.backend.List(t.Context(), resource.Strong, resource.Query{Type: session.LockType}); len(locks) != 0 {
				t.Errorf("seed %d: %d locks after all sessions have expired, want 0", seed, len(locks))
			}
		})
	}
}
