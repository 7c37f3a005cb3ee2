// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"errors"
	"fmt"

	"github.com/wanfed/wanfed/api/pb"
)

// Errors of the service and of checks, beside those of a Backend.
var (
	// ErrUnsupported: a server of the Raft group is of a version of wanfed that does not understand the op. Nothing was written.
	ErrUnsupported = errors.New("a server of this datacenter is of a version that does not know this kind of write")
	// ErrReadOnly: this server cannot write its log, of a full disk for one, and knows of no other that leads. Nothing was
	// written. It passes when somebody sees to the disk. Replicated Backends fail with it.
	ErrReadOnly = errors.New("this server cannot write its log")
	// ErrInvalid: the request breaks a rule; sending it again does not help. The text names field, value and rule.
	ErrInvalid = errors.New("invalid")
	// ErrFederated: the type is federated, this datacenter is not the primary, and the write cannot be forwarded.
	ErrFederated = errors.New("write it in the primary datacenter")
	// ErrUnreachable: the primary, which alone writes federated types, could not be reached. Nothing was written.
	ErrUnreachable = errors.New("the primary datacenter cannot be reached")
	// ErrTooLarge: the list is larger than an answer may be. Lists of Queries with MaxBytes fail with it.
	ErrTooLarge = errors.New("the list is larger than an answer may be")
	// ErrDenied: the peer may not do that.
	ErrDenied = errors.New("not allowed")
)

// invalidField says which field has which value and what rule it breaks.
func invalidField(field, value, rule string) error {
	return fmt.Errorf("%w %s %s: %s", ErrInvalid, field, quote(value), rule)
}

// GroupVersionError says that a resource is stored as another version of its type than the one asked for. It is an
// ErrGroupVersion.
type GroupVersionError struct {
	Requested *pb.Type
	Stored    *pb.Resource
}

func (e *GroupVersionError) Error() string {
	return fmt.Sprintf("%s: %v: %s, not %s", IDString(e.Stored.GetId()), ErrGroupVersion,
		e.Stored.GetId().GetType().GetGroupVersion(), e.Requested.GetGroupVersion())
}

func (e *GroupVersionError) Unwrap() error { return ErrGroupVersion }

// Refused says whether err is a state machine's answer to a batch whose expectations do not hold: nothing was changed, on any
// server.
func Rejected(err error) bool {
	for _, class := range []error{ErrConflict, ErrNotFound, ErrUIDMismatch, ErrGroupVersion, ErrTerminating, ErrInvalid} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}
