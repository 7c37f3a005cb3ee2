// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package raftstore

import (
	"math"
	"os"

	"github.com/hashicorp/raft-wal/types"
)

// reserve does nothing: blocks are taken as they are written.
func reserve(string, int64) error { return nil }

// dataEnd does not know.
func dataEnd(*os.File) int64 { return math.MaxInt64 }

// syncData makes a file durable.
func syncData(f types.WritableFile) error { return f.Sync() }
