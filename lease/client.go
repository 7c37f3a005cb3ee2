// SPDX-License-Identifier: MPL-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Client acquires leases at a datacenter. NewClient implements it. Methods
// return when ctx ends.
type Client interface {
	// Acquire makes holder the holder of a free lease. It returns at once, with
	// token 0, if another holder has the lease. If holder has the lease already,
	// Acquire renews it.
	Acquire(ctx context.Context, name, holder string, duration time.Duration) (Grant, error)
	// Renew reports whether the lease is held with the token, and moves its
	// deadline.
	Renew(ctx context.Context, name string, token uint64) (held bool, err error)
	// Release frees the lease if it has the token.
	Release(ctx context.Context, name string, token uint64) error
	// WaitFree blocks until the lease is free or does not exist.
	WaitFree(ctx context.Context, name string) error
}

// Grant is the result of Acquire.
type Grant struct {
	// Token is the fencing token. 0: another holder has the lease.
	Token uint64
	// Holder has the lease.
	Holder string
	// Duration is the time from a renewal to the expiry.
	Duration time.Duration
}

type grpcClient struct {
	leases    pb.LeaseServiceClient
	resources pb.ResourceServiceClient
	renewals  batcher
}

// NewClient returns a Client that calls a server over cc, with the certificate
// of a server or an operator. Any server forwards the calls to its leader.
//
// The Client merges the renewals of all its leases into at most ten calls per
// second, which delays a renewal by up to 100 ms. A process with many leases
// therefore uses one Client for all of them.
func NewClient(cc grpc.ClientConnInterface) Client {
	leases := pb.NewLeaseServiceClient(cc)
	return &grpcClient{leases, pb.NewResourceServiceClient(cc), batcher{leases: leases}}
}

// Acquire implements Client.
func (c *grpcClient) Acquire(ctx context.Context, name, holder string, duration time.Duration) (Grant, error) {
	resp, err := c.leases.Acquire(ctx, &pb.AcquireLeaseRequest{
		Name: name, Holder: holder, Duration: durationpb.New(duration),
	})
	if err != nil {
		return Grant{}, resource.FromStatus(err)
	}
	l, err := resource.Decode[*pb.Lease](resp.GetLease())
	return Grant{resp.GetToken(), l.GetHolder(), l.GetDuration().AsDuration()}, err
}

// Renew implements Client.
func (c *grpcClient) Renew(ctx context.Context, name string, token uint64) (held bool, err error) {
	renewals := []*pb.RenewLeasesRequest_Renewal{{Name: name, Token: token}}
	if err := checkRenewals(renewals); err != nil {
		return false, err
	}
	lost, err := c.renewals.renew(ctx, renewals)
	return err == nil && len(lost) == 0, resource.FromStatus(err)
}

// Release implements Client.
func (c *grpcClient) Release(ctx context.Context, name string, token uint64) error {
	_, err := c.leases.Release(ctx, &pb.ReleaseLeaseRequest{Name: name, Token: token})
	return resource.FromStatus(err)
}

// WaitFree implements Client.
func (c *grpcClient) WaitFree(ctx context.Context, name string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream
	stream, err := c.resources.WatchList(ctx, &pb.WatchListRequest{Type: Type, NamePrefix: name})
	if err != nil {
		return resource.FromStatus(err)
	}
	for found := false; ; {
		ev, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("watch lease %s: %w", name, resource.ErrWatchReset)
			}
			return resource.FromStatus(err)
		}
		upsert, deleted := ev.GetUpsert().GetResource(), ev.GetDelete().GetResource()
		switch {
		case upsert.GetId().GetName() == name:
			if found = true; Token(upsert) == 0 {
				return nil
			}
		case deleted.GetId().GetName() == name, ev.GetEndOfSnapshot() != nil && !found:
			return nil
		}
	}
}
