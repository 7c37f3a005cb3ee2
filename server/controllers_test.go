// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/controller/controllertest"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

// tombstoneStore leaves owned resources to the controllers.
type tombstoneStore struct {
	*resourcetest.Store
	mu sync.Mutex
}

func (s *tombstoneStore) Commit(_ context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &memory.Entry{Index: s.Index() + 1, Ops: ops}
	s.Apply(e)
	return e.Resources, e.Err
}

// TestControllers_DeleteOwnedResources deletes a federation state, which owns
// more resources than one step deletes. Without a leader they stay.
func TestControllers_DeleteOwnedResources(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		b := &tombstoneStore{Store: resourcetest.NewStore()}
		defer b.Close()
		registry, err := newRegistry(nil)
		if err != nil {
			t.Fatal(err)
		}
		self := tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc1", Node: "srv1"}
		service, err := resource.NewService(resource.ServiceConfig{
			Backend: b, Registry: registry, DC: "dc1", Primary: func() bool { return true },
			Peer: func(context.Context) (tlsutil.Peer, error) { return self, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		observe := func(context.Context) (map[string][]*pb.Condition, error) { return nil, nil }
		election := controllertest.NewElection()
		rt, err := controller.New(controller.Config{
			Client: service.Client(), Elector: election.Candidate("srv1"), Logger: slog.New(slog.DiscardHandler),
		}, Controllers(b, observe, federation.NewDeletions(func(string) bool { return false }))...)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- rt.Run(ctx) }()

		state, _, err := federation.Upsert(ctx, b, &pb.FederationState{Datacenter: "dc2"})
		if err != nil {
			t.Fatal(err)
		}
		owner, err := b.Read(ctx, resource.Strong, resource.ID(federation.StateType, state.Datacenter))
		if err != nil {
			t.Fatal(err)
		}
		const owned = 2*resource.MaxCascade + 1
		for i := range owned {
			r, err := resource.New(federation.DatacenterType, fmt.Sprint("d", i), &pb.Datacenter{})
			if err == nil {
				r.Owner = proto.CloneOf(owner.Id) // the store shares ids with its readers
				_, err = b.Commit(ctx, resource.PutOp(r, ""))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		left := func() int {
			synctest.Wait()
			all, _, err := b.List(ctx, resource.Strong, resource.Query{Type: federation.DatacenterType})
			tombstones, _, terr := b.List(ctx, resource.Strong, resource.Query{Type: resource.TombstoneType})
			if err != nil || terr != nil {
				t.Fatal(err, terr)
			}
			return len(all) + len(tombstones)
		}
		if _, err := b.Commit(ctx, resource.RemoveOp(proto.CloneOf(owner.Id), resource.AnyVersion)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if n := left(); n < resource.MaxCascade {
			t.Errorf("owned resources and tombstones without a leader = %d, want at least %d", n, resource.MaxCascade)
		}
		election.Elect("srv1")
		time.Sleep(time.Second)
		if n := left(); n != 0 {
			t.Errorf("owned resources and tombstones with a leader = %d, want 0", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}
