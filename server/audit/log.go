// SPDX-License-Identifier: MPL-2.0

package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/resource"
)

// Values of Config.WhenFull.
const (
	// Refuse refuses writes whose line cannot be written.
	Refuse = "refuse"
	// Drop drops and counts lines that cannot be written.
	Drop = "drop"
)

const (
	// maxLines and maxBytes bound the queue. maxBytes counts estimated sizes.
	maxLines = 8192
	maxBytes = 8 << 20
	// maxBatch bounds the lines of one write to the file.
	maxBatch = 1024
	// writeWait is the maximum time that an acknowledgement waits for its line.
	writeWait = 2 * time.Second
	// retryDelay is the time between two attempts to write the file.
	retryDelay = 200 * time.Millisecond
	// With Refuse, writes are refused when the disk has less than minFree bytes,
	// which have space for the lines of the queue. checkEvery is the time between
	// two checks of an idle server.
	minFree    = 2 * maxBytes
	checkEvery = time.Second
)

// Config configures a Log. All fields are required.
type Config struct {
	// File is the path of the audit log. It is created with mode 0600.
	File string
	// MaxSize is the size in bytes above which the file is rotated. 0: never.
	MaxSize int64
	// Keep is the number of rotated files that stay. Minimum: 1.
	Keep int
	// WhenFull is Refuse or Drop.
	WhenFull string
	// DC and Node name this server.
	DC, Node string
	Logger   *slog.Logger
}

// Log is an audit log. It implements policy.Recorder, and is safe for concurrent
// use.
type Log struct {
	cfg  Config
	file *file // only the goroutine of Run uses it after Open

	wake     chan struct{} // size 1: wakes Run
	reopened chan struct{} // size 1: Run opens the file again

	mu       sync.Mutex
	queue    []entry // not written yet, in order; Run removes entries after it has written them
	bytes    int     // estimated size of queue
	reserved int     // reservations without an entry
	missing  uint64  // dropped lines since the last line about them
	err      error   // why the file cannot be written, or nil
	closed   bool
	stats    Stats
}

// entry is a line in the queue.
type entry struct {
	line    Line
	size    int
	written chan struct{} // closed when the line is on the disk; nil: no call waits for it
}

// Stats are the counters of a Log, and its state.
type Stats struct {
	// Err is the reason why the file cannot be written, or nil.
	Err error
	// Written is the number of lines that were written. Dropped is the number of
	// lines that were dropped. Refused is the number of writes that were refused
	// because their line could not be kept.
	Written, Dropped, Refused uint64
}

var _ policy.Recorder = (*Log)(nil)

// Open opens the audit log. If its last line is incomplete because of a crash,
// Open ends that line.
func Open(cfg Config) (*Log, error) {
	l := &Log{cfg: cfg, file: &file{cfg: cfg}, wake: make(chan struct{}, 1), reopened: make(chan struct{}, 1)}
	if err := l.file.open(); err != nil {
		return nil, fmt.Errorf("audit_log: %w", err)
	}
	return l, nil
}

// Reopen opens the file again, after another program has renamed it. It does not
// block.
func (l *Log) Reopen() { notify(l.reopened) }

// Stats returns the counters. It does not block.
func (l *Log) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Err = l.err
	return s
}

