// SPDX-License-Identifier: MPL-2.0

package resourcetest

import (
	"context"
	"errors"

	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// Operator returns the identity of an operator of dc1.
func Operator() *tlsutil.Peer {
	return &tlsutil.Peer{Role: tlsutil.RoleOperator, DC: "dc1", Node: "joe"}
}

// PeerOf returns the caller that tlsutil.WithPeer put into ctx, or an error if
// there is none. A test that sets the caller of each call passes PeerOf to
// resource.NewService.
func PeerOf(ctx context.Context) (tlsutil.Peer, error) {
	p, ok := tlsutil.PeerFromContext(ctx)
	if !ok {
		return p, errors.New("the context has no peer")
	}
	return p, nil
}

// Decide returns a resource.ServiceConfig.Decide of a server of dc1 with the
// built-in policies. Every call comes from caller, which the test may change.
func Decide(caller *tlsutil.Peer) func(context.Context, resource.Access) error {
	engine := policy.New(policy.Config{DC: "dc1"})
	return func(_ context.Context, a resource.Access) error {
		return engine.DecideFor(policy.Caller{Peer: *caller}, a)
	}
}

// NewService returns a Service of dc1, a secondary, over b, with the rules of
// package policy. The function register adds the types. Every call comes from
// caller, which the test may change.
func NewService(
	b resource.Backend, caller *tlsutil.Peer, register func(*resource.Registry) error,
) (*resource.Service, error) {
	registry := resource.NewRegistry()
	if err := register(registry); err != nil {
		return nil, err
	}
	return resource.NewService(resource.ServiceConfig{
		Decide:  Decide(caller),
		Backend: b, Registry: registry, DC: "dc1",
		Primary: func() bool { return false },
		Peer:    func(context.Context) (tlsutil.Peer, error) { return *caller, nil },
	})
}
