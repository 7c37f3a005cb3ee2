// SPDX-License-Identifier: MPL-2.0

//go:build !unix

package server

import "errors"

func fchmod(uintptr, uint32) error { return errors.ErrUnsupported }
