// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"testing"

	"github.com/wanfed/wanfed/internal/testutil"
)

// A server that asks a follower of another datacenter much for what must be
// fresh goes over to its leader, and after the next one when that changes. No
// question is lost meanwhile: ask fails otherwise.
func TestReadsGoToTheLeader(t *testing.T) {
	k := newKVBench(t, false)
	leads := func(ctx context.Context) error {
		var unused asked
		k.ask(t, &unused, k.far, "dc=dc2", 4, 2, 400)
		st, err := k.status(ctx)
		if err == nil && k.servers[st.Node] != st.Leader {
			err = fmt.Errorf("%s answers, and %s leads", st.Node, st.Leader)
		}
		return err
	}
	testutil.Await(t, patience, "the leader answers", leads)
	st, err := k.status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for node, addr := range k.servers {
		if addr != st.Leader {
			if err := transferLeader(t.Context(), t, k.lab, st.Leader, node); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	testutil.Await(t, 2*patience, "the new leader answers", func(ctx context.Context) error {
		err := leads(ctx)
		if now, serr := k.status(ctx); err == nil && (serr != nil || now.Leader == st.Leader) {
			err = fmt.Errorf("%s still leads (%v)", st.Leader, serr)
		}
		return err
	})
}
