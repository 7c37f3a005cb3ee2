// SPDX-License-Identifier: MPL-2.0

//go:build !unix

package sdnotify

import "errors"

// monotonicNano returns errors.ErrUnsupported: only systemd needs the time.
func monotonicNano() (int64, error) { return 0, errors.ErrUnsupported }
