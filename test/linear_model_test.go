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

// What clients did to records, and whether one order of it explains what they
// saw. The check is porcupine's; the model is here: a record is one value, and
// each write writes another one, so that a version stands for a value.

type verb string

const (
	verbRead   verb = "read"   // strong
	verbWrite  verb = "write"  // whatever is there
	verbCAS    verb = "cas"    // if what is there is expect
	verbDelete verb = "delete" // whatever is there
)

// call is what a client asked for, outcome what became of it. A record that is
// not there has the value "".
type call struct {
	verb          verb
	key           string
	expect, value string
}

type outcome struct {
	value   string // of a read
	refused bool   // of a cas: what is there is not expect
	unknown bool   // the client was not told: it may be done, now or later, or never
}

// step says whether a call can have that outcome where the record's value is
// state, and what it is afterwards.
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
	case o.unknown: // it was refused
		return true, state
	}
	return o.refused && !is, state
}

// history is what all clients did, by one clock.
type history struct {
	start time.Time

	mu       sync.Mutex
	ops      []porcupine.Operation
	unknowns int
}

// did adds a call that began at began and has just ended.
func (h *history) did(client int, c call, o outcome, began time.Time) {
	ended := time.Since(h.start).Nanoseconds()
	h.mu.Lock()
	defer h.mu.Unlock()
	if o.unknown { // it may come true any time from now on
		ended = math.MaxInt64
		h.unknowns++
	}
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: c, Output: o, Call: began.Sub(h.start).Nanoseconds(), Return: ended})
}

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

// check fails the test unless some order explains the history.
func (h *history) check(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ops) == 0 {
		t.Fatal("nothing was done")
	}
	result, info := porcupine.CheckOperationsVerbose(recordModel, h.ops, time.Minute)
	if result == porcupine.Ok {
		return
	}
	path := t.ArtifactDir() + "/history.html"
	if err := porcupine.VisualizePath(recordModel, info, path); err != nil {
		t.Error(err)
	}
	t.Errorf("history of %d calls, %d with an unknown outcome: %v (with -artifacts, see %s)", len(h.ops), h.unknowns, result, path)
}

// TestRecordModel: the check finds what it is for.
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
		"in turn":             {[]done{{write("a"), outcome{}, 0, 1}, {read, outcome{value: "a"}, 2, 3}}, true},
		"lost write":          {[]done{{write("a"), outcome{}, 0, 1}, {read, outcome{}, 2, 3}}, false},
		"stale read":          {[]done{{write("a"), outcome{}, 0, 1}, {write("b"), outcome{}, 2, 3}, {read, outcome{value: "a"}, 4, 5}}, false},
		"two cas of one":      {[]done{{write("a"), outcome{}, 0, 1}, {cas("a", "b"), outcome{}, 2, 5}, {cas("a", "c"), outcome{}, 3, 6}}, false},
		"one cas refused":     {[]done{{write("a"), outcome{}, 0, 1}, {cas("a", "b"), outcome{}, 2, 5}, {cas("a", "c"), outcome{refused: true}, 3, 6}}, true},
		"refused for nothing": {[]done{{write("a"), outcome{}, 0, 1}, {cas("a", "b"), outcome{refused: true}, 2, 3}}, false},
		"unknown, done":       {[]done{{write("a"), outcome{unknown: true}, 0, math.MaxInt64}, {read, outcome{}, 2, 3}, {read, outcome{value: "a"}, 4, 5}}, true},
		"unknown, undone":     {[]done{{write("a"), outcome{unknown: true}, 0, math.MaxInt64}, {read, outcome{value: "a"}, 2, 3}, {read, outcome{}, 4, 5}}, false},
		"deleted":             {[]done{{write("a"), outcome{}, 0, 1}, {call{verb: verbDelete, key: "k"}, outcome{}, 2, 3}, {read, outcome{}, 4, 5}}, true},
	} {
		var ops []porcupine.Operation
		for i, d := range tt.ops {
			ops = append(ops, porcupine.Operation{ClientId: i, Input: d.c, Output: d.o, Call: d.from, Return: d.to})
		}
		if ok := porcupine.CheckOperations(recordModel, ops); ok != tt.ok {
			t.Errorf("%s: %v", name, ok)
		}
	}
}
