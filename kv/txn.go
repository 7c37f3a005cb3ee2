// SPDX-License-Identifier: MPL-2.0

package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/session"
)

// Verb is the kind of an Op.
type Verb string

// The verbs of transactions. If an op fails, Txn returns a Failure for the op,
// and the transaction changes nothing.
const (
	VerbSet        Verb = "set"         // writes key, value and flags
	VerbCAS        Verb = "cas"         // as VerbSet; fails unless ModifyIndex is Index (0: the key does not exist)
	VerbDelete     Verb = "delete"      // deletes the key, if it exists
	VerbDeleteCAS  Verb = "delete-cas"  // as VerbDelete; fails if the key has a ModifyIndex other than Index
	VerbDeleteTree Verb = "delete-tree" // deletes all keys with the prefix Key
	VerbGet        Verb = "get"         // returns the entry; fails if the key does not exist
	VerbGetTree    Verb = "get-tree"    // returns the entries of all keys with the prefix Key

	VerbGetOrEmpty     Verb = "get-or-empty"     // returns the entry; if there is none, an entry with only the key
	VerbCheckIndex     Verb = "check-index"      // fails unless the ModifyIndex of the key is Index
	VerbCheckNotExists Verb = "check-not-exists" // fails if the key exists

	VerbLock         Verb = "lock"          // as VerbSet, and locks the key for Session; see Store.Lock
	VerbUnlock       Verb = "unlock"        // as VerbSet, and removes the lock of Session; see Store.Unlock
	VerbCheckSession Verb = "check-session" // fails unless Session has locked the key
)

// verbs has all verbs. The value is true for verbs that write.
var verbs = map[Verb]bool{
	VerbSet: true, VerbCAS: true, VerbDelete: true, VerbDeleteCAS: true, VerbDeleteTree: true,
	VerbLock: true, VerbUnlock: true,
	VerbGet: false, VerbGetOrEmpty: false, VerbGetTree: false, VerbCheckIndex: false, VerbCheckNotExists: false,
	VerbCheckSession: false,
}

// ofTree reports whether the key of an op with verb v is a prefix.
func (v Verb) ofTree() bool { return v == VerbGetTree || v == VerbDeleteTree }

// isBlind reports whether an op with verb v ignores the stored key.
func (v Verb) isBlind() bool { return v == VerbSet || v == VerbDelete }

// Op is one operation of a transaction.
type Op struct {
	Verb Verb
	// Key is a key. For VerbGetTree and VerbDeleteTree, it is a prefix.
	Key   string
	Value []byte // value of VerbSet and VerbCAS
	Flags uint64 // flags of VerbSet and VerbCAS
	Index uint64 // expected ModifyIndex of VerbCAS, VerbDeleteCAS and VerbCheckIndex
	// Session is the id of the session for VerbLock, VerbUnlock and
	// VerbCheckSession.
	Session string
}

// Failure describes an op of a transaction that failed.
type Failure struct {
	Op     int // position of the op, from 0
	Reason string
}

const (
	// maxRepeated bounds the bytes of entries that a transaction returns more
	// than once. An HTTP request has at most 128 operations, so maxRepeated
	// permits 128 gets of the largest value.
	maxRepeated = 128 * (MaxValue + resource.MaxUTF8NameLen + entryOverhead)
	// entryOverhead is the size of an entry without key and value, in bytes.
	entryOverhead = 128
)

