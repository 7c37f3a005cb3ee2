// SPDX-License-Identifier: MPL-2.0

//go:build !unix

package diskspace

import "errors"

// Free returns errors.ErrUnsupported.
func Free(string) (uint64, error) { return 0, errors.ErrUnsupported }
