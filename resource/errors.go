// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/wanfed/wanfed/api/pb"
)

// Errors of a Backend. Test for them with errors.Is. StatusError maps each to
// one gRPC status.
var (
	// ErrNotFound: no resource has the type, tenancy and name, or the stored
	// resource does not have the requested uid.
	ErrNotFound = errors.New("resource not found")
	// ErrConflict: the stored version is not the expected version. Read again.
	ErrConflict = errors.New("resource has changed")
	// ErrUIDMismatch: the stored resource does not have the uid of the request.
	// Usually the request refers to an earlier resource of the same name.
	ErrUIDMismatch = errors.New("resource has another uid")
	// ErrGroupVersion: the resource is stored as another version of its type.
	// The error is a *GroupVersionError.
	ErrGroupVersion = errors.New("resource is stored as another group version")
	// ErrTerminating: the resource has a deletion timestamp. Only its status
	// can be written and its finalizers can be removed.
	ErrTerminating = errors.New("resource is marked for deletion")
	// ErrNotLeader: this server is not the Raft leader. Nothing was written.
	ErrNotLeader = errors.New("this server is not the leader")
	// ErrUnknownOutcome: leadership was lost, or the deadline passed, during a
	// write. The write may or may not be committed.
	ErrUnknownOutcome = errors.New("outcome of the write is unknown")
	// ErrWatchReset: a snapshot was restored, or the watch lagged. Watch again.
	ErrWatchReset = errors.New("watch was reset")
	// ErrClosed: the backend was closed.
	ErrClosed = errors.New("store is closed")
	// ErrUnsupported: a server of the Raft group runs a version of wanfed that
	// does not support the op. Nothing was written.
	ErrUnsupported = errors.New("a server of this datacenter runs a version that does not support this kind of write")
	// ErrReadOnly: this server cannot write its log, for example because its
	// disk is full, and no other server is known to lead. Nothing was written.
	// Writes succeed again when the disk is repaired.
	ErrReadOnly = errors.New("this server cannot write its log")
	// ErrStarting: this server has not read its policies yet, so it cannot decide
	// about a caller without a certificate. Nothing was written or read.
	ErrStarting = errors.New("this server is starting")
	// ErrTooLarge: a List exceeds Query.MaxBytes or the size of a response.
	ErrTooLarge = errors.New("the list is larger than a response may be")
)

// Errors of Service, and of the functions that check names and types.
var (
	// ErrInvalid: the request breaks a rule, and a retry fails too. The text
	// names field, value and rule.
	ErrInvalid = errors.New("invalid")
	// ErrFederated: the type is federated, this datacenter is not the primary,
	// and the write cannot be forwarded.
	ErrFederated = errors.New("write it in the primary datacenter")
	// ErrNoPrimary: the type is federated, and this datacenter is not the
	// primary any more, or not yet. Nothing was written.
	ErrNoPrimary = errors.New("federated resources cannot be written at the moment")
	// ErrUnreachable: the type is federated, and the primary could not be
	// reached. Nothing was written.
	ErrUnreachable = errors.New("the primary datacenter cannot be reached")
	// ErrDenied: the peer is not authorized.
	ErrDenied = errors.New("not allowed")
)

// invalidField is the error for a field whose value breaks a rule.
func invalidField(field, value, rule string) error {
	return fmt.Errorf("%w %s %s: %s", ErrInvalid, field, quote(value), rule)
}

// TooLargeError returns an ErrTooLarge that names the limit, in bytes.
func TooLargeError(limit int) error {
	return fmt.Errorf("%w, %d bytes: use a name prefix, or a watch", ErrTooLarge, limit)
}

// GroupVersionError is an ErrGroupVersion with details.
type GroupVersionError struct {
	Requested *pb.Type
	Stored    *pb.Resource
}

func (e *GroupVersionError) Error() string {
	return fmt.Sprintf("%s: %v: %s, not %s", IDString(e.Stored.GetId()), ErrGroupVersion,
		e.Stored.GetId().GetType().GetGroupVersion(), e.Requested.GetGroupVersion())
}

func (e *GroupVersionError) Unwrap() error { return ErrGroupVersion }

// Rejected reports whether a state machine returned err because the
// expectations of a batch do not hold. Then no server has applied the batch.
func Rejected(err error) bool {
	classes := []error{ErrConflict, ErrNotFound, ErrUIDMismatch, ErrGroupVersion, ErrTerminating, ErrInvalid}
	return slices.ContainsFunc(classes, func(class error) bool { return errors.Is(err, class) })
}

