// SPDX-License-Identifier: MPL-2.0

package kv

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/session"
)

// lockModel is the sequential model of sessions and locks.
type lockModel struct {
	led      bool // a leader ends sessions and lock delays
	sessions map[string]*modelSession
	keys     map[string]modelKey
	delays   map[string]*modelDelay // by key
}

type modelSession struct {
	limit    time.Duration // from a renewal to the end; 0: no end
	end      time.Time
	behavior string
	delay    time.Duration
}

type modelKey struct {
	value, session string
	index          uint64 // LockIndex
}

type modelDelay struct {
	delay time.Duration
	end   time.Time
}

// elect begins a leadership, in which sessions and lock delays have their full
// time.
func (m *lockModel) elect(now time.Time) {
	m.led = true
	for _, s := range m.sessions {
		s.end = now.Add(s.limit)
	}
	for _, d := range m.delays {
		d.end = now.Add(d.delay)
	}
}

// advance ends sessions and lock delays, the earliest first.
func (m *lockModel) advance(now time.Time) {
	for m.led {
		next, first := func() {}, now
		for id, s := range m.sessions {
			if s.limit > 0 && !s.end.After(first) {
				next, first = func() { m.endSession(id, s.end) }, s.end
			}
		}
		for key, d := range m.delays {
			if !d.end.After(first) {
				next, first = func() { delete(m.delays, key) }, d.end
			}
		}
		if next(); first.Equal(now) {
			return
		}
	}
}

func (m *lockModel) endSession(id string, at time.Time) {
	s := m.sessions[id]
	if s == nil {
		return
	}
	delete(m.sessions, id)
	for key, k := range m.keys {
		if k.session != id {
			continue
		}
		if s.behavior == session.BehaviorDelete {
			delete(m.keys, key)
		} else {
			m.keys[key] = modelKey{k.value, "", k.index}
		}
		if s.delay > 0 {
			m.delays[key] = &modelDelay{s.delay, at.Add(s.delay)}
		}
	}
}

func (m *lockModel) lock(key, id, value string) (done bool) {
	k := m.keys[key]
	if m.sessions[id] == nil || k.session != id && (k.session != "" || m.delays[key] != nil) {
		return false
	}
	if k.session != id {
		k.index++
	}
	m.keys[key] = modelKey{value, id, k.index}
	return true
}

func (m *lockModel) unlock(key, id, value string) (done bool) {
	k, ok := m.keys[key]
	if !ok || k.session == "" || k.session != id {
		return false
	}
	m.keys[key] = modelKey{value, "", k.index}
	return true
}

// txn performs ops, or none if one of them fails.
func (m *lockModel) txn(ops []Op) (done bool) {
	before := maps.Clone(m.keys)
	for _, op := range ops {
		ok := true
		switch k, exists := m.keys[op.Key]; op.Verb {
		case VerbLock:
			ok = m.lock(op.Key, op.Session, string(op.Value))
		case VerbUnlock:
			ok = m.unlock(op.Key, op.Session, string(op.Value))
		case VerbCheckSession:
			ok = exists && k.session == op.Session
		default: // VerbDelete
			delete(m.keys, op.Key)
		}
		if !ok {
			m.keys = before
			return false
		}
	}
	return true
}

// String returns the state that clients see.
func (m *lockModel) String() string {
	all := slices.Sorted(maps.Keys(m.sessions))
	for _, key := range slices.Sorted(maps.Keys(m.keys)) {
		all = append(all, fmt.Sprintf("%s=%+v", key, m.keys[key]))
	}
	for _, key := range slices.Sorted(maps.Keys(m.delays)) {
		all = append(all, fmt.Sprintf("%s delayed %v", key, m.delays[key].delay))
	}
	return strings.Join(all, "\n")
}

// state returns the stored state in the form of lockModel.String.
func (t *lockTest) state() string {
	t.Helper()
	m := lockModel{sessions: map[string]*modelSession{}, keys: map[string]modelKey{}, delays: map[string]*modelDelay{}}
	all, _, err := t.sessions.List(t.Context(), resource.Strong)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		m.sessions[s.ID] = nil
	}
	entries, _, err := t.keys.List(t.Context(), resource.Strong, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		m.keys[e.Key] = modelKey{string(e.Value), e.Session, e.LockIndex}
	}
	delays, _, err := t.backend.List(t.Context(), resource.Strong, resource.Query{Type: session.LockDelayType})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range delays {
		d, err := resource.Decode[*pb.SessionLockDelay](r)
		if err != nil {
			t.Fatal(err)
		}
		m.delays[r.GetId().GetName()] = &modelDelay{delay: d.GetDelay().AsDuration()}
	}
	return m.String()
}

