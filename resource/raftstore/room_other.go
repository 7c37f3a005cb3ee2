// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package raftstore

import (
	"math"
	"os"
)

// reserve does nothing: blocks are taken as they are written.
func reserve(string, int64) error { return nil }

// dataEnd does not know.
func dataEnd(*os.File) int64 { return math.MaxInt64 }
