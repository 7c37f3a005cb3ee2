// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// setGroup writes a group id, as the first leader of a datacenter does.
func setGroup(t *testing.T, store resource.Backend, id string) {
	t.Helper()
	r, err := resource.New(federation.GroupType, "local", &pb.Group{Id: id})
	if err == nil {
		_, err = store.Commit(t.Context(), resource.PutOp(r, resource.AnyVersion))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestFollower_OtherGroup connects a follower to another primary of the same
// name. The follower keeps its replicas until an operator accepts the other
// group.
func TestFollower_OtherGroup(t *testing.T) {
	first, other, secondary := resourcetest.NewStore(), resourcetest.NewStore(), resourcetest.NewStore()
	for _, s := range []interface{ Close() }{first, other, secondary} {
		t.Cleanup(func() { s.Close() })
	}
	setGroup(t, first, "group-one")
	setGroup(t, other, "group-two")
	p1, p2 := newPrimary(t, first), newPrimary(t, other)
	put(t, first, docType, "kept", "a")
	put(t, other, docType, "foreign", "b")
	conns := []*grpc.ClientConn{p1.client(t), p2.client(t)}
	var current atomic.Int32
	f := follower(t, secondary, func() *grpc.ClientConn { return conns[current.Load()] })
	run(t, f.run)
	await := func(event string, done func() error) {
		t.Helper()
		testutil.Await(t, 10*time.Second, event, func(context.Context) error { return done() })
	}
	wantReplica := func(want string) func() error {
		return func() error {
			all, _, err := secondary.List(t.Context(), resource.Eventual, resource.Query{Type: docType})
			if err == nil && (len(all) != 1 || all[0].Id.Name != want) {
				err = fmt.Errorf("replicas = %v, want %s", all, want)
			}
			return err
		}
	}
	await("replicas of the first primary", wantReplica("kept"))
	if got := f.manager.AcceptedGroup("dc1"); got != "group-one" {
		t.Fatalf("AcceptedGroup() = %q, want group-one", got)
	}

	current.Store(1)
	p1.drop()
	await("the other primary is refused", func() error {
		reason := f.OtherGroup()
		for _, want := range []string{"group-one", "group-two", "replace dc1 --id group-two --datacenter dc2"} {
			if !strings.Contains(reason, want) {
				return fmt.Errorf("OtherGroup() = %q, want %q in it", reason, want)
			}
		}
		return nil
	})
	if err := wantReplica("kept")(); err != nil {
		t.Error(err)
	}
	if got := p2.source.RejectedBy(); !strings.Contains(got, "group-one") || !strings.Contains(got, "group-two") {
		t.Errorf("RejectedBy() = %q, want both ids", got)
	}

	previous, err := f.manager.ReplacePrimary(t.Context(), "group-two")
	if err != nil || previous != "group-one" {
		t.Fatalf("ReplacePrimary() = %q, %v, want group-one", previous, err)
	}
	await("replicas of the other primary", wantReplica("foreign"))
	if got := f.OtherGroup(); got != "" {
		t.Errorf("OtherGroup() = %q, want none", got)
	}
}
