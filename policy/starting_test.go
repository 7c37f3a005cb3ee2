// SPDX-License-Identifier: MPL-2.0

package policy_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// TestDecide_Starting proves that callers without a certificate wait for the
// policies of the loaded store, and that other callers do not.
func TestDecide_Starting(t *testing.T) {
	const federationWait, anonymousWait = 2 * time.Second, 7 * time.Second
	keys := &pb.Type{Group: "kv", GroupVersion: "v1", Kind: "Entry"}
	federation := &pb.Type{Group: "federation", GroupVersion: "v1", Kind: "FederationState"}
	testutil.Bubble(t, func(t *testing.T) {
		store, loaded := resourcetest.NewStore(), make(chan struct{})
		defer store.Close()
		e := policy.New(policy.Config{DC: "dc1", Loaded: loaded, Logger: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- e.Run(ctx, store) }()
		decide := func(caller string, typ *pb.Type) error {
			p, _ := policy.Parse(caller)
			return e.Decide(policy.WithCaller(ctx, policy.Caller{Peer: p}), resource.Access{Verb: resource.VerbRead, Type: typ, Name: "a"})
		}
		begin := time.Now()
		if err := decide("client/dc1/app", keys); err != nil || time.Since(begin) != 0 {
			t.Errorf("Decide() for a client = %v after %v, want nil at once", err, time.Since(begin))
		}
		if err := decide("anonymous/dc1/srv1", federation); err != nil || time.Since(begin) != federationWait {
			t.Errorf("Decide() about the federation = %v after %v, want nil after %v", err, time.Since(begin), federationWait)
		}
		begin = time.Now()
		if err := decide("anonymous/dc1/srv1", federation); err != nil || time.Since(begin) != 0 {
			t.Errorf("second Decide() about the federation = %v after %v, want nil at once", err, time.Since(begin))
		}
		if err := decide("anonymous/dc1/srv1", keys); !errors.Is(err, resource.ErrStarting) || time.Since(begin) != anonymousWait {
			t.Errorf("Decide() about a key = %v after %v, want ErrStarting after %v", err, time.Since(begin), anonymousWait)
		}
		// The policy is in force for a request that has waited for it.
		waited := make(chan error, 1)
		go func() { waited <- decide("anonymous/dc1/srv1", keys) }()
		synctest.Wait()
		r, err := resource.New(policy.Type, policy.Anonymous, &pb.Policy{})
		if err == nil {
			_, err = store.Commit(ctx, resource.PutOp(r, ""))
		}
		if err != nil {
			t.Fatal(err)
		}
		close(loaded)
		if err := <-waited; !errors.Is(err, resource.ErrDenied) {
			t.Errorf("Decide() that waited for the policy = %v, want ErrDenied", err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}
