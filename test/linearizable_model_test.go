// SPDX-License-Identifier: MPL-2.0

package test

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// The tests check the history of calls with porcupine. The model of a resource
// is one value. Each write writes a different value, so a value identifies a
// version.

// verb is the kind of a call.
type verb string

const (
	verbRead   verb = "read"   // strong read
	verbWrite  verb = "write"  // unconditional write
	verbCAS    verb = "cas"    // write if the value is call.expect
	verbDelete verb = "delete" // unconditional deletion
)

// call is a request of a client. A resource that does not exist has the value
// "".
type call struct {
	verb          verb
	key           string
	expect, value string
}

// outcome is the result of a call.
type outcome struct {
	value   string // result of a read
	refused bool   // result of a cas: the value was not call.expect
	unknown bool   // no response: the call may take effect now, later or never
}

// step reports whether the call can have the outcome o when the value is state.
// It returns the value after the call.
func (c call) step(state string, o outcome) (ok bool, next string) {
	switch c.verb {
	case verbRead:
		return o.value == state, state
	case verbWrite:
		return true, c.value
	case verbDelete:
		return true, ""
	}
	is := state != "" && state == c.expect
	switch {
	case is && !o.refused:
		return true, c.value
	case o.unknown: // a cas whose condition does not hold changes nothing
		return true, state
	}
	return o.refused && !is, state
}

// history records the calls of all clients, with times of one clock.
type history struct {
	start time.Time

	mu       sync.Mutex
	ops      []porcupine.Operation
	unknowns int
}

// did adds a call that began at began and ends now.
func (h *history) did(client int, c call, o outcome, began time.Time) {
	ended := time.Since(h.start).Nanoseconds()
	h.mu.Lock()
	defer h.mu.Unlock()
	if o.unknown { // it can take effect at any later time
		ended = math.MaxInt64
		h.unknowns++
	}
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: c, Output: o,
		Call: began.Sub(h.start).Nanoseconds(), Return: ended})
}

// recordModel is the model of independent resources.
var recordModel = porcupine.Model{
	Partition: func(all []porcupine.Operation) (parts [][]porcupine.Operation) {
		byKey := map[string][]porcupine.Operation{}
		for _, op := range all {
			key := op.Input.(call).key
			byKey[key] = append(byKey[key], op)
		}
		for _, ops := range byKey {
			parts = append(parts, ops)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, in, out any) (bool, any) {
		ok, next := in.(call).step(state.(string), out.(outcome))
		return ok, next
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v: %+v", in, out) },
}

// check fails the test unless the history is linearizable.
func (h *history) check(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ops) == 0 {
		t.Fatal("the history has no calls")
	}
	result, info := porcupine.CheckOperationsVerbose(recordModel, h.ops, time.Minute)
	if result == porcupine.Ok {
		return
	}
	path := t.ArtifactDir() + "/history.html"
	if err := porcupine.VisualizePath(recordModel, info, path); err != nil {
		t.Error(err)
	}
	t.Errorf("check of %d calls, %d with an unknown outcome = %v, want %v (with -artifacts, see %s)", len(h.ops),
		h.unknowns, result, porcupine.Ok, path)
}

// TestRecordModel checks the model with small histories, some of which are not
// linearizable.
func TestRecordModel(t *testing.T) {
	write := func(v string) call { return call{verb: verbWrite, key: "k", value: v} }
	read := call{verb: verbRead, key: "k"}
	cas := func(expect, v string) call { return call{verb: verbCAS, key: "k", expect: expect, value: v} }
	type done struct {
		c        call
		o        outcome
		from, to int64
	}
	for name, tt := range map[string]struct {
		ops []done
		ok  bool
	}{
		"sequential": {[]done{{write("a"), outcome{}, 0, 1}, {read, outcome{value: "a"}, 2, 3}}, true},
		"lost write": {[]done{{write("a"), outcome{}, 0, 1}, {read, outcome{}, 2, 3}}, false},
		"stale read": {[]done{{write("a"), outcome{}, 0, 1}, {write("b"), outcome{}, 2, 3},
			{read, outcome{value: "a"}, 4, 5}}, false},
		"two cas of one": {[]done{{write("a"), outcome{}, 0, 1}, {cas("a", "b"), outcome{}, 2, 5},
			{cas("a", "c"), outcome{}, 3, 6}}, false},
		"one cas refused": {[]done{{write("a"), outcome{}, 0, 1}, {cas("a", "b"), outcome{}, 2, 5},
			{cas("a", "c"), outcome{refused: true}, 3, 6}}, true},
		"wrongly refused cas": {
			[]done{{write("a"), outcome{}, 0, 1}, {cas("a", "b"), outcome{refused: true}, 2, 3}}, false,
		},
		"unknown, applied": {[]done{{write("a"), outcome{unknown: true}, 0, math.MaxInt64}, {read, outcome{}, 2, 3},
			{read, outcome{value: "a"}, 4, 5}}, true},
		"unknown, reverted": {[]done{{write("a"), outcome{unknown: true}, 0, math.MaxInt64},
			{read, outcome{value: "a"}, 2, 3}, {read, outcome{}, 4, 5}}, false},
		"deleted": {[]done{{write("a"), outcome{}, 0, 1},
			{call{verb: verbDelete, key: "k"}, outcome{}, 2, 3}, {read, outcome{}, 4, 5}}, true},
	} {
		var ops []porcupine.Operation
		for i, d := range tt.ops {
			ops = append(ops, porcupine.Operation{ClientId: i, Input: d.c, Output: d.o, Call: d.from, Return: d.to})
		}
		if ok := porcupine.CheckOperations(recordModel, ops); ok != tt.ok {
			t.Errorf("CheckOperations() of %s = %v, want %v", name, ok, tt.ok)
		}
	}
}
