// SPDX-License-Identifier: MPL-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// Type is the type of leases. It is not federated: each datacenter has its own
// leases.
var Type = &pb.Type{Group: "coordination", GroupVersion: "v1", Kind: "Lease"}

// The bounds of the duration of a lease.
const (
	MinDuration = time.Second
	MaxDuration = 24 * time.Hour
	// maxHolder bounds the identity of a holder, in bytes.
	maxHolder = 512
)

// Register adds Type to a registry.
func Register(r *resource.Registry) error {
	return r.Register(resource.Registration{
		Type: Type, Message: &pb.Lease{},
		Mutate: func(*pb.Resource) error {
			return errors.New("leases are written by LeaseService only: call Acquire")
		},
		Authorize: authorize,
	})
}

// SyncPrefix is the prefix of the names of all leases that sync daemons may
// acquire.
const SyncPrefix = "sync."

// authorize permits servers and operators to read, acquire and delete leases,
// sync daemons to read and acquire them, and clients to read them. The Service
// permits sync daemons only names with SyncPrefix. No peer writes a status: a
// write would change the fencing token.
func authorize(p tlsutil.Peer, verb resource.Verb, _ *pb.Resource) error {
	reads := verb == resource.VerbRead || verb == resource.VerbList
	switch {
	case verb == resource.VerbWriteStatus:
		return errors.New("a lease has no status")
	case p.Role == tlsutil.RoleServer, p.Role == tlsutil.RoleOperator, p.Role == tlsutil.RoleClient && reads:
		return nil
	case p.Role == tlsutil.RoleSync && verb != resource.VerbDelete:
		return nil
	case p.Role == tlsutil.RoleClient:
		return fmt.Errorf("%s certificates read leases; only %s and %s certificates acquire them",
			p.Role, tlsutil.RoleServer, tlsutil.RoleOperator)
	}
	return fmt.Errorf("%s certificates may not read or acquire leases", p.Role)
}

// authorizeName returns an ErrDenied unless the caller of ctx may acquire, renew
// and release the lease with the name.
func authorizeName(ctx context.Context, name string) error {
	if p, _ := tlsutil.PeerFromContext(ctx); p.Role == tlsutil.RoleSync && !strings.HasPrefix(name, SyncPrefix) {
		return fmt.Errorf("%w: %v may not acquire lease %.260q: the name must begin with %s", resource.ErrDenied, p, name, SyncPrefix)
	}
	return nil
}

// authorizeRenewals returns the error of authorizeName for the first renewal that
// has one.
func authorizeRenewals(ctx context.Context, renewals []*pb.RenewLeasesRequest_Renewal) error {
	for _, r := range renewals {
		if err := authorizeName(ctx, r.GetName()); err != nil {
			return err
		}
	}
	return nil
}

// Token returns the fencing token of a stored lease, or 0 if the lease is free.
func Token(r *pb.Resource) uint64 {
	l, err := resource.Decode[*pb.Lease](r)
	if err != nil || l.Holder == "" {
		return 0
	}
	return r.GetModifyIndex()
}

func checkAcquire(holder string, d time.Duration) error {
	switch {
	case holder == "" || len(holder) > maxHolder:
		return fmt.Errorf("%w holder of %d bytes: must have 1 to %d", resource.ErrInvalid, len(holder), maxHolder)
	case d < MinDuration || d > MaxDuration:
		return fmt.Errorf("%w duration %v: must be %v to %v", resource.ErrInvalid, d, MinDuration, MaxDuration)
	}
	return nil
}
