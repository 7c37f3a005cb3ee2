// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
)

// A secondary forwards writes of federated types to the primary. Replication
// returns the result as a replica. The version of a replica is local and has no
// meaning in the primary. In a compare-and-swap, the secondary therefore
// replaces the version of the replica by the version of the primary's resource.
// The primary checks that this version is still stored. Each primary numbers
// its versions itself. A version is therefore sent with the epoch of the
// primary, a number that grows when another datacenter becomes the primary.

const (
	// forwardTimeout bounds a call to the primary. The caller's deadline, if it
	// is earlier, ends the call first.
	forwardTimeout = 15 * time.Second
	// replicaTimeout bounds the time that a forwarded write waits for the
	// replica. Half of the time until the caller's deadline is another bound.
	replicaTimeout = time.Second
)

// PrimaryVersionPrefix begins the version in the response to a forwarded write
// whose replica has not arrived in time, or was already overwritten. The
// primary's version follows, and then "@" and the epoch of the primary, if it is
// known. A secondary accepts the whole text in a compare-and-swap.
const PrimaryVersionPrefix = "primary-"

// forwards reports whether this server forwards writes of a type to the
// primary. The error is ErrFederated if the type is not written in this
// datacenter.
func (s *Service) forwards(reg Registration) (bool, error) {
	err := s.checkWritable(reg)
	return err != nil && s.cfg.PrimaryClient != nil, err
}

// forward calls a method of the primary on behalf of the caller of ctx.
func forward[In, Out any](
	ctx context.Context, s *Service, in In,
	method func(pb.ResourceServiceClient, context.Context, In, ...grpc.CallOption) (Out, error),
) (out Out, err error) {
	client, err := s.cfg.PrimaryClient()
	if errors.Is(err, ErrNoPrimary) {
		return out, err // no call was made: this datacenter may not forward at the moment
	}
	if err != nil {
		return out, s.forwardError(ctx, false, err)
	}
	fctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	var at grpcpeer.Peer // stays empty if the call was not sent
	if out, err = method(client, fctx, in, grpc.Peer(&at)); err != nil {
		err = s.forwardError(ctx, at.Addr != nil, err)
	}
	return out, err
}

// rejections are the codes of calls that had no effect in the primary.
var rejections = []codes.Code{
	codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented, codes.ResourceExhausted,
	codes.NotFound, codes.FailedPrecondition, codes.Aborted, codes.AlreadyExists,
}

// forwardError returns the error of a failed call, with its outcome. If sent,
// the primary may have received the call.
func (s *Service) forwardError(ctx context.Context, sent bool, err error) error {
	dc, known := s.cfg.PrimaryDC, FromStatus(err)
	if knownOutcome(known) {
		return fmt.Errorf("in the primary datacenter %s: %w", dc, known)
	}
	if st := status.Convert(err); slices.Contains(rejections, st.Code()) {
		return status.Errorf(st.Code(), "in the primary datacenter %s: %s", dc, st.Message())
	}
	if sent {
		return fmt.Errorf("write in the primary datacenter %s: %w: %w; read it before you write again",
			dc, ErrUnknownOutcome, known)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("write in the primary datacenter %s, which was not reached in time: nothing was written: %w",
			dc, ctx.Err())
	}
	return fmt.Errorf("%w: %s: nothing was written, and the replicas stay as they are; see: wanfed status: %w",
		ErrUnreachable, dc, known)
}

// forwardWrite writes the request's resource in the primary and waits for the
// replica. The resource admitted is the result of admitWrite.
func (s *Service) forwardWrite(ctx context.Context, admitted, given *pb.Resource) (*pb.Resource, error) {
	given = proto.CloneOf(given)
	given.Id = admitted.GetId() // has the complete tenancy
	version, epoch, err := s.primaryVersion(ctx, given.GetId(), given.GetVersion())
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", IDString(given.GetId()), err)
	}
	given.Version, given.PrimaryEpoch = version, epoch
	out, err := forward(ctx, s, &pb.WriteRequest{Resource: given}, pb.ResourceServiceClient.Write)
	if err != nil {
		return nil, err
	}
	return s.replicaOf(ctx, given, out.GetResource()), nil
}

