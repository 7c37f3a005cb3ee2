// SPDX-License-Identifier: MPL-2.0

//go:build !unix

package hotrestart

import (
	"errors"
	"os"
)

// Notify does nothing: this system has no SIGUSR2.
func Notify(chan<- os.Signal) {}

// fileOf returns nil: no process of this system inherits descriptors.
func fileOf(int, string) *os.File { return nil }

// duplicate returns errors.ErrUnsupported.
func duplicate(uintptr) (int, error) { return 0, errors.ErrUnsupported }
