// SPDX-License-Identifier: MPL-2.0

// Package raftlog is the durable log of one Raft server: a raft.LogStore and
// raft.StableStore on github.com/hashicorp/raft-wal. It adds the following
// features, which raft-wal 0.4.1 does not have and which kill, disk and restart
// tests need.
//
// # What it adds
//
//   - Rotation repair. A process can end between sealing a segment and
//     recording the seal. raft-wal then refuses every append. Open completes
//     the rotation (see finishRotation).
//   - Snapshots. raft-wal takes no entry after a gap, so Raft empties the log when
//     it installs a snapshot. The Log then answers for the last entry of that
//     snapshot, and drops a log that a snapshot on disk already covers.
//   - A full or read-only disk. An append that might find no space for the next
//     segment is refused before anything is written. Such a write fails with
//     resource.ErrReadOnly, WriteError returns the reason, and each later write is
//     a new attempt. Every other disk error is fatal: the Log calls Config.Fail.
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
// The state machine calls Restored after each snapshot that it restores.
//
// # Guarantees
//
// An entry that StoreLogs acknowledged is on disk (fsync) and is returned by
// GetLog until DeleteRange removes it. After an error other than ErrReadOnly
// the Log must not be used. A vote that cannot be written is refused. A term
// that cannot be written is kept in memory and written with the next vote or
// entry.
//
// # Goroutines
//
// raft-wal runs one goroutine, which rotates segments. Close ends it. All
// methods may be called from any goroutine.
package raftlog
