// SPDX-License-Identifier: MPL-2.0

package controllertest

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

// recorder is a testing.TB that records errors and defers its cleanup.
type recorder struct {
	testing.TB
	errors  []string
	cleanup []func()
}

func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}
func (r *recorder) Cleanup(f func()) { r.cleanup = append(r.cleanup, f) }

func (r *recorder) end() {
	for i := len(r.cleanup) - 1; i >= 0; i-- {
		r.cleanup[i]()
	}
}

// TestService_ReportsChangedCache has a controller that changes a cached
// resource, and one that changes its clone.
func TestService_ReportsChangedCache(t *testing.T) {
	typ := &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Target"}
	for _, clone := range []bool{true, false} {
		testutil.Bubble(t, func(t *testing.T) {
			r := &recorder{TB: t}
			s := New(r, resource.Registration{Type: typ, Message: &wrapperspb.StringValue{}})
			s.Write(typ, "x", wrapperspb.String(""))
			_, stop := s.Start(controller.Config{Logger: slog.New(slog.DiscardHandler)}, controller.Controller{
				Name: "c", Managed: typ,
				Reconcile: func(_ context.Context, env *controller.Env, id *pb.ID) (controller.Result, error) {
					found, err := env.Cache.Get(id)
					if err == nil && clone {
						found = proto.CloneOf(found)
					}
					if err == nil {
						found.Metadata = map[string]string{"changed": "true"}
					}
					return controller.Result{}, err
				},
			})
			synctest.Wait()
			stop()
			r.end()
			if got := strings.Join(r.errors, "; "); clone != (got == "") || !clone && !strings.Contains(got, `"x" in the cache was changed`) {
				t.Errorf("errors of a controller that clones %t = %q, want one about x if it does not clone", clone, got)
			}
		})
	}
}
