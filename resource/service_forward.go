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

// Writes of federated types in a secondary. They are made in the primary, and come back as copies. The version of a copy is this
// store's own and means nothing in the primary, so a compare-and-swap is translated: whoever gives the version that the copy
// has here means the primary's record that it is a copy of. The primary decides whether that is still the last.

const (
	// forwardTimeout bounds a call to the primary, besides the caller's deadline.
	forwardTimeout = 15 * time.Second
	// copyPatience bounds how long the answer to a forwarded write waits for the copy, so that who wrote finds it here. Half of
	// what is left to the caller's deadline does too.
	copyPatience = time.Second
)

// PrimaryVersionPrefix begins a version that a forwarded write answers with when the copy has not arrived, or was overtaken: the
// rest is the primary's version. A compare-and-swap in a secondary takes it.
const PrimaryVersionPrefix = "primary-"

// forwards says whether writes of a type are made in the primary. It is ErrFederated where that cannot be.
func (s *Service) forwards(reg Registration) (bool, error) {
	if err := s.checkWritable(reg); err != nil {
		return s.cfg.PrimaryClient != nil, err
	}
	return false, nil
}

// forward makes a call in the primary. The caller's identity is for the client to hand on.
func (s *Service) forward(ctx context.Context, call func(ctx context.Context, c pb.ResourceServiceClient, opts ...grpc.CallOption) error) error {
	client, err := s.cfg.PrimaryClient()
	if err != nil {
		return s.forwardError(ctx, false, err)
	}
	fctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	var at grpcpeer.Peer // stays empty if the call was not sent
	if err := call(fctx, client, grpc.Peer(&at)); err != nil {
		return s.forwardError(ctx, at.Addr != nil, err)
	}
	return nil
}

// refusals are codes of calls that were answered and not done.
var refusals = []codes.Code{
	codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented, codes.ResourceExhausted,
	codes.NotFound, codes.FailedPrecondition, codes.Aborted, codes.AlreadyExists,
}

// forwardError says what became of a call. sent: it may have got there.
func (s *Service) forwardError(ctx context.Context, sent bool, err error) error {
	known := FromStatus(err)
	for _, class := range errorClasses {
		if errors.Is(known, class.err) && class.code != codes.DeadlineExceeded && class.code != codes.Canceled {
			return fmt.Errorf("in the primary datacenter %s: %w", s.cfg.PrimaryDC, known)
		}
	}
	if st := status.Convert(err); slices.Contains(refusals, st.Code()) {
		return status.Errorf(st.Code(), "in the primary datacenter %s: %s", s.cfg.PrimaryDC, st.Message())
	}
	if sent {
		return fmt.Errorf("write in the primary datacenter %s: %w: %w; read it before you write again", s.cfg.PrimaryDC, ErrUnknownOutcome, known)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("write in the primary datacenter %s, which was not reached in time: nothing was written: %w", s.cfg.PrimaryDC, ctx.Err())
	}
	return fmt.Errorf("%w: %s: nothing was written, and what is here stays as it is; see: wanfed status: %w", ErrUnreachable, s.cfg.PrimaryDC, known)
}

