// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"crypto/ed25519"
	"errors"
	"fmt"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// Type is the type of tokens. Each datacenter has its own.
var Type = &pb.Type{Group: "enroll", GroupVersion: "v1", Kind: "Token"}

// Register adds Type to a registry. Only operators and servers write tokens: the
// holder of a token becomes a member of the federation, so no policy can give
// that right to a user.
func Register(r *resource.Registry) error {
	return r.Register(resource.Registration{
		Type: Type, Message: &pb.EnrollmentToken{}, Scope: resource.ScopeCluster,
		Validate: func(r *pb.Resource) error {
			t, err := resource.Decode[*pb.EnrollmentToken](r)
			if err != nil {
				return err
			}
			if err := check(t); err != nil {
				return err
			}
			if t.Role == RoleDatacenter && t.Uses > 1 {
				return fmt.Errorf("data.uses %d: must be at most 1 for a new datacenter", t.Uses)
			}
			if name := r.GetId().GetName(); name != idOf(t.PublicKey) {
				return fmt.Errorf("name %q: must be %q, the id of data.public_key", name, idOf(t.PublicKey))
			}
			return nil
		},
		Authorize: func(p tlsutil.Peer, verb resource.Verb, _ *pb.Resource) error {
			if verb != resource.VerbRead && verb != resource.VerbList && p.Role != tlsutil.RoleOperator && p.Role != tlsutil.RoleServer {
				return errors.New("only operators create and delete tokens")
			}
			return nil
		},
	})
}

// check checks the data of a token.
func check(t *pb.EnrollmentToken) error {
	if err := tlsutil.CheckLabel(t.Datacenter); err != nil {
		return fmt.Errorf("data.datacenter: %w", err)
	}
	if err := checkRole(t.Role); err != nil {
		return fmt.Errorf("data.%w", err)
	}
	switch {
	case len(t.PublicKey) != ed25519.PublicKeySize:
		return fmt.Errorf("data.public_key has %d bytes: must be %d", len(t.PublicKey), ed25519.PublicKeySize)
	case t.Expires == nil || t.Expires.CheckValid() != nil:
		return errors.New("data.expires: must be a time")
	case t.Uses > MaxUses:
		return fmt.Errorf("data.uses %d: must be at most %d", t.Uses, MaxUses)
	case len(t.Enrollments) > MaxUses:
		return fmt.Errorf("data.enrollments has %d entries: must have at most %d", len(t.Enrollments), MaxUses)
	}
	return nil
}