// TestLock_Model creates, renews, destroys and expires sessions, locks, unlocks,
// writes and deletes keys, alone and in transactions, and changes the leader, in
// random order. After each
// step, the result and the state are those of the model.
func TestLock_Model(t *testing.T) {
	for seed := range uint64(10) {
		runLockTest(t, func(t *lockTest) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			m := &lockModel{
				led: true, sessions: map[string]*modelSession{}, keys: map[string]modelKey{}, delays: map[string]*modelDelay{},
			}
			var ids []string // of all sessions, also of those that have ended
			counts := map[string]int{}
			for step := range 600 {
				time.Sleep(time.Duration(rnd.Int64N(int64(4 * time.Second))))
				m.advance(time.Now())
				what := t.step(m, rnd, &ids)
				counts[what]++
				synctest.Wait()
				m.advance(time.Now())
				if got, want := t.state(), m.String(); got != want {
					t.Fatalf("seed %d: state after step %d, %s = %s\n\nwant %s", seed, step, what, got, want)
				}
			}
			if !m.led {
				t.elect() // runLockTest ends a leadership
			}
			for _, what := range []string{"lock true", "lock false", "unlock true", "unlock false", "renew true", "renew false",
				"renew without a leader", "txn true", "txn false", "destroy", "delete", "elect"} {
				if counts[what] < 5 {
					t.Errorf("seed %d: %q happened %d times, want at least 5", seed, what, counts[what])
				}
			}
		})
	}
}

// step makes a random step in the store and in the model, and returns its name
// and result.
func (t *lockTest) step(m *lockModel, rnd *rand.Rand, ids *[]string) (what string) {
	t.Helper()
	now, key, value := time.Now(), fmt.Sprintf("k%d", rnd.IntN(4)), fmt.Sprint(rnd.IntN(3))
	id := "none"
	if n := len(*ids); n > 0 {
		id = (*ids)[max(0, n-1-rnd.IntN(6))]
	}
	check := func(name string, got, want bool, err error) string {
		t.Helper()
		if got != want || err != nil {
			t.Errorf("%s of key %s with session %s = %t, %v, want %t, nil", name, key, id, got, err, want)
		}
		return fmt.Sprintf("%s %t", name, want)
	}
	switch n := rnd.IntN(24); {
	case n >= 20:
		var ops []Op
		for range 1 + rnd.IntN(3) {
			op := Op{Key: fmt.Sprintf("k%d", rnd.IntN(4)), Value: fmt.Append(nil, rnd.IntN(3)), Session: id}
			op.Verb = []Verb{VerbLock, VerbLock, VerbUnlock, VerbCheckSession, VerbDelete}[rnd.IntN(5)]
			if k := m.keys[op.Key]; k.session != "" && rnd.IntN(3) > 0 {
				op.Session = k.session
			}
			ops = append(ops, op)
		}
		_, failures, err := t.keys.Txn(t.Context(), resource.Eventual, ops)
		return check("txn", failures == nil, m.txn(ops), err)
	case n < 2:
		delay := []time.Duration{0, time.Millisecond, time.Second, 15 * time.Second}[rnd.IntN(4)]
		s := &pb.Session{
			Node: "n", Behavior: []string{session.BehaviorRelease, session.BehaviorDelete}[rnd.IntN(2)],
			LockDelay: durationpb.New(delay),
		}
		limit := []time.Duration{0, 10 * time.Second, 20 * time.Second, 30 * time.Second}[rnd.IntN(4)]
		if limit > 0 {
			s.Ttl = durationpb.New(limit)
		}
		if delay < 10*time.Millisecond {
			delay = 0
		}
		id := t.create(s)
		limit += limit / 2
		m.sessions[id] = &modelSession{limit, now.Add(limit), s.Behavior, delay}
		*ids = append(*ids, id)
		return "create"
	case n < 8:
		done, err := t.keys.Lock(t.Context(), Entry{Key: key, Value: []byte(value), Session: id})
		if m.sessions[id] == nil {
			if !errors.Is(err, ErrNoSession) {
				t.Errorf("Lock() with an ended session = %t, %v, want ErrNoSession", done, err)
			}
			return "lock without a session"
		}
		return check("lock", done, m.lock(key, id, value), err)
	case n < 11:
		if k := m.keys[key]; k.session != "" && rnd.IntN(2) == 0 {
			id = k.session
		}
		done, err := t.keys.Unlock(t.Context(), Entry{Key: key, Value: []byte(value), Session: id})
		return check("unlock", done, m.unlock(key, id, value), err)
	case n < 15:
		s := m.sessions[id]
		found, err := t.sessions.Renew(t.Context(), id)
		if !m.led {
			if !errors.Is(err, resource.ErrNotLeader) {
				t.Errorf("Renew() without a leader = %t, %v, want ErrNotLeader", found, err)
			}
			return "renew without a leader"
		}
		if s != nil {
			s.end = now.Add(s.limit)
		}
		return check("renew", found, s != nil, err)
	case n < 16:
		if err := t.sessions.Destroy(t.Context(), id); err != nil {
			t.Errorf("Destroy() = %v, want nil", err)
		}
		m.endSession(id, now)
		return "destroy"
	case n < 17:
		mustPut(t.T, t.keys, key, value)
		k := m.keys[key]
		m.keys[key] = modelKey{value, k.session, k.index}
		return "put"
	case n < 18:
		_, err := t.keys.Delete(t.Context(), key, Precondition{})
		delete(m.keys, key)
		return strings.TrimSuffix(check("delete", true, true, err), " true")
	case m.led:
		t.end()
		m.led = false
		return "end"
	default:
		t.elect()
		m.elect(now)
		return "elect"
	}
}