// Txn performs all ops in order, in one commit. If an op fails, Txn performs no
// op and returns the failures. An op reads the result of earlier ops. Txn
// returns the entries that the ops return. The entry of a write has no value. A
// write of the stored value and flags changes nothing.
//
// Txn does not read a key that is only set or deleted, so a concurrent write to
// the key causes no retry. After a concurrent write to any other key of ops,
// Txn runs the transaction again.
//
// If no op writes, Txn reads all keys at one moment, with the consistency c,
// and commits nothing. If an op writes, c has no effect.
//
// In a transaction that writes, a prefix matches at most DeleteTreeBatch keys.
// Entries that are returned more than once have at most about 64 MiB in total.
// Beyond these limits, Txn returns resource.ErrInvalid.
func (s *Store) Txn(ctx context.Context, c resource.Consistency, ops []Op) ([]Entry, []Failure, error) {
	writes, err := s.checkTxn(ctx, ops)
	if err != nil || len(ops) == 0 {
		return nil, nil, err
	}
	if writes {
		c = resource.Eventual // the commit fails if the read was stale
	}
	for ; ; c = resource.Strong {
		t, err := s.readTxn(ctx, c, ops, writes)
		if err != nil {
			return nil, nil, err
		}
		failures, err := t.run(ops)
		if err != nil {
			return nil, nil, err
		}
		if failures != nil || !t.hasChanges() {
			if writes && c != resource.Strong {
				continue // the eventual read may have been stale
			}
			if failures != nil {
				return nil, failures, nil
			}
			return t.entries(nil), nil, nil
		}
		stored, err := t.commit(ctx, s.res)
		if errors.Is(err, resource.ErrConflict) {
			if ctx.Err() != nil {
				return nil, nil, fmt.Errorf("transaction: %w: concurrent writes changed its keys in each attempt",
					ctx.Err())
			}
			continue
		}
		return t.entries(stored), nil, err
	}
}

// checkTxn checks and authorizes ops, and reports whether they write.
func (s *Store) checkTxn(ctx context.Context, ops []Op) (writes bool, err error) {
	for i, op := range ops {
		w, ok := verbs[op.Verb]
		if !ok {
			return false, fmt.Errorf("%w verb %q of operation %d", resource.ErrInvalid, op.Verb, i)
		}
		writes = writes || w
		if err := s.allow(ctx, op.access(w), op.Key); err != nil {
			return false, fmt.Errorf("operation %d: %w", i, err)
		}
		if op.Key == "" && op.Verb.ofTree() {
			continue
		}
		if op.Verb == VerbLock {
			if err := resource.CheckName(op.Session); err != nil {
				return false, fmt.Errorf("operation %d: session: %w", i, err)
			}
		}
		if err := resource.CheckUTF8Name(op.Key); err != nil {
			return false, fmt.Errorf("operation %d: %w", i, err)
		}
	}
	return writes, nil
}

