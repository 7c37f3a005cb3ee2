// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package main

import "os"

func preallocate(f *os.File, n int64) error { return f.Truncate(n) }

func syncData(f *os.File) error { return f.Sync() }
