// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"errors"
)

// ended is a context that has ended: a Wait with it tells whether an index has moved, and does not wait.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// Moved says whether the index of q is above after, or cannot be told, as this server has it. It does not block. Lists whose
// indexes have not moved when the last of them is made are of one moment.
func Changed(b Backend, q Query, after uint64) bool {
	err := b.Wait(ended, q, after)
	return err == nil || !errors.Is(err, context.Canceled)
}
