// SPDX-License-Identifier: MPL-2.0

package raftstore

func runWriter() bool { return false }
