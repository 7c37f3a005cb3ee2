// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hashicorp/raft"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/types"
)

// room is the file system of the log. It sees to it that a full disk is met before an entry is written, and never in the midst of
// what raft-wal cannot take back: a segment that is full, and no room for the next, is a log to which nothing can be added until
// the process ends. So the file of the next segment is made while the last one still has a quarter left, and is only renamed
// when raft-wal asks for it; and the log's metadata have their blocks ahead.
//
// ensure is called by who writes the log, Create and OpenWriter by raft-wal, from another goroutine for one of them.
type room struct {
	*walfs.FS
	dir  string
	size int // of a segment

	mu    sync.Mutex
	spare bool     // there is a file for the next segment
	last  *segFile // the segment that is written
}

const (
	spareFile = "spare" // in the log's directory
	metaFile  = "wal-meta.db"
	// metaRoom is what the metadata of a log with thousands of segments take, in bytes.
	metaRoom = 1 << 20
	// entryRoom bounds what the log adds to the data of an entry, in bytes.
	entryRoom = 128
)

// newRoom looks for a spare segment that an earlier process left.
func newRoom(dir string, size int) *room {
	r := &room{FS: walfs.New(), dir: dir, size: size}
	st, err := os.Stat(filepath.Join(dir, spareFile))
	r.spare = err == nil && st.Size() == int64(size)
	return r
}

// ensure returns an error if the disk may have no room for that many bytes of entries, and for what comes with them. anew says that the
// write begins a new segment.
func (r *room) ensure(bytes int, anew bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	// The index that ends a segment has a tenth of its size at most.
	if !anew && r.last != nil && r.last.end.Load() <= int64(r.size)/4*3 && bytes <= r.size/8 || r.spare {
		return nil
	}
	return r.makeSpareLocked()
}

func (r *room) makeSpareLocked() error {
	if err := reserve(filepath.Join(r.dir, metaFile), metaRoom); err != nil {
		return fmt.Errorf("reserve %d bytes for %s: %w", metaRoom, metaFile, err)
	}
	const part = spareFile + ".tmp"
	path := filepath.Join(r.dir, part)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := r.FS.Create(r.dir, part, uint64(r.size))
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		err = os.Rename(path, filepath.Join(r.dir, spareFile))
	}
	if err != nil {
		os.Remove(path) // give back what there was
		return fmt.Errorf("make the next file of the log, of %d bytes: %w", r.size, err)
	}
	r.spare = true
	return nil
}

// full says whether the last segment is full, so that raft-wal is about to ask for the next.
func (r *room) full() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last != nil && r.last.end.Load() > int64(r.size)
}

// Create is raft-wal's: the spare file, if it fits.
func (r *room) Create(dir, name string, size uint64) (types.WritableFile, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	path := filepath.Join(dir, name)
	if r.spare && size == uint64(r.size) {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("make %s: %w", path, os.ErrExist)
		}
		if err := os.Rename(filepath.Join(dir, spareFile), path); err != nil {
			return nil, err
		}
		r.spare = false
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		r.last = &segFile{WritableFile: f, dir: dir}
		return r.last, nil
	}
	f, err := r.FS.Create(dir, name, size)
	if err != nil {
		if !errors.Is(err, os.ErrExist) {
			os.Remove(path) // else the next try finds it
		}
		return nil, err
	}
	r.last = &segFile{WritableFile: f, dir: dir}
	return r.last, nil
}

// OpenWriter is raft-wal's, for the last segment of a log that it opens.
func (r *room) OpenWriter(dir, name string) (types.WritableFile, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = &segFile{WritableFile: f, dir: dir}
	r.last.end.Store(dataEnd(f))
	return r.last, nil
}

// segFile is a segment that is written, in order.
type segFile struct {
	types.WritableFile
	dir    string
	end    atomic.Int64 // of what was written; more of what is not known
	synced bool         // the directory too, since the file has its name
}

func (f *segFile) WriteAt(b []byte, off int64) (int, error) {
	n, err := f.WritableFile.WriteAt(b, off)
	f.end.Store(off + int64(n))
	return n, err
}

// Sync makes the file's name durable too, the first time. When the file was last changed need not be.
func (f *segFile) Sync() error {
	if err := syncData(f.WritableFile); err != nil || f.synced {
		return err
	}
	err := syncDir(f.dir)
	f.synced = err == nil
	return err
}

// curable says whether an error of the disk passes when somebody makes room, or makes it writable, and all that was acknowledged is
// there: the next write may work. After others, of broken hardware for one, nobody knows what is on the disk.
func curable(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS)
}

// sizeOf bounds what entries take in the log, in bytes.
func sizeOf(logs []*raft.Log) int {
	n := 0
	for _, l := range logs {
		n += len(l.Data) + len(l.Extensions) + entryRoom
	}
	return n
}
