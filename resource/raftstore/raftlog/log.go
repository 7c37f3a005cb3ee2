// SPDX-License-Identifier: MPL-2.0

package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"

	"github.com/wanfed/wanfed/internal/slogadapter"
	"github.com/wanfed/wanfed/resource"
)

// Config configures a Log. Every field is required.
type Config struct {
	// Dir is the directory of the log. Open creates it with mode 0700.
	Dir string
	// SegmentSize is the size in bytes of one file of the log. The file is
	// allocated when it is created.
	SegmentSize int
	// Snapshots is the store of the snapshots that belong to this log. Raft
	// must use the store that Log.Snapshots returns.
	Snapshots raft.SnapshotStore
	// Logger receives the messages of the Log, and at a lower level the messages
	// of raft-wal.
	Logger *slog.Logger
	// Fail is called with a disk error that is not ErrReadOnly. It may be
	// called more than once, and must not block.
	Fail func(error)
}

// Log is the durable log of one Raft server.
type Log struct {
	*wal.WAL
	cfg Config

	// snapshot has the index and term of the newest snapshot that is part of
	// the state machine. installed is a snapshot from the leader that is on
	// disk and not restored yet. Both are nil if there is none.
	snapshot, installed atomic.Pointer[raft.Log]

	used *atomic.Int64 // bytes written to the last segment, at most (see checkSpace)

	mu        sync.Mutex // held while the log or the stable store is written
	term      []byte     // Raft's current term while it could not be written
	truncated bool       // the end of the log was deleted, and nothing was stored since

	errMu    sync.Mutex
	writeErr error
	cannotc  chan struct{} // size 1: receives when writeErr becomes non-nil
}

var (
	_ raft.MonotonicLogStore = (*Log)(nil)
	_ raft.StableStore       = (*Log)(nil)
)

// termKey is the key under which Raft keeps its current term.
const termKey = "CurrentTerm"

// Open opens the log in cfg.Dir, or creates it. It completes a rotation that
// the last process did not finish, and deletes a log that the newest snapshot
// covers. The libraries panic on some damaged files; the caller recovers.
func Open(cfg Config) (_ *Log, err error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	l := &Log{cfg: cfg, used: new(atomic.Int64), cannotc: make(chan struct{}, 1)}
	meta := &metadb.BoltMetaDB{}
	opened := false
	defer func() {
		switch {
		case opened:
		case l.WAL != nil:
			l.WAL.Close()
		default:
			meta.Close() // wal.Open leaves it open, and locked, when it fails
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
		l.used.Store(int64(cfg.SegmentSize)) // not known: assume a full segment
	}
	if err := l.openSnapshots(); err != nil {
		return nil, err
	}
	opened = true
	return l, nil
}

// StoreLog implements raft.LogStore.
func (l *Log) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore. It blocks for a disk write. After an
// error none of the entries count, unless the process ends during the call.
func (l *Log) StoreLogs(logs []*raft.Log) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	size := entriesSize(logs)
	newSegment := last == 0 && logs[0].Index > 1 // raft-wal replaces its empty segment
	err = l.checkSpace(size, newSegment)
	if err == nil {
		err = l.writeTermLocked()
	}
	if err == nil {
		err = l.WAL.StoreLogs(logs)
	}
	if err != nil {
		return l.writeFailed(err, l.truncated)
	}
	l.used.Add(int64(size))
	l.truncated = false
	l.setWriteError(nil)
	return nil
}

// DeleteRange implements raft.LogStore. It deletes entries at the beginning or
// at the end of the log.
//
// Raft stores other entries after it deletes the end. If these cannot be
// stored, the failure is fatal: Raft believes that the deleted entries are
// still there, and never requests them again.
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
		if err := l.checkSpace(0, true); err != nil {
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
// memory: Raft would panic otherwise. The term is written before the next vote
// or entry. A server that loses the term has neither voted nor stored an entry
// in it. The loss is equivalent to never having received the term.
func (l *Log) Set(key, value []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if string(key) == termKey {
		l.term = value
		if err := l.writeTermLocked(); err != nil {
			_ = l.writeFailed(err, false) // the next vote or entry returns it
		}
		return nil
	}
	var err error
	if l.WriteError() != nil { // a vote would elect a leader that cannot write
		err = l.checkSpace(0, true)
	}
	if err == nil {
		err = l.writeTermLocked()
	}
	if err == nil {
		err = l.WAL.Set(key, value)
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
	err := l.WAL.Set([]byte(termKey), l.term)
	if err == nil {
		l.term = nil
	}
	return err
}

// WriteError returns the reason why the log cannot be written now, as an
// ErrReadOnly. It returns nil while the log can be written, and until a write
// has failed.
func (l *Log) WriteError() error {
	l.errMu.Lock()
	defer l.errMu.Unlock()
	return l.writeErr
}

// CannotWrite returns a channel that receives when WriteError becomes non-nil.
func (l *Log) CannotWrite() <-chan struct{} { return l.cannotc }

// setWriteError sets the result of WriteError, and logs the begin and the end
// of the condition.
func (l *Log) setWriteError(err error) {
	l.errMu.Lock()
	was := l.writeErr
	l.writeErr = err
	l.errMu.Unlock()
	switch {
	case was == nil && err != nil:
		select {
		case l.cannotc <- struct{}{}:
		default:
		}
		l.cfg.Logger.Error("the log cannot be written; this server takes no writes until it can", "err", err)
	case was != nil && err == nil:
		l.cfg.Logger.Info("the log can be written again")
	}
}

// writeFailed returns the error of a write that failed with err. A temporary
// error becomes an ErrReadOnly. Any other error, and every error if fatal is
// true, is passed to Config.Fail.
func (l *Log) writeFailed(err error, fatal bool) error {
	if errors.Is(err, wal.ErrClosed) {
		return err
	}
	if fatal || !IsTemporary(err) {
		l.cfg.Fail(fmt.Errorf("write the log in %s: %w; nothing that was acknowledged is lost: "+
			"check the disk and start the server again", l.cfg.Dir, err))
		return err
	}
	err = &readOnlyError{dir: l.cfg.Dir, err: err}
	l.setWriteError(err)
	return err
}

// IsTemporary reports whether a disk error ends when an operator frees space or
// makes the file system writable. After such an error, all acknowledged data
// are still on the disk. After any other error, for example of broken hardware,
// the content of the disk is unknown.
func IsTemporary(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS)
}

// readOnlyError is an ErrReadOnly with its reason.
type readOnlyError struct {
	dir string
	err error
}

func (e *readOnlyError) Error() string {
	return fmt.Sprintf("%v in %s: %v; nothing that was acknowledged is lost: free disk space or make the disk "+
		"writable, and writes continue without a restart", resource.ErrReadOnly, e.dir, e.err)
}

func (e *readOnlyError) Unwrap() []error { return []error{resource.ErrReadOnly, e.err} }
