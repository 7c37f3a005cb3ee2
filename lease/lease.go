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

// authorize refuses writes of a status, which would change the fencing token.
// Sync daemons may not delete leases. The Service permits sync daemons only names
// with SyncPrefix.
func authorize(p tlsutil.Peer, verb resource.Verb, _ *pb.Resource) error {
	switch {
	case verb == resource.VerbWriteStatus:
		return errors.New("a lease has no status")
	case p.Role == tlsutil.RoleSync && verb == resource.VerbDelete:
		return errors.New("sync certificates may not delete leases")
	}
	return nil
}

// AllowFunc returns an ErrDenied if the caller of ctx may not use verb on the
// resource with the name, as resource.Service.Allow does.
type AllowFunc func(ctx context.Context, verb resource.Verb, typ *pb.Type, name string) error

// authorize returns an ErrDenied unless the caller of ctx may acquire, renew and
// release the lease with the name.
func (allow AllowFunc) authorize(ctx context.Context, name string) error {
	if p, _ := tlsutil.PeerFromContext(ctx); p.Role == tlsutil.RoleSync && !strings.HasPrefix(name, SyncPrefix) {
		return fmt.Errorf("%w: %v may not acquire lease %.260q: the name must begin with %s", resource.ErrDenied, p, name, SyncPrefix)
	}
	return allow(ctx, resource.VerbWrite, Type, name)
}

// authorizeRenewals returns the error of authorize for the first renewal that
// has one.
func (allow AllowFunc) authorizeRenewals(ctx context.Context, renewals []*pb.RenewLeasesRequest_Renewal) error {
	for _, r := range renewals {
		if err := allow.authorize(ctx, r.GetName()); err != nil {
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
