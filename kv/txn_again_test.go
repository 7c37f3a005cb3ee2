// SPDX-License-Identifier: MPL-2.0

package kv

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/resource"
)

// TestTxnTellsAgain: a short transaction cannot ask for the same keys so often that the answer is much larger than the store.
func TestTxnTellsAgain(t *testing.T) {
	s, ctx := memoryStore(t), t.Context()
	for i := range 4 {
		mustPut(t, s, fmt.Sprint("t/", i), strings.Repeat("x", MaxValue))
	}
	each := slices.Repeat([]Op{{Verb: VerbGet, Key: "t/1"}}, 128)
	if got, failed, err := s.Txn(ctx, resource.Strong, each); err != nil || failed != nil || len(got) != len(each) {
		t.Errorf("one key, as often as can be asked: %d entries, %v, %v", len(got), failed, err)
	}
	for _, write := range [][]Op{nil, {{Verb: VerbSet, Key: "b"}}} {
		trees := append(slices.Repeat([]Op{{Verb: VerbGetTree, Key: "t/"}}, 127), write...)
		if got, failed, err := s.Txn(ctx, resource.Strong, trees); !errors.Is(err, resource.ErrInvalid) {
			t.Errorf("a tree, as often as can be asked: %d entries, %v, %v", len(got), failed, err)
		}
	}
	if e := get(t, s, "b"); e != nil {
		t.Errorf("a transaction that was refused wrote %+v", e)
	}
}
