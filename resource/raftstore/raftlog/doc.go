// SPDX-License-Identifier: MPL-2.0

// Package raftlog stores the Raft log of one server on disk. A Log is a
// raft.LogStore and a raft.StableStore on github.com/hashicorp/raft-wal, a
// write-ahead log in segment files. Raft keeps its term and its vote in the
// stable store.
//
// # Additions to raft-wal
//
// raft-wal 0.4.1 lacks the following features:
//
//   - Rotation repair. raft-wal seals a full segment and then records the seal
//     in its metadata. If the process ends between these steps, raft-wal
//     refuses every later append. Open completes the rotation (see
//     finishRotation).
//   - Snapshots. raft-wal accepts no entry after a gap, so Raft empties the log
//     when it installs a snapshot. GetLog then returns the last entry of that
//     snapshot. Open deletes a log that a snapshot on disk covers.
//   - A full or read-only disk. The Log refuses a write before anything is
//     written if the disk may have no space for the next segment. The write
//     fails with resource.ErrReadOnly, and WriteError returns the reason. Each
//     later write is a new attempt. Every other disk error is fatal: the Log
//     calls Config.Fail.
//
// # Example
//
//	snapshots, err := raft.NewFileSnapshotStore(dir, 2, os.Stderr)
//	...
//	log, err := raftlog.Open(raftlog.Config{
//		Dir: filepath.Join(dir, "wal"), SegmentSize: 64 << 20,
//		Snapshots: snapshots, Logger: logger, Fail: stop,
//	})
//	...
//	defer log.Close()
//	r, err := raft.NewRaft(conf, fsm, log, log, log.Snapshots(), transport)
//
// The state machine calls Restored after it restores a snapshot.
//
// # Guarantees
//
// An entry that StoreLogs acknowledged is on disk (fsync). GetLog returns the
// entry until DeleteRange removes it. After an error other than ErrReadOnly the
// Log must not be used. A vote that cannot be written is refused. A term that
// cannot be written is kept in memory and written with the next vote or entry.
//
// All methods may be called from any goroutine. raft-wal has one goroutine,
// which rotates segments. Close ends that goroutine.
package raftlog
