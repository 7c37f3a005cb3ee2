// SPDX-License-Identifier: MPL-2.0

package kv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/wanfed/wanfed/resource"
)

// Verb says what an Op does.
type Verb string

// The verbs. Those that fail say why in a Failure, and then nothing of the transaction is done.
const (
	VerbSet            Verb = "set"              // writes key, value and flags
	VerbCAS            Verb = "cas"              // the same if the key has Index as ModifyIndex, or, for 0, is not there; else it fails
	VerbDelete         Verb = "delete"           // deletes the key, if it is there
	VerbDeleteCAS      Verb = "delete-cas"       // the same; it fails if the key is there with another ModifyIndex than Index
	VerbDeleteTree     Verb = "delete-tree"      // deletes all keys that begin so
	VerbGet            Verb = "get"              // returns the entry; fails without
	VerbGetOrEmpty     Verb = "get-or-empty"     // returns the entry, or one that has only the key
	VerbGetTree        Verb = "get-tree"         // returns the entries of all keys that begin so
	VerbCheckIndex     Verb = "check-index"      // fails unless the key has Index as ModifyIndex
	VerbCheckNotExists Verb = "check-not-exists" // fails if the key is there
)

// known has all verbs; of those that write, true.
var known = map[Verb]bool{
	VerbSet: true, VerbCAS: true, VerbDelete: true, VerbDeleteCAS: true, VerbDeleteTree: true,
	VerbGet: false, VerbGetOrEmpty: false, VerbGetTree: false, VerbCheckIndex: false, VerbCheckNotExists: false,
}

func (v Verb) tree() bool { return v == VerbGetTree || v == VerbDeleteTree }

// blind says whether what is stored makes no difference.
func (v Verb) blind() bool { return v == VerbSet || v == VerbDelete }

// Op is one step of a transaction.
type Op struct {
	Verb Verb
	// Key is what it is about; a prefix, which may be empty, for the verbs of trees.
	Key   string
	Value []byte
	Flags uint64
	Index uint64
}

// Failure says why an op of a transaction failed.
type Failure struct {
	Op     int // from 0
	Reason string
}

// Txn does all ops in order, in one commit, or, if one fails, none; each sees what those before it have done. It returns the entries
// that they return: of what was set, without the value. What is only set or deleted is not read, and others who write it cost
// nothing; who reads it begins anew when others write it meanwhile. Without ops that write, it reads all of one moment, as fresh as c says, and
// commits nothing; else c means nothing.
//
// The trees of a transaction that writes may have DeleteTreeBatch keys, and what is returned another time some 64 MiB; above, resource.ErrInvalid.
func (s *Store) Txn(ctx context.Context, c resource.Consistency, ops []Op) ([]Entry, []Failure, error) {
	writes, err := s.admitTxn(ctx, ops)
	if err != nil || len(ops) == 0 {
		return nil, nil, err
	}
	if writes {
		c = resource.Eventual // a commit proves that it was fresh enough
	}
	for ; ; c = resource.Strong {
		t, err := s.readTxn(ctx, c, ops, writes)
		if err != nil {
			return nil, nil, err
		}
		failed, err := t.run(ops)
		if err != nil {
			return nil, nil, err
		}
		if failed != nil || !t.changes() {
			if writes && c != resource.Strong {
				continue // what was read may have been old
			}
			if failed != nil {
				return nil, failed, nil
			}
			return t.answers(nil), nil, nil
		}
		stored, err := t.commit(ctx, s.res)
		if errors.Is(err, resource.ErrConflict) {
			if ctx.Err() != nil {
				return nil, nil, fmt.Errorf("transaction: %w: each time, others had written what it reads", ctx.Err())
			}
			continue
		}
		return t.answers(stored), nil, err
	}
}

// admitTxn says whether ops write, and refuses what is malformed, or not allowed.
func (s *Store) admitTxn(ctx context.Context, ops []Op) (writes bool, err error) {
	for i, op := range ops {
		w, ok := known[op.Verb]
		if !ok {
			return false, fmt.Errorf("%w verb %q of operation %d", resource.ErrInvalid, op.Verb, i)
		}
		writes = writes || w
		if op.Key == "" && op.Verb.tree() {
			continue
		}
		if err := resource.CheckUTF8Name(op.Key); err != nil {
			return false, fmt.Errorf("operation %d: %w", i, err)
		}
	}
	verb := resource.VerbList
	if writes {
		verb = resource.VerbWrite // who may write may read and delete
	}
	return writes, s.allow(ctx, verb)
}

// readTxn reads what ops are about, as it was at one moment.
func (s *Store) readTxn(ctx context.Context, c resource.Consistency, ops []Op, writes bool) (*txn, error) {
	if c == resource.Strong { // of anything: what is read here after it is fresh enough
		if _, err := s.backend.Read(ctx, c, resource.ID(EntryType, "-")); err != nil && !errors.Is(err, resource.ErrNotFound) {
			return nil, err
		}
	}
	for {
		t := &txn{slots: map[string]*slot{}, trees: map[string]bool{}}
		if err := s.readOps(ctx, t, ops, writes); err != nil {
			return nil, err
		}
		if writes && c != resource.Strong || !t.moved(s.backend) {
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
		if blind[op.Key] && !op.Verb.tree() {
			t.slot(op.Key).blind = true
			continue
		}
		q := ofKey(op.Key)
		if op.Verb.tree() {
			if t.trees[op.Key] {
				continue
			}
			t.trees[op.Key] = true
			q = resource.Query{Type: EntryType, Prefix: op.Key}
		} else if sl := t.slots[op.Key]; sl != nil && sl.named {
			continue
		}
		all, index, err := s.backend.List(ctx, resource.Eventual, q)
		if err != nil {
			return err
		}
		if n := len(all); writes && n > DeleteTreeBatch {
			return fmt.Errorf("%w transaction: %d keys begin with %q, more than %d: delete them by themselves, or read them in a transaction "+
				"that writes nothing", resource.ErrInvalid, n, op.Key, DeleteTreeBatch)
		}
		t.reads = append(t.reads, txnRead{q, all, index})
		for _, r := range all {
			t.slot(r.GetId().GetName()).was = r
		}
		if !op.Verb.tree() {
			t.slot(op.Key).named = true
		}
	}
	return nil
}

// blindKeys returns the keys of ops of which nothing has to be read.
func blindKeys(ops []Op) map[string]bool {
	keys := map[string]bool{}
	for _, op := range ops {
		if op.Verb.blind() {
			keys[op.Key] = true
		}
	}
	for _, op := range ops {
		switch {
		case op.Verb.tree():
			maps.DeleteFunc(keys, func(key string, _ bool) bool { return strings.HasPrefix(key, op.Key) })
		case !op.Verb.blind():
			delete(keys, op.Key)
		}
	}
	return keys
}
