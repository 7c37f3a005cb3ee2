// SPDX-License-Identifier: MPL-2.0

//go:build !unix

package dirlock

import (
	"errors"
	"os"
)

// flock returns errors.ErrUnsupported.
func flock(*os.File) error { return errors.ErrUnsupported }
