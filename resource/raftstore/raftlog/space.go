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
	// metadataSpace is more than the metadata of a log with thousands of
	// segments takes, in bytes.
	metadataSpace = 1 << 20
	// entryOverhead is more than the log adds to the data of one entry, in
	// bytes.
	entryOverhead = 128
)

// checkSpace returns an ENOSPC error if the disk may have no space for size
// more bytes of entries. The space of the last segment is allocated already.
// New space is needed only if the write may fill that segment, so that the next
// segment must be created. raft-wal cannot undo a write that fills a segment,
// and refuses all writes if it cannot create the next segment. With newSegment,
// the write begins a new segment in any case.
//
// When a log is opened, the used size of its last segment is unknown. Until the
// first rotation, every write therefore needs space for the next segment.
func (l *Log) checkSpace(size int, newSegment bool) error {
	limit := l.cfg.SegmentSize / 4 * 3 // the index of a segment takes a tenth of it at most
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

// entriesSize returns the maximum size of the entries in the log, in bytes.
func entriesSize(logs []*raft.Log) int {
	n := 0
	for _, l := range logs {
		n += len(l.Data) + len(l.Extensions) + entryOverhead
	}
	return n
}

// metricsSink passes raft-wal's metrics to the sink of the Raft library, and
// notices when raft-wal begins a new segment.
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
