// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"errors"
	"fmt"
)

// Errors of the service and of checks, beside those of a Backend.
var (
	// ErrInvalid: the request breaks a rule; sending it again does not help. The text names field, value and rule.
	ErrInvalid = errors.New("invalid")
	// ErrWrongUID: the uid given is of an earlier resource of that name.
	ErrWrongUID = errors.New("resource has another uid")
	// ErrFederated: the type is federated and this datacenter is not the primary.
	ErrFederated = errors.New("write it in the primary datacenter")
	// ErrDenied: the peer may not do that.
	ErrDenied = errors.New("not allowed")
)

// invalidField says which field has which value and what rule it breaks.
func invalidField(field, value, rule string) error {
	return fmt.Errorf("%w %s %q: %s", ErrInvalid, field, value, rule)
}
