// SPDX-License-Identifier: MPL-2.0

package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hashicorp/go-metrics"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"

	"github.com/wanfed/wanfed/internal/diskspace"
	"github.com/wanfed/wanfed/internal/slogadapter"
	"github.com/wanfed/wanfed/resource"
)

// Config configures a Log. Every field is required.
type Config struct {
	// Dir is the directory of the log. Open creates it with mode 0700.
	Dir string
	// SegmentSize is the size of one segment file in bytes. A segment file is
	// allocated when it is created.
	SegmentSize int
	// Snapshots stores the snapshots of this log in SnapshotDir, each in a
	// directory with the name of its id. Raft must use the store that
	// Log.Snapshots returns.
	Snapshots   raft.SnapshotStore
	SnapshotDir string
	// Logger receives the messages of the Log, and at a lower level the
	// messages of raft-wal.
	Logger *slog.Logger
	// Fail is called with a disk error that is not ErrReadOnly, or with an
	// ErrDamaged. Fail may be called more than once, and must not block.
	Fail func(error)
}

// Log is the durable log of one Raft server.
type Log struct {
	*wal.WAL
	cfg Config

	// snapshot has the index and term of the last entry in a snapshot: the
	// newest one that the state machine has restored or written. installed has
	// the index and term of a leader's snapshot that is on disk but not
	// restored yet. nil means none.
	snapshot, installed atomic.Pointer[raft.Log]

	used *atomic.Int64 // upper bound of the bytes in the last segment (see checkSpace)

	mu     sync.Mutex // held while the log or the stable store is written
	stored storedIndex
	// notRecorded is true if stored could not be written. It prevents repeated
	// messages.
	notRecorded bool
	term        []byte // Raft's current term if it could not be written; nil otherwise
	vote        vote   // as in the stable store
	truncated   bool   // the end of the log was deleted, and nothing was stored since

	snapshotDamagedc chan struct{} // size 1; signaled when a snapshot cannot be read

	errMu        sync.Mutex
	writeErr     error
	cannotWritec chan struct{} // size 1; signaled when writeErr becomes non-nil
}

var (
	_ raft.MonotonicLogStore = (*Log)(nil)
	_ raft.StableStore       = (*Log)(nil)
)

// Open opens the log in cfg.Dir, or creates it. Open completes a rotation that
// an earlier process did not finish, and deletes a log that the newest snapshot
// covers. If entries are damaged or missing, Open returns an ErrDamaged.
// raft-wal and bbolt panic on some damaged files. The caller recovers.
func Open(cfg Config) (_ *Log, err error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	l := &Log{
		cfg: cfg, used: new(atomic.Int64), cannotWritec: make(chan struct{}, 1),
		snapshotDamagedc: make(chan struct{}, 1),
	}
	meta := &metadb.BoltMetaDB{}
	opened := false // stays false after a panic
	defer func() {
		switch {
		case opened:
		case l.WAL != nil:
			l.Close()
		default:
			meta.Close() // a failed wal.Open leaves the metadata open and locked
		}
	}()
	if err := finishRotation(cfg.Dir, meta, cfg.SegmentSize); err != nil {
		return nil, err
	}
	l.WAL, err = wal.Open(cfg.Dir,
		wal.WithMetaStore(meta),
		wal.WithSegmentSize(cfg.SegmentSize),
		wal.WithMetricsCollector(metricsSink{used: l.used}),
		wal.WithLogger(slogadapter.New(slog.New(slogadapter.Demote(cfg.Logger.Handler())), "wal")))
	if err != nil {
		return nil, err
	}
	last, err := l.LastIndex()
	if err != nil {
		return nil, err
	}
	if last > 0 {
		l.used.Store(int64(cfg.SegmentSize)) // unknown: assume a full segment
	}
	if err := l.openChecked(); err != nil {
		return nil, err
	}
	opened = true
	return l, nil
}

// openChecked opens the snapshots, and checks that no entry is missing or
// damaged.
func (l *Log) openChecked() (err error) {
	if l.stored, err = openStored(l.cfg.Dir); err != nil {
		return err
	}
	if err := l.openVote(); err != nil {
		return err
	}
	unreadable, err := l.openSnapshots()
	if err != nil {
		return err
	}
	if err := l.checkComplete(unreadable); err != nil {
		return err
	}
	if unreadable != nil {
		l.cfg.Logger.Warn("damaged snapshot not used; an earlier one and the log have all entries", "err", unreadable)
	}
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	l.recordStored(max(last, l.SnapshotIndex()))
	return nil
}

// Close closes the log. It is idempotent.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.stored.close(), l.WAL.Close())
}

// recordStored records the index of the last stored entry. Without the record,
// the entry is intact but a later loss of the entry is not detected. The caller
// holds l.mu, except in Open.
func (l *Log) recordStored(index uint64) {
	if err := l.stored.set(index); err != nil && !l.notRecorded {
		l.notRecorded = true
		l.cfg.Logger.Warn("cannot record the index of the last log entry", "err", err)
	}
}

// StoreLog implements raft.LogStore.
func (l *Log) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore. It blocks for a disk write. If StoreLogs
// returns an error, none of the entries is in the log. If the process ends
// during the call, the entries may be in the log.
func (l *Log) StoreLogs(logs []*raft.Log) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	size := 0 // upper bound of the bytes on disk
	for _, log := range logs {
		size += len(log.Data) + len(log.Extensions) + entryOverhead
	}
	newSegment := last == 0 && logs[0].Index > 1 // raft-wal then replaces its empty segment
	err = l.checkSpace(size, newSegment)
	if err == nil {
		err = l.writeTermLocked()
	}
	if err == nil {
		err = l.WAL.StoreLogs(withChecksums(logs))
	}
	if err != nil {
		return l.writeFailed(err, l.truncated)
	}
	l.recordStored(logs[len(logs)-1].Index)
	l.used.Add(int64(size))
	l.truncated = false
	l.setWriteError(nil)
	// Calls that wait for a processor run before Raft takes the next entries,
	// so the next write has more entries. On an idle server, Gosched returns at
	// once. See decision record 0020 for the figures.
	runtime.Gosched()
	return nil
}

