// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package lab

import (
	"testing"
	"time"
)

// Stalls notes nothing here.
type Stalls struct{}

// WatchStalls begins to note nothing.
func WatchStalls(testing.TB) *Stalls { return &Stalls{} }

// Awake is how long it is since from.
func (*Stalls) Awake(from time.Time) time.Duration { return time.Since(from) }
