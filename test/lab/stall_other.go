// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package lab

import (
	"testing"
	"time"
)

// Stalls records nothing on this system.
type Stalls struct{}

// WatchStalls returns a Stalls that records nothing.
func WatchStalls(testing.TB) *Stalls { return &Stalls{} }

// Awake returns the time since from.
func (*Stalls) Awake(from time.Time) time.Duration { return time.Since(from) }