// forwardWrite has the primary write what was given, and waits for the copy.
func (s *Service) forwardWrite(ctx context.Context, admitted *pb.Resource, given *pb.Resource) (*pb.Resource, error) {
	given = proto.CloneOf(given)
	given.Id = admitted.GetId() // with its tenancy filled in
	version, err := s.versionThere(ctx, given.GetId(), given.GetVersion())
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", IDString(given.GetId()), err)
	}
	given.Version = version
	var out *pb.WriteResponse
	err = s.forward(ctx, func(ctx context.Context, c pb.ResourceServiceClient, opts ...grpc.CallOption) (err error) {
		out, err = c.Write(ctx, &pb.WriteRequest{Resource: given}, opts...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s.copyOf(ctx, given, out.GetResource()), nil
}

// forwardDelete has the primary delete what id names, and waits until that shows here.
func (s *Service) forwardDelete(ctx context.Context, id *pb.ID, version string) error {
	version, err := s.versionThere(ctx, id, version)
	if errors.Is(err, ErrNotFound) {
		return nil // it was here, and is no more
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", IDString(id), err)
	}
	before, err := s.stored(ctx, Eventual, id)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	err = s.forward(ctx, func(ctx context.Context, c pb.ResourceServiceClient, opts ...grpc.CallOption) error {
		_, err := c.Delete(ctx, &pb.DeleteRequest{Id: id, Version: version}, opts...)
		return err
	})
	if err != nil || before == nil || id.GetUid() != "" && id.GetUid() != before.GetId().GetUid() {
		return err
	}
	if _, marked := Terminating(before); marked {
		return nil // there is nothing to see
	}
	s.awaitCopy(ctx, id, func(now *pb.Resource) bool {
		return now == nil || now.GetId().GetUid() != before.GetId().GetUid() || now.GetPrimaryModifyIndex() > before.GetPrimaryModifyIndex()
	})
	return nil
}

// versionThere returns the primary's version for one that was read here.
func (s *Service) versionThere(ctx context.Context, id *pb.ID, version string) (string, error) {
	if there, ok := strings.CutPrefix(version, PrimaryVersionPrefix); ok || version == "" || version == AnyVersion {
		return there, nil
	}
	r, err := s.stored(ctx, Eventual, id)
	if err != nil || r.GetVersion() != version { // what is read here may be older than what the caller has read elsewhere
		r, err = s.stored(ctx, Strong, id)
	}
	switch {
	case errors.Is(err, ErrNotFound):
		return "", fmt.Errorf("%w: version %s was given, and there is none: %w; leave the version out to create one", ErrConflict, version, ErrNotFound)
	case err != nil:
		return "", err
	case r.GetVersion() != version:
		return "", fmt.Errorf("%w: its version is %s, not %s; read it and try again", ErrConflict, r.GetVersion(), version)
	case r.GetPrimaryModifyIndex() == 0:
		return "", fmt.Errorf("%w: what is here has not come from the primary, and the primary's takes its place", ErrConflict)
	}
	return strconv.FormatUint(r.GetPrimaryModifyIndex(), 10), nil
}

// stored reads what has the name, whatever its uid and group version.
func (s *Service) stored(ctx context.Context, c Consistency, id *pb.ID) (*pb.Resource, error) {
	r, err := s.cfg.Backend.Read(ctx, c, &pb.ID{Name: id.GetName(), Type: id.GetType(), Tenancy: id.GetTenancy()})
	if mismatch, ok := errors.AsType[*GroupVersionError](err); ok {
		return mismatch.Stored, nil
	}
	return r, err
}

// copyOf returns the copy of what the primary has written, or, if it does not come in time or was overtaken, that in the form
// of a copy.
func (s *Service) copyOf(ctx context.Context, given, written *pb.Resource) *pb.Resource {
	same := func(now *pb.Resource) bool { return now.GetId().GetUid() == written.GetId().GetUid() }
	_, gone := Terminating(written)
	gone = gone && len(Finalizers(given)) == 0 // that deleted it
	now := s.awaitCopy(ctx, written.GetId(), func(now *pb.Resource) bool {
		return now.GetPrimaryModifyIndex() >= written.GetModifyIndex() || now == nil && gone
	})
	if same(now) && now.GetPrimaryModifyIndex() == written.GetModifyIndex() {
		return now
	}
	r := proto.CloneOf(written)
	r.Version, r.PrimaryModifyIndex = PrimaryVersionPrefix+written.GetVersion(), written.GetModifyIndex()
	r.CreateIndex, r.ModifyIndex, r.Status = 0, 0, nil
	return r
}

// awaitCopy waits until what is stored here under id, nil for nothing, is as it should be, but no longer than copyPatience. It
// returns what is stored then.
func (s *Service) awaitCopy(ctx context.Context, id *pb.ID, done func(now *pb.Resource) bool) *pb.Resource {
	patience := copyPatience
	if end, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(end)/2) // the answer has a way to go
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	anyVersion := &pb.Type{Group: id.GetType().GetGroup(), Kind: id.GetType().GetKind()}
	q := Query{Type: anyVersion, Tenancy: id.GetTenancy(), Prefix: id.GetName()}
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