// errorDomain is the domain of the ErrorInfo detail that StatusError adds.
const errorDomain = "wanfed"

// errorClass maps an error to a gRPC status and back. The reason distinguishes
// classes with the same code.
type errorClass struct {
	err    error
	code   codes.Code
	reason string
}

// errorClasses are in order of precedence. Reasons are part of the wire format.
var errorClasses = []errorClass{
	{ErrUnknownOutcome, codes.Unknown, "UNKNOWN_OUTCOME"},
	{ErrGroupVersion, codes.InvalidArgument, "GROUP_VERSION"},
	{ErrInvalid, codes.InvalidArgument, "INVALID"},
	{ErrDenied, codes.PermissionDenied, "DENIED"},
	{ErrTooLarge, codes.ResourceExhausted, "TOO_LARGE"},
	{ErrNotLeader, codes.Unavailable, "NOT_LEADER"},
	{ErrUnsupported, codes.Unavailable, "TOO_NEW"},
	{ErrReadOnly, codes.Unavailable, "UNWRITABLE"},
	{ErrClosed, codes.Unavailable, "CLOSED"},
	{ErrStarting, codes.Unavailable, "STARTING"},
	{ErrUnreachable, codes.Unavailable, "PRIMARY_UNREACHABLE"},
	{ErrNoPrimary, codes.Unavailable, "NO_PRIMARY"},
	{ErrConflict, codes.Aborted, "CONFLICT"},
	{ErrWatchReset, codes.Aborted, "WATCH_RESET"},
	{ErrUIDMismatch, codes.FailedPrecondition, "WRONG_UID"},
	{ErrTerminating, codes.FailedPrecondition, "MARKED"},
	{ErrFederated, codes.FailedPrecondition, "FEDERATED"},
	{ErrNotFound, codes.NotFound, "NOT_FOUND"},
	{context.DeadlineExceeded, codes.DeadlineExceeded, "DEADLINE"},
	{context.Canceled, codes.Canceled, "CANCELED"},
}

// knownOutcome reports whether err, a result of FromStatus, is an error of this
// package. The error then proves that the remote server has responded. A
// context error does not prove a response.
func knownOutcome(err error) bool {
	for _, c := range errorClasses {
		if errors.Is(err, c.err) && c.code != codes.DeadlineExceeded && c.code != codes.Canceled {
			return true
		}
	}
	return false
}

// ErrorKind returns the reason of an error of this package, for example
// CONFLICT, or "" for other errors. It never has text of a request.
func ErrorKind(err error) string {
	for _, c := range errorClasses {
		if errors.Is(err, c.err) {
			return c.reason
		}
	}
	return ""
}

// StatusError returns err as a gRPC status error with the same text. The status
// has a detail of type ErrorInfo with the domain "wanfed" and a reason, for
// example NOT_LEADER. The status of a GroupVersionError also has the stored
// resource and the requested type as details. StatusError returns nil, and an
// error that is already a status, unchanged. Errors of other packages get the
// code Internal.
func StatusError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok { // err itself, not an error that it wraps
		return err
	}
	for _, c := range errorClasses {
		if !errors.Is(err, c.err) {
			continue
		}
		st := status.New(c.code, err.Error())
		details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: c.reason, Domain: errorDomain}}
		if mismatch, ok := errors.AsType[*GroupVersionError](err); ok {
			details = append(details, protoadapt.MessageV1Of(mismatch.Stored),
				protoadapt.MessageV1Of(mismatch.Requested))
		}
		if detailed, derr := st.WithDetails(details...); derr == nil {
			st = detailed
		}
		return st.Err()
	}
	return status.Error(codes.Internal, err.Error())
}

// FromStatus is the inverse of StatusError, for clients. errors.Is finds the
// sentinel in its result, and errors.As finds a GroupVersionError. The result
// has the text of the server, and status.FromError still returns the status. If
// a status has no ErrorInfo, FromStatus translates only the codes NotFound,
// Canceled and DeadlineExceeded. FromStatus returns other errors unchanged.
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

// remoteError is an error of a remote server.
type remoteError struct {
	class error
	st    *status.Status
}

func (e *remoteError) Error() string              { return e.st.Message() }
func (e *remoteError) Unwrap() error              { return e.class }
func (e *remoteError) GRPCStatus() *status.Status { return e.st }
