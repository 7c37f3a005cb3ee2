// SPDX-License-Identifier: MPL-2.0

// Package raftlog stores the Raft log of one server on disk. A Log is a
// raft.LogStore and a raft.StableStore on github.com/hashicorp/raft-wal, a
// write-ahead log in segment files. Raft keeps its term and its vote in the
// stable store.
//
// # Additions to raft-wal
//
//   - Rotation repair. raft-wal 0.4.1 refuses every append if the process ended
//     during the rotation of a segment. Open completes the rotation (see
//     finishRotation).
//   - Checksums. Each entry has a CRC-32C that every read verifies. raft-wal
//     itself verifies only the last write, and ends the log at the first frame
//     that it cannot read. Therefore the Log records the index of the last
//     stored entry, and Open returns ErrDamaged if the log ends before it.
//   - A copy of the term and the vote, with a checksum. Open restores them from
//     the copy if they are damaged.
//   - Snapshots. raft-wal accepts no entry after a gap. When Raft installs a
//     snapshot, it therefore deletes all entries of the log. To append the next
//     entry, Raft compares the term of the entry before it, so GetLog returns
//     the last entry of the snapshot.
//   - A full or read-only disk. A write that may find no space for the next
//     segment fails with resource.ErrReadOnly before anything is written. Each
//     later write is a new attempt. Every other disk error is fatal: the Log
//     calls Config.Fail.
//
// # Example
//
//	snapshots, err := raft.NewFileSnapshotStore(dir, 2, os.Stderr)
//	...
//	log, err := raftlog.Open(raftlog.Config{
//		Dir: filepath.Join(dir, "wal"), SegmentSize: 64 << 20,
//		Snapshots: snapshots, SnapshotDir: filepath.Join(dir, "snapshots"),
//		Logger: logger, Fail: stop,
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
// entry until DeleteRange removes it, and never a damaged entry. After an error
// other than ErrReadOnly the Log must not be used. A vote that cannot be
// written is refused. A term that cannot be written is kept in memory and
// written with the next vote or entry.
//
// All methods may be called from any goroutine. raft-wal has one goroutine,
// which rotates segments. Close ends that goroutine.
package raftlog