// Reserve implements policy.Recorder.
func (l *Log) Reserve() error {
	if l.cfg.WhenFull == Drop {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.err
	if err == nil && (len(l.queue)+l.reserved >= maxLines || l.bytes >= maxBytes) {
		err = errors.New("its queue is full because the disk is slow")
	}
	if err != nil {
		l.stats.Refused++
		return fmt.Errorf("%w: audit log of %s: %w; writes are refused until it can be written: free space on its disk, "+
			"or call another server", resource.ErrReadOnly, l.cfg.Node, err)
	}
	l.reserved++
	return nil
}

// Record implements policy.Recorder.
func (l *Log) Record(ctx context.Context, c *policy.Call) error {
	e := entry{line: lineOf(c, l.cfg.DC, l.cfg.Node)}
	e.size = 512 + len(e.line.Method) + len(e.line.Reason)
	for _, r := range e.line.Resources {
		e.size += len(r.Type) + len(r.Name) + 64
	}
	reserved := l.cfg.WhenFull == Refuse && c.Reserved()
	if reserved && e.line.Outcome == OK {
		e.written = make(chan struct{})
	}
	if !l.add(e, reserved) || e.written == nil {
		return nil
	}
	timer := time.NewTimer(writeWait)
	defer timer.Stop()
	select {
	case <-e.written:
		return nil
	case <-ctx.Done():
	case <-timer.C:
	}
	return fmt.Errorf("%w: it was done, but its line in the audit log of %s is not on the disk yet", resource.ErrUnknownOutcome, l.cfg.Node)
}

// add appends e to the queue. Without a reservation, it may drop e.
func (l *Log) add(e entry, reserved bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := 1
	if l.cfg.WhenFull == Refuse {
		limit = 2 // the other half is for writes
	}
	switch {
	case reserved:
		l.reserved--
	case len(l.queue) >= maxLines/limit || l.bytes >= maxBytes/limit || l.closed:
		l.missing++
		l.stats.Dropped++
		return false
	}
	e.line.Time = time.Now().UTC()
	l.queue = append(l.queue, e)
	l.bytes += e.size
	notify(l.wake)
	return true
}

// Run writes the lines until ctx ends. Then it writes the lines in the queue and
// closes the file. Calls that end later have no line. Run may be called once.
func (l *Log) Run(ctx context.Context) error {
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	for ctx.Err() == nil {
		select {
		case <-l.wake:
		case <-check.C:
		case <-l.reopened:
			l.file.close()
		case <-ctx.Done():
			continue
		}
		for l.step() != nil && ctx.Err() == nil {
			if backoff.Sleep(ctx, retryDelay, l.reopened) {
				l.file.close()
			}
		}
	}
	err := l.step()
	l.mu.Lock()
	l.closed = true
	lost := len(l.queue)
	l.mu.Unlock()
	if lost > 0 {
		l.cfg.Logger.Error("cannot write the last lines of the audit log", "count", lost, "err", err)
	}
	l.file.close()
	return nil
}

// step writes all lines of the queue. After an error, the lines that were not
// written stay in the queue.
func (l *Log) step() error {
	var err error
	for more := true; more && err == nil; {
		batch := l.batch()
		if err = l.file.write(batch); err == nil {
			more = l.written(batch)
		}
	}
	if err == nil && l.cfg.WhenFull == Refuse {
		err = l.file.checkSpace()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil && l.err == nil:
		l.cfg.Logger.Error("cannot write the audit log", "err", err, "when_full", l.cfg.WhenFull)
	case err == nil && l.err != nil:
		l.cfg.Logger.Info("audit log is writable again")
	}
	l.err = err
	return err
}

// batch returns the first lines of the queue, after which a line about dropped
// lines follows if there are any.
func (l *Log) batch() []entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.missing > 0 {
		gap := Line{Time: time.Now().UTC(), Datacenter: l.cfg.DC, Node: l.cfg.Node, Outcome: Dropped, Count: l.missing}
		l.queue, l.missing = append(l.queue, entry{line: gap}), 0
	}
	return slices.Clone(l.queue[:min(len(l.queue), maxBatch)])
}

// written removes batch from the queue, and reports whether the queue has more
// lines.
func (l *Log) written(batch []entry) (more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = slices.Delete(l.queue, 0, len(batch))
	l.stats.Written += uint64(len(batch))
	for _, e := range batch {
		l.bytes -= e.size
		if e.written != nil {
			close(e.written)
		}
	}
	return len(l.queue) > 0
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// CheckWhenFull returns an error unless s is a value of Config.WhenFull.
func CheckWhenFull(s string) error {
	if s == Refuse || s == Drop {
		return nil
	}
	return fmt.Errorf("audit_log_when_full is %q: must be %s", s, strings.Join([]string{Refuse, Drop}, " or "))
}
