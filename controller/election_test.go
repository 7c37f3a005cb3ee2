// SPDX-License-Identifier: MPL-2.0

package controller_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

// lateElector elects its process at once. Its context is like a lease.Held of a
// process that was stopped: Err returns an error, but the timer that closes Done
// has not fired yet.
type lateElector struct{ ended atomic.Bool }

type lateContext struct {
	context.Context
	e *lateElector
}

func (c lateContext) Err() error {
	if c.e.ended.Load() {
		return context.Canceled
	}
	return c.Context.Err()
}

func (e *lateElector) RunWhileLeader(ctx context.Context, fn func(context.Context) error) error {
	return fn(lateContext{ctx, e})
}

// TestRuntime_ActsOnlyWhileElected ends an election inside a reconcile. No write
// of the reconcile reaches the service, and no other reconcile begins.
func TestRuntime_ActsOnlyWhileElected(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		s := newService(t)
		for _, name := range []string{"x", "y", "z"} {
			s.Write(targetType, name, wrapperspb.String("before"))
		}
		e := &lateElector{}
		var reconciles int
		c := noop("c")
		c.Reconcile = func(ctx context.Context, env *controller.Env, id *pb.ID) (controller.Result, error) {
			reconciles++
			target, err := env.Cache.Get(id)
			if err != nil {
				t.Error(err)
			}
			e.ended.Store(true)
			for what, err := range map[string]error{
				"Write":       write(ctx, env, id, "after", nil),
				"WriteStatus": env.WriteStatus(ctx, target, controller.Outcome("Done", "Test", nil)),
				"Delete": func() error {
					_, err := env.Client.Delete(ctx, &pb.DeleteRequest{Id: id})
					return resource.FromStatus(err)
				}(),
			} {
				if !errors.Is(resource.FromStatus(err), context.Canceled) {
					t.Errorf("%s() after the election = %v, want Canceled", what, err)
				}
			}
			return controller.Result{RequeueNow: reconciles < 10}, nil // bounded, so that the test fails if others begin
		}
		cfg := quiet
		cfg.Elector = e
		s.Start(cfg, c)
		synctest.Wait()
		if got, want := state(s, targetType), "x:before y:before z:before"; got != want || reconciles != 1 {
			t.Errorf("state after %d reconciles = %q, want %q after 1", reconciles, got, want)
		}
	})
}