// forwardDelete deletes the resource in the primary and waits until the replica
// is deleted or has a deletion timestamp.
func (s *Service) forwardDelete(ctx context.Context, id *pb.ID, version string) error {
	version, epoch, err := s.primaryVersion(ctx, id, version)
	if errors.Is(err, ErrNotFound) {
		return nil // the caller has read the replica, which is already deleted
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", IDString(id), err)
	}
	before, err := s.stored(ctx, Eventual, id)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	req := &pb.DeleteRequest{Id: id, Version: version, PrimaryEpoch: epoch}
	_, err = forward(ctx, s, req, pb.ResourceServiceClient.Delete)
	if err != nil || before == nil || id.GetUid() != "" && id.GetUid() != before.GetId().GetUid() {
		return err
	}
	if _, ok := Terminating(before); ok {
		return nil // a second deletion changes nothing, so there is nothing to wait for
	}
	s.awaitReplica(ctx, id, func(now *pb.Resource) bool {
		return now == nil || now.GetId().GetUid() != before.GetId().GetUid() ||
			now.GetPrimaryModifyIndex() > before.GetPrimaryModifyIndex()
	})
	return nil
}

// primaryVersion translates the version of a replica to the primary's version,
// and returns the epoch of that version. 0 means unknown.
func (s *Service) primaryVersion(
	ctx context.Context, id *pb.ID, version string,
) (primary string, epoch uint64, err error) {
	if version == "" || version == AnyVersion || version == NewVersion {
		return version, 0, nil
	}
	if v, ok := strings.CutPrefix(version, PrimaryVersionPrefix); ok {
		v, number, known := strings.Cut(v, "@")
		if known {
			epoch, err = strconv.ParseUint(number, 10, 64)
		}
		if err != nil {
			return "", 0, fmt.Errorf("%w version %.80q: must be as it was read", ErrInvalid, version)
		}
		return v, epoch, nil
	}
	r, err := s.stored(ctx, Eventual, id)
	if err != nil || r.GetVersion() != version { // the caller may have read a newer version from another server
		r, err = s.stored(ctx, Strong, id)
	}
	switch {
	case errors.Is(err, ErrNotFound):
		return "", 0, fmt.Errorf(
			"%w: version %s was given, but it does not exist: %w; leave the version out to create it",
			ErrConflict, version, ErrNotFound)
	case err != nil:
		return "", 0, err
	case r.GetVersion() != version:
		return "", 0, versionConflict(r.GetVersion(), version)
	case r.GetPrimaryModifyIndex() == 0:
		return "", 0, fmt.Errorf("%w: the local resource is not a replica, and the primary's resource replaces it",
			ErrConflict)
	}
	return strconv.FormatUint(r.GetPrimaryModifyIndex(), 10), r.GetPrimaryEpoch(), nil
}

// primaryVersionText returns the version of written in a response that has no
// replica.
func primaryVersionText(written *pb.Resource) string {
	text := PrimaryVersionPrefix + written.GetVersion()
	if epoch := written.GetPrimaryEpoch(); epoch != 0 {
		text += "@" + strconv.FormatUint(epoch, 10)
	}
	return text
}

// replicaOf returns the replica of a resource that the primary has written. If
// the replica does not arrive in time, or was already overwritten, replicaOf
// builds the replica from the primary's resource.
func (s *Service) replicaOf(ctx context.Context, given, written *pb.Resource) *pb.Resource {
	_, deleted := Terminating(written)
	deleted = deleted && len(Finalizers(given)) == 0 // the write removed the last finalizer
	now := s.awaitReplica(ctx, written.GetId(), func(now *pb.Resource) bool {
		return now.GetPrimaryModifyIndex() >= written.GetModifyIndex() || now == nil && deleted
	})
	if now.GetId().GetUid() == written.GetId().GetUid() && now.GetPrimaryModifyIndex() == written.GetModifyIndex() &&
		now.GetPrimaryEpoch() == written.GetPrimaryEpoch() {
		return now
	}
	r := proto.CloneOf(written)
	r.Version, r.PrimaryModifyIndex = primaryVersionText(written), written.GetModifyIndex()
	r.CreateIndex, r.ModifyIndex, r.Status = 0, 0, nil
	return r
}

// awaitReplica waits at most replicaTimeout until done returns true for the
// resource that this server stores under id, or nil. awaitReplica returns the
// stored resource at the end of the wait.
func (s *Service) awaitReplica(ctx context.Context, id *pb.ID, done func(now *pb.Resource) bool) *pb.Resource {
	timeout := replicaTimeout
	if end, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(end)/2) // the rest of the time is for the response
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	anyVersion := &pb.Type{Group: id.GetType().GetGroup(), Kind: id.GetType().GetKind()}
	q := Query{Type: anyVersion, Tenancy: id.GetTenancy(), Name: id.GetName()}
	for {
		_, index, err := s.cfg.Backend.List(ctx, Eventual, q)
		if err != nil {
			return nil
		}
		now, err := s.stored(ctx, Eventual, id)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil
		}
		if done(now) || s.cfg.Backend.Wait(ctx, q, index) != nil {
			return now
		}
	}
}
