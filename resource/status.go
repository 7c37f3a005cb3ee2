// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/wanfed/wanfed/api/pb"
)

// errorDomain stands in the ErrorInfo detail of a status that StatusError made.
const errorDomain = "wanfed"

// errorClasses maps errors to status and back. The reason tells classes of one code apart. The first that matches counts:
// an unknown outcome stays one, whatever ended the wait.
var errorClasses = []struct {
	err    error
	code   codes.Code
	reason string
}{
	{ErrUnknownOutcome, codes.Unknown, "UNKNOWN_OUTCOME"},
	{ErrGroupVersion, codes.InvalidArgument, "GROUP_VERSION"},
	{ErrInvalid, codes.InvalidArgument, "INVALID"},
	{ErrDenied, codes.PermissionDenied, "DENIED"},
	{ErrTooLarge, codes.ResourceExhausted, "TOO_LARGE"},
	{ErrNotLeader, codes.Unavailable, "NOT_LEADER"},
	{ErrUnsupported, codes.Unavailable, "TOO_NEW"},
	{ErrReadOnly, codes.Unavailable, "UNWRITABLE"},
	{ErrClosed, codes.Unavailable, "CLOSED"},
	{ErrUnreachable, codes.Unavailable, "PRIMARY_UNREACHABLE"},
	{ErrConflict, codes.Aborted, "CONFLICT"},
	{ErrWatchReset, codes.Aborted, "WATCH_RESET"},
	{ErrUIDMismatch, codes.FailedPrecondition, "WRONG_UID"},
	{ErrTerminating, codes.FailedPrecondition, "MARKED"},
	{ErrFederated, codes.FailedPrecondition, "FEDERATED"},
	{ErrNotFound, codes.NotFound, "NOT_FOUND"},
	{context.DeadlineExceeded, codes.DeadlineExceeded, "DEADLINE"},
	{context.Canceled, codes.Canceled, "CANCELED"},
}

// StatusError returns err as a gRPC status error with the same text: a code, and an ErrorInfo detail with the domain "wanfed"
// and a reason, for example NOT_LEADER. A GroupVersionError has the stored resource, and the type asked for, as two more details. Nil stays nil, and an error that is a status already stays as it is; one of no
// known class is codes.Internal.
func StatusError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok { // not one wrapped deep inside
		return err
	}
	for _, c := range errorClasses {
		if !errors.Is(err, c.err) {
			continue
		}
		st := status.New(c.code, err.Error())
		details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: c.reason, Domain: errorDomain}}
		if mismatch, ok := errors.AsType[*GroupVersionError](err); ok {
			details = append(details, protoadapt.MessageV1Of(mismatch.Stored), protoadapt.MessageV1Of(mismatch.Requested))
		}
		if detailed, derr := st.WithDetails(details...); derr == nil {
			st = detailed
		}
		return st.Err()
	}
	return status.Error(codes.Internal, err.Error())
}

// FromStatus undoes StatusError at the client: errors.Is finds the sentinel, errors.As a GroupVersionError, the text is the server's, and the status is
// still there for status.FromError. A status of another origin keeps its meaning only for NotFound, Canceled and
// DeadlineExceeded; any other error is returned as it is.
func FromStatus(err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	reason, mismatch := "", &GroupVersionError{}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == errorDomain {
				reason = d.GetReason()
			}
		case *pb.Resource:
			mismatch.Stored = d
		case *pb.Type:
			mismatch.Requested = d
		}
	}
	for _, c := range errorClasses {
		plain := reason == "" && c.code == st.Code() &&
			(c.code == codes.NotFound || c.code == codes.Canceled || c.code == codes.DeadlineExceeded)
		if plain || reason != "" && reason == c.reason {
			if c.err == ErrGroupVersion && mismatch.Stored != nil {
				return &remoteError{class: mismatch, st: st}
			}
			return &remoteError{class: c.err, st: st}
		}
	}
	return err
}

// remoteError is an error that came over gRPC.
type remoteError struct {
	class error
	st    *status.Status
}

func (e *remoteError) Error() string              { return e.st.Message() }
func (e *remoteError) Unwrap() error              { return e.class }
func (e *remoteError) GRPCStatus() *status.Status { return e.st }
