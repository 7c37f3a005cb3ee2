// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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
	{ErrInvalid, codes.InvalidArgument, "INVALID"},
	{ErrDenied, codes.PermissionDenied, "DENIED"},
	{ErrNotLeader, codes.Unavailable, "NOT_LEADER"},
	{ErrClosed, codes.Unavailable, "CLOSED"},
	{ErrConflict, codes.Aborted, "CONFLICT"},
	{ErrWatchReset, codes.Aborted, "WATCH_RESET"},
	{ErrWrongUID, codes.FailedPrecondition, "WRONG_UID"},
	{ErrFederated, codes.FailedPrecondition, "FEDERATED"},
	{ErrNotFound, codes.NotFound, "NOT_FOUND"},
	{context.DeadlineExceeded, codes.DeadlineExceeded, "DEADLINE"},
	{context.Canceled, codes.Canceled, "CANCELED"},
}

// StatusError returns err as a gRPC status error with the same text: a code, and an ErrorInfo detail with the domain "wanfed"
// and a reason, for example NOT_LEADER. Nil stays nil, and an error that is a status already stays as it is; one of no
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
		if detailed, derr := st.WithDetails(&errdetails.ErrorInfo{Reason: c.reason, Domain: errorDomain}); derr == nil {
			st = detailed
		}
		return st.Err()
	}
	return status.Error(codes.Internal, err.Error())
}

// FromStatus undoes StatusError at the client: errors.Is finds the sentinel, the text is the server's, and the status is
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
	reason := ""
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain {
			reason = info.GetReason()
		}
	}
	for _, c := range errorClasses {
		plain := reason == "" && c.code == st.Code() &&
			(c.code == codes.NotFound || c.code == codes.Canceled || c.code == codes.DeadlineExceeded)
		if plain || reason != "" && reason == c.reason {
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