// DeleteRange implements raft.LogStore. It deletes entries at the beginning or
// at the end of the log.
//
// After Raft deletes the end of the log, it stores other entries there. A
// failure to store those entries is fatal, because Raft would never request the
// deleted entries again.
func (l *Log) DeleteRange(first, last uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	oldest, err := l.FirstIndex()
	if err != nil {
		return err
	}
	newest, err := l.LastIndex()
	if err != nil {
		return err
	}
	atEnd := newest > 0 && last >= newest && first <= newest
	if atEnd { // a new segment begins
		err := l.checkSpace(0, true)
		if err == nil {
			err = l.stored.lower(max(first-1, l.SnapshotIndex()))
		}
		if err != nil {
			return l.writeFailed(err, l.truncated || first <= oldest)
		}
	}
	if err := l.WAL.DeleteRange(first, last); err != nil {
		return l.writeFailed(err, true) // the number of deleted entries is not known
	}
	l.truncated = l.truncated || atEnd
	return nil
}

// Set implements raft.StableStore. A term that cannot be written is kept in
// memory, because Raft would panic on an error. The term is written before the
// next vote or entry. A server whose process ends earlier has neither voted nor
// stored an entry in that term, so the server may lose the term.
func (l *Log) Set(key, value []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if string(key) == termKey {
		l.term = value
		if err := l.writeTermLocked(); err != nil {
			_ = l.writeFailed(err, false) // the write of the next vote or entry returns the error
		}
		return nil
	}
	var err error
	if l.WriteError() != nil { // do not vote for this server while it cannot write
		err = l.checkSpace(0, true)
	}
	if err == nil {
		err = l.writeTermLocked()
	}
	if err == nil {
		err = l.setStable(string(key), value)
	}
	if err != nil {
		return l.writeFailed(err, false)
	}
	return nil
}

// SetUint64 implements raft.StableStore, in the encoding of raft-wal's
// GetUint64.
func (l *Log) SetUint64(key []byte, value uint64) error {
	return l.Set(key, binary.LittleEndian.AppendUint64(nil, value))
}

func (l *Log) writeTermLocked() error {
	if l.term == nil {
		return nil
	}
	err := l.setStable(termKey, l.term)
	if err == nil {
		l.term = nil
	}
	return err
}

// WriteError returns the reason why the log cannot be written, as an
// ErrReadOnly. It returns nil if no write has failed since entries were last
// stored.
func (l *Log) WriteError() error {
	l.errMu.Lock()
	defer l.errMu.Unlock()
	return l.writeErr
}

// CannotWrite returns a channel that receives a value when WriteError becomes
// non-nil.
func (l *Log) CannotWrite() <-chan struct{} { return l.cannotWritec }

// SnapshotDamaged returns a channel that receives a value when a snapshot that
// Raft must send cannot be read. The caller writes another snapshot.
func (l *Log) SnapshotDamaged() <-chan struct{} { return l.snapshotDamagedc }

// setWriteError sets the result of WriteError. It logs a change between nil and
// an error.
func (l *Log) setWriteError(err error) {
	l.errMu.Lock()
	previous := l.writeErr
	l.writeErr = err
	l.errMu.Unlock()
	switch {
	case previous == nil && err != nil:
		select {
		case l.cannotWritec <- struct{}{}:
		default:
		}
		l.cfg.Logger.Error("cannot write raft log; this server rejects writes", "err", err)
	case previous != nil && err == nil:
		l.cfg.Logger.Info("raft log writable again")
	}
}

// writeFailed returns the error of a write that failed with err. A temporary
// error becomes an ErrReadOnly. Any other error is passed to Config.Fail. If
// fatal is true, a temporary error is passed to Config.Fail too.
func (l *Log) writeFailed(err error, fatal bool) error {
	if errors.Is(err, wal.ErrClosed) {
		return err
	}
	if fatal || !IsTemporary(err) {
		l.cfg.Fail(fmt.Errorf("write the log in %s: %w; nothing that was acknowledged is lost: "+
			"check the disk and start the server again", l.cfg.Dir, err))
		return err
	}
	err = fmt.Errorf("%w in %s: %w; nothing that was acknowledged is lost: free disk space or make the disk writable, "+
		"and writes continue without a restart", resource.ErrReadOnly, l.cfg.Dir, err)
	l.setWriteError(err)
	return err
}

// IsTemporary reports whether a disk error ends when an operator frees space or
// makes the file system writable. After a temporary error all acknowledged data
// are on the disk. After any other error, for example a hardware fault, the
// content of the disk is unknown.
func IsTemporary(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS)
}

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
	limit := l.cfg.SegmentSize / 4 * 3 // the index of a segment takes a tenth at most, and the rest is reserve
	if !newSegment && l.used.Load()+int64(size) <= int64(limit) {
		return nil
	}
	free, err := diskspace.Free(l.cfg.Dir)
	if err != nil {
		return err
	}
	if need := uint64(l.cfg.SegmentSize + size + metadataSpace); free < need {
		return fmt.Errorf("the next file of the log needs %d bytes, and %d are free: %w", need, free, syscall.ENOSPC)
	}
	return nil
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
