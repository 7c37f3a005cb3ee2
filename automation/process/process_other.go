// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

var errPlatform = fmt.Errorf("programs of tasks run only on Linux: %w", errors.ErrUnsupported)

// Run returns an error: programs run only on Linux.
func (Program) Run(context.Context) (int, error) { return -1, errPlatform }

// Wait returns an error: programs run only on Linux.
func (*Record) Wait(context.Context) error { return errPlatform }

// MemoryFile returns an error: programs run only on Linux.
func MemoryFile(string) (*os.File, error) { return nil, errPlatform }

// Guard ends the programs of runs whose time is over.
type Guard struct{}

// Permit returns an error: programs run only on Linux.
func (*Guard) Permit(string, time.Time) error { return errPlatform }

// Close does nothing.
func (*Guard) Close() {}
