// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"

	"github.com/wanfed/wanfed/resource"
)

// disk is the log as far as it is written. While that is not possible for a reason that passes (see curable), the store adds
// nothing, does not vote and so does not lead, and goes on reading. Every write is a try, so that nobody has to say when there is
// room again: a leader sends its followers what they lack again and again, and a server without a leader votes for itself again
// and again. For any other reason the store fails.
type disk struct {
	wal  *wal.WAL
	room *room
	log  *slog.Logger
	fail func(error) // the store can go no further

	mu    sync.Mutex // held while something is written
	term  []byte     // Raft's, if it could not be written
	begun bool       // the end of the log was cut off, for entries that have not come yet

	whyMu sync.Mutex
	why   error         // Trouble
	told  chan struct{} // size 1: trouble has begun
}

// keyTerm is the key of Raft's term.
const keyTerm = "CurrentTerm"

// trouble returns why nothing can be written now; nil if it can.
func (d *disk) trouble() error {
	d.whyMu.Lock()
	defer d.whyMu.Unlock()
	return d.why
}

// tell keeps why for trouble, and says so in the log when it begins and ends.
func (d *disk) tell(why error) {
	d.whyMu.Lock()
	was := d.why
	d.why = why
	d.whyMu.Unlock()
	switch {
	case was == nil && why != nil:
		select {
		case d.told <- struct{}{}:
		default:
		}
		d.log.Error("the log cannot be written; this server takes no writes until it can", "err", why)
	case was != nil && why == nil:
		d.log.Info("the log can be written again")
	}
}

// append stores entries. After an error, Raft counts them as not stored; so does the next process, unless it ends in the midst of it.
func (d *disk) append(logs []*raft.Log) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	last, err := d.wal.LastIndex()
	if err != nil {
		return err
	}
	if d.room.full() { // raft-wal is taking the spare file: wait for that, with a call that does nothing else
		if err := d.wal.DeleteRange(last+1, last+1); err != nil {
			return d.judge(err, d.begun)
		}
	}
	if err := d.room.ensure(sizeOf(logs), last == 0 && logs[0].Index > 1); err != nil {
		return d.judge(err, d.begun)
	}
	if err := d.writeTermLocked(); err != nil {
		return d.judge(err, d.begun)
	}
	if err := d.wal.StoreLogs(logs); err != nil {
		return d.judge(err, d.begun)
	}
	d.begun = false
	d.tell(nil)
	return nil
}

// cut deletes entries from the beginning of the log, or from its end. If the end of the log goes and what comes in its place cannot
// be stored, the store fails: Raft thinks that the log still has what was cut off, and would never ask for it. It does not look
// either whether a log that a snapshot covers could be emptied.
func (d *disk) cut(first, last uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	oldest, err := d.wal.FirstIndex()
	if err != nil {
		return err
	}
	newest, err := d.wal.LastIndex()
	if err != nil {
		return err
	}
	end := newest > 0 && last >= newest && first <= newest
	if end { // a new segment begins
		if err := d.room.ensure(0, true); err != nil {
			return d.judge(err, d.begun || first <= oldest)
		}
	}
	if err := d.wal.DeleteRange(first, last); err != nil {
		return d.judge(err, true) // what was done of it is not known
	}
	d.begun = d.begun || end
	return nil
}

// judge fails the store, or makes err an ErrReadOnly. fatal says that the store must not go on whatever the reason is.
func (d *disk) judge(err error, fatal bool) error {
	if errors.Is(err, wal.ErrClosed) {
		return err
	}
	if fatal || !curable(err) {
		d.fail(err)
		return err
	}
	why := &unwritable{dir: d.room.dir, err: err}
	d.tell(why)
	return why
}

// unwritable is an ErrReadOnly with its reason.
type unwritable struct {
	dir string
	err error
}

func (e *unwritable) Error() string {
	return fmt.Sprintf("%v in %s: %v; nothing that was acknowledged is lost: see to the disk, and it goes on by itself", resource.ErrReadOnly, e.dir, e.err)
}

func (e *unwritable) Unwrap() []error { return []error{resource.ErrReadOnly, e.err} }

// ballot is where Raft keeps its term and its vote. A term that cannot be written counts all the same, and is written with the
// next vote or entry: to forget a term in which this server has neither voted nor stored anything is as if it had never heard
// of it. (Raft would end the process.) A vote that cannot be written is not given.
type ballot struct {
	raft.StableStore
	d *disk
}

func (b ballot) Set(key, value []byte) error {
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	if string(key) == keyTerm {
		b.d.term = value
		if err := b.d.writeTermLocked(); err != nil {
			_ = b.d.judge(err, false) // told to whoever votes or writes next
		}
		return nil
	}
	if b.d.trouble() != nil {
		if err := b.d.room.ensure(0, true); err != nil {
			return b.d.judge(err, false)
		}
	}
	err := b.d.writeTermLocked()
	if err == nil {
		err = b.d.wal.Set(key, value)
	}
	if err != nil {
		return b.d.judge(err, false)
	}
	return nil
}

// SetUint64 writes a number as raft-wal reads it.
func (b ballot) SetUint64(key []byte, value uint64) error {
	return b.Set(key, binary.LittleEndian.AppendUint64(nil, value))
}

func (d *disk) writeTermLocked() error {
	if d.term == nil {
		return nil
	}
	err := d.wal.Set([]byte(keyTerm), d.term)
	if err == nil {
		d.term = nil
	}
	return err
}

// failLog fails the store whose log cannot be written, for a reason that does not pass.
func (s *Store) failLog(err error) {
	s.fail(fmt.Errorf("write the log in %s: %w; nothing that was acknowledged is lost: see to the disk and start the server again", s.disk.room.dir, err))
}

// Trouble returns why this server can add nothing to its log now, though it may when somebody has seen to its disk: an
// ErrReadOnly. It is nil while it can, or does not know better.
func (s *Store) WriteError() error { return s.disk.trouble() }