// readTxn reads the keys and trees of ops at one moment.
func (s *Store) readTxn(ctx context.Context, c resource.Consistency, ops []Op, writes bool) (*txn, error) {
	if c == resource.Strong { // after a strong read, eventual reads are as fresh as strong reads
		_, err := s.backend.Read(ctx, c, resource.ID(EntryType, "-"))
		if err != nil && !errors.Is(err, resource.ErrNotFound) {
			return nil, err
		}
	}
	for {
		t := &txn{keys: map[string]*txnKey{}, queried: map[resource.Query]bool{}, exists: map[resource.Query]int{}}
		if err := s.readOps(ctx, t, ops, writes); err != nil {
			return nil, err
		}
		// A transaction that writes may use reads of different moments, because
		// its commit then fails.
		if writes && c != resource.Strong || !t.changedSince(s.backend) {
			return t, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

func (s *Store) readOps(ctx context.Context, t *txn, ops []Op, writes bool) error {
	blind := blindKeys(ops)
	for _, op := range ops {
		if op.Verb == VerbLock {
			if err := s.readLock(ctx, t, op); err != nil {
				return err
			}
		}
		q := keyQuery(op.Key)
		if op.Verb.ofTree() {
			q = prefixQuery(op.Key)
		} else if blind[op.Key] {
			t.key(op.Key).blind = true
			continue
		}
		if t.queried[q] {
			continue
		}
		t.queried[q] = true
		all, index, err := s.backend.List(ctx, resource.Eventual, q)
		if err != nil {
			return err
		}
		if n := len(all); writes && n > DeleteTreeBatch {
			return fmt.Errorf("%w transaction: %d keys begin with %q, more than %d: delete them by themselves, "+
				"or read them in a transaction that writes nothing", resource.ErrInvalid, n, op.Key, DeleteTreeBatch)
		}
		t.reads = append(t.reads, txnRead{q, all, index})
		for _, r := range all {
			t.key(r.GetId().GetName()).stored = r
		}
	}
	return nil
}

// readLock reads the session, the lock delay of the key and the locks of the
// session, which decide whether the session may lock the key.
func (s *Store) readLock(ctx context.Context, t *txn, op Op) error {
	locks := session.LocksQuery(op.Session)
	for _, q := range []resource.Query{session.Query(op.Session), session.DelayQuery(op.Key), locks} {
		if t.queried[q] {
			continue
		}
		t.queried[q] = true
		all, index, err := s.backend.List(ctx, resource.Eventual, q)
		if err != nil {
			return err
		}
		t.exists[q] = len(all)
		if q != locks { // a change of the session's other locks must not make the commit fail
			t.reads = append(t.reads, txnRead{q, all, index})
		}
	}
	return nil
}

// blindKeys returns the keys of ops that are only set or deleted.
func blindKeys(ops []Op) map[string]bool {
	keys := map[string]bool{}
	for _, op := range ops {
		if op.Verb.isBlind() {
			keys[op.Key] = true
		}
	}
	for _, op := range ops {
		switch {
		case op.Verb.ofTree():
			maps.DeleteFunc(keys, func(key string, _ bool) bool { return strings.HasPrefix(key, op.Key) })
		case !op.Verb.isBlind():
			delete(keys, op.Key)
		}
	}
	return keys
}

// txn is a running transaction: the keys that were read, and the effect of the
// ops that were performed.
type txn struct {
	queried  map[resource.Query]bool // queries in reads, and those of locks
	exists   map[resource.Query]int  // number of resources of the queries of readLock
	reads    []txnRead
	keys     map[string]*txnKey
	results  []txnResult
	repeated int // bytes of entries that are returned more than once
}

// txnRead is a query with its result.
type txnRead struct {
	query  resource.Query
	listed []*pb.Resource
	index  uint64
}

// txnKey is one key of a transaction.
type txnKey struct {
	key    string
	blind  bool         // the key was not read
	stored *pb.Resource // resource that was read; nil: the key did not exist, or is blind

	now      *Entry // entry after the ops so far; nil: the key does not exist
	written  bool   // the commit writes now
	deleted  bool   // the commit deletes the stored key, before it writes now
	returned bool   // an op has returned the entry
}

// txnResult is an entry that an op returns.
type txnResult struct {
	entry   Entry
	written bool // the commit sets the indexes of the entry
}

func (t *txn) key(name string) *txnKey {
	if t.keys[name] == nil {
		t.keys[name] = &txnKey{key: name}
	}
	return t.keys[name]
}

// sorted returns the keys in byte order.
func (t *txn) sorted() []*txnKey {
	return slices.SortedFunc(maps.Values(t.keys), func(a, b *txnKey) int { return strings.Compare(a.key, b.key) })
}

// changedSince reports whether a key has changed after the query that read it.
// In that case the results of several queries may belong to different moments.
func (t *txn) changedSince(b resource.Backend) bool {
	return len(t.reads) > 1 && slices.ContainsFunc(t.reads, func(r txnRead) bool {
		return resource.Changed(b, r.query, r.index)
	})
}

// run performs ops on the keys that were read.
func (t *txn) run(ops []Op) (failures []Failure, err error) {
	for _, k := range t.keys {
		if k.stored != nil {
			e, err := entryOf(k.stored)
			if err != nil {
				return nil, err
			}
			k.now = &e
		}
	}
	for i, op := range ops {
		if reason := t.perform(op); reason != "" {
			failures = append(failures, Failure{i, reason})
		}
		if t.repeated > maxRepeated {
			return nil, fmt.Errorf("%w transaction: its repeated reads return more than %d bytes: read each tree once",
				resource.ErrInvalid, maxRepeated)
		}
	}
	return failures, nil
}

// perform performs one op. If the op fails, perform returns the reason.
func (t *txn) perform(op Op) (reason string) {
	if op.Verb.ofTree() {
		t.performTree(op)
		return ""
	}
	k := t.key(op.Key)
	switch op.Verb {
	case VerbSet:
		t.set(k, op)
	case VerbCAS:
		if k.index() != op.Index || k.written {
			return fmt.Sprintf("failed to set key %q, index is stale", op.Key)
		}
		t.set(k, op)
	case VerbDelete:
		k.remove()
	case VerbDeleteCAS:
		if k.now != nil && (k.written || k.now.ModifyIndex != op.Index) {
			return fmt.Sprintf("failed to delete key %q, index is stale", op.Key)
		}
		k.remove()
	case VerbGet, VerbGetOrEmpty:
		switch {
		case k.now != nil:
			t.add(k, *k.now)
		case op.Verb == VerbGet:
			return fmt.Sprintf("key %q doesn't exist", op.Key)
		default:
			t.results = append(t.results, txnResult{entry: Entry{Key: op.Key}})
		}
	case VerbCheckIndex:
		switch {
		case k.now == nil:
			return fmt.Sprintf("key %q doesn't exist", op.Key)
		case k.written:
			return fmt.Sprintf("key %q is written by an earlier operation of the transaction", op.Key)
		case k.now.ModifyIndex != op.Index:
			return fmt.Sprintf("key %q has ModifyIndex %d, not %d", op.Key, k.now.ModifyIndex, op.Index)
		}
		t.add(k, withoutValue(*k.now))
	case VerbLock:
		if reason := t.lockFailure(k, op); reason != "" {
			return reason
		}
		e := Entry{Key: op.Key, Value: op.Value, Flags: op.Flags, Session: op.Session, LockIndex: 1}
		if k.now != nil {
			e.LockIndex += k.now.LockIndex
			if k.now.Session == op.Session {
				e.LockIndex = k.now.LockIndex
			}
		}
		t.setLock(k, e)
	case VerbUnlock:
		if k.now == nil || op.Session == "" || k.now.Session != op.Session {
			return fmt.Sprintf("failed to unlock key %q, lock isn't held, or is held by another session", op.Key)
		}
		t.setLock(k, Entry{Key: op.Key, Value: op.Value, Flags: op.Flags, LockIndex: k.now.LockIndex})
	case VerbCheckSession:
		switch {
		case k.now == nil:
			return fmt.Sprintf("failed to check session for key %q, key doesn't exist", op.Key)
		case k.now.Session != op.Session:
			return fmt.Sprintf("failed session check for key %q, current session %q != %q",
				op.Key, k.now.Session, op.Session)
		}
		t.add(k, withoutValue(*k.now))
	case VerbCheckNotExists:
		if k.now != nil {
			return fmt.Sprintf("key %q exists", op.Key)
		}
	}
	return ""
}

func (t *txn) performTree(op Op) {
	for _, k := range t.sorted() {
		if !strings.HasPrefix(k.key, op.Key) || k.now == nil {
			continue
		}
		if op.Verb == VerbDeleteTree {
			k.remove()
		} else {
			t.add(k, *k.now)
		}
	}
}

// set writes the entry of op, unless the key has that entry. The key keeps its
// lock.
func (t *txn) set(k *txnKey, op Op) {
	if k.now == nil || k.now.Flags != op.Flags || !bytes.Equal(k.now.Value, op.Value) {
		e := &Entry{Key: op.Key, Value: op.Value, Flags: op.Flags}
		if k.now != nil {
			e.Session, e.LockIndex = k.now.Session, k.now.LockIndex
		}
		k.now, k.written = e, true
	}
	t.add(k, withoutValue(*k.now))
}

func noSession(id string) string { return fmt.Sprintf("%v %q", ErrNoSession, id) }

// lockFailure returns the reason why the session of op may not lock the key, or
// "".
func (t *txn) lockFailure(k *txnKey, op Op) string {
	held := ""
	if k.now != nil {
		held = k.now.Session
	}
	switch {
	case t.exists[session.Query(op.Session)] == 0:
		return noSession(op.Session)
	case held == op.Session:
		return ""
	case held != "":
		return fmt.Sprintf("failed to lock key %q, lock is already held", op.Key)
	case t.exists[session.DelayQuery(op.Key)] > 0:
		return fmt.Sprintf("failed to lock key %q due to lock delay", op.Key)
	case t.exists[session.LocksQuery(op.Session)] >= session.MaxLocks:
		return fmt.Sprintf("failed to lock key %q, session %q has locked %d keys: use another session",
			op.Key, op.Session, session.MaxLocks)
	}
	return ""
}

// setLock writes an entry with another lock, unless the key has that entry.
func (t *txn) setLock(k *txnKey, e Entry) {
	if now := k.now; now == nil || now.Session != e.Session || now.Flags != e.Flags || !bytes.Equal(now.Value, e.Value) {
		k.now, k.written = &e, true
	}
	t.add(k, withoutValue(*k.now))
}

// add adds an entry to the results.
func (t *txn) add(k *txnKey, e Entry) {
	if k.returned {
		t.repeated += len(e.Key) + len(e.Value) + entryOverhead
	}
	k.returned = true
	t.results = append(t.results, txnResult{e, k.written})
}

// index returns the ModifyIndex of the key, 0 if it does not exist.
func (k *txnKey) index() uint64 {
	if k.now == nil {
		return 0
	}
	return k.now.ModifyIndex
}

// remove deletes the key. If the key was read and did not exist, the commit has
// nothing to delete. A blind key may exist.
func (k *txnKey) remove() { k.now, k.written, k.deleted = nil, false, k.stored != nil || k.blind }

func withoutValue(e Entry) Entry {
	e.Value = nil
	return e
}

// hasChanges reports whether the ops change anything.
func (t *txn) hasChanges() bool {
	for _, k := range t.keys {
		if k.written || k.deleted {
			return true
		}
	}
	return false
}

// commit commits the changes, and returns the stored resources by key. commit
// fails with resource.ErrConflict if a key that was read has changed.
func (t *txn) commit(ctx context.Context, res *resource.Service) (map[string]*pb.Resource, error) {
	var steps []resource.Step
	for _, r := range t.reads {
		steps = append(steps, resource.Step{Expect: &r.query, Listed: r.listed})
	}
	writes := map[string]int{} // position among steps
	for _, k := range t.sorted() {
		stored := k.stored
		if k.deleted {
			if k.written && len(resource.Finalizers(stored)) > 0 { // the deletion would wait for the finalizers
				return nil, fmt.Errorf("set %q after its deletion in one transaction: %w", k.key,
					resource.ErrTerminating)
			}
			// The version of a blind key is empty, which allows any version.
			steps = append(steps, resource.Step{Delete: resource.ID(EntryType, k.key), Version: stored.GetVersion()})
			stored = nil
		}
		if k.written {
			step, err := putStep(*k.now, stored, k.blind)
			if err != nil {
				return nil, err
			}
			writes[k.key] = len(steps)
			steps = append(steps, *step)
		}
		lock, err := k.lockSteps()
		if err != nil {
			return nil, err
		}
		steps = append(steps, lock...)
	}
	out, err := res.WriteAll(ctx, steps...)
	if err != nil {
		return nil, err
	}
	stored := make(map[string]*pb.Resource, len(writes))
	for key, i := range writes {
		stored[key] = out[i]
	}
	return stored, nil
}

// lockSteps returns the steps that record a changed lock of the key.
func (k *txnKey) lockSteps() (steps []resource.Step, err error) {
	before, after := session.LockOf(k.stored).Session, ""
	if k.now != nil {
		after = k.now.Session
	}
	if k.blind || before == after {
		return nil, nil
	}
	if before != "" {
		steps = append(steps, resource.Step{Op: session.UnlockOp(before, k.key)})
	}
	if after != "" {
		op, err := session.LockOp(after, k.key)
		if err != nil {
			return nil, err
		}
		steps = append(steps, resource.Step{Op: op})
	}
	return steps, nil
}

// entries returns the results of the ops. stored is the result of commit.
func (t *txn) entries(stored map[string]*pb.Resource) []Entry {
	// An entry that a later op deleted has no stored resource and gets the
	// index of the commit. This is the highest index, because a write of equal
	// data keeps the older index of its key.
	var index uint64
	for _, r := range stored {
		index = max(index, r.GetModifyIndex())
	}
	out := make([]Entry, len(t.results))
	for i, r := range t.results {
		out[i] = r.entry
		if r.written {
			out[i].CreateIndex, out[i].ModifyIndex = index, index
			if s := stored[r.entry.Key]; s != nil {
				out[i].CreateIndex, out[i].ModifyIndex = s.GetCreateIndex(), s.GetModifyIndex()
				lock := session.LockOf(s) // a blind write has not read the lock
				out[i].Session, out[i].LockIndex = lock.Session, lock.Index
			}
		}
	}
	return out
}
