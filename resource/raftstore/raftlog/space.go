// SPDX-License-Identifier: MPL-2.0

package raftlog

import (
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/hashicorp/go-metrics"
	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"
)

const (
	// metadataSpace is an upper bound, in bytes, of the metadata of a log with
	// thousands of segments.
	metadataSpace = 1 << 20
	// entryOverhead is an upper bound of the bytes that the log adds to the
	// data of one entry.
	entryOverhead = 128
)

// checkSpace returns an ENOSPC error if the disk may have no space for a write
// of size bytes of entries. The space of the last segment is already allocated.
// A write needs more space only if it may fill that segment, because the next
// segment must then be created. raft-wal cannot undo a write that fills a
// segment. If raft-wal cannot create the next segment, it refuses all writes.
// newSegment means that the write always begins a new segment.
//
// After Open, the used size of the last segment is unknown. Until the first
// rotation, every write therefore needs space for the next segment.
func (l *Log) checkSpace(size int, newSegment bool) error {
	limit := l.cfg.SegmentSize / 4 * 3 // the index takes at most a tenth of a segment
	if !newSegment && l.used.Load()+int64(size) <= int64(limit) {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(l.cfg.Dir, &st); err != nil {
		return err
	}
	free, need := uint64(st.Bavail)*uint64(st.Bsize), uint64(l.cfg.SegmentSize+size+metadataSpace)
	if free < need {
		return fmt.Errorf("the next file of the log needs %d bytes, and %d are free: %w", need, free, syscall.ENOSPC)
	}
	return nil
}

// entriesSize returns an upper bound of the bytes that logs occupy on disk.
func entriesSize(logs []*raft.Log) int {
	n := 0
	for _, l := range logs {
		n += len(l.Data) + len(l.Extensions) + entryOverhead
	}
	return n
}

// metricsSink passes the metrics of raft-wal to the metrics sink of the Raft
// library. It resets used when raft-wal begins a new segment.
type metricsSink struct{ used *atomic.Int64 }

func (m metricsSink) IncrementCounter(name string, delta uint64) {
	if name == "segment_rotations" {
		m.used.Store(0)
	}
	metrics.IncrCounter([]string{"raft", "wal", name}, float32(delta))
}

func (metricsSink) SetGauge(name string, value uint64) {
	metrics.SetGauge([]string{"raft", "wal", name}, float32(value))
}
