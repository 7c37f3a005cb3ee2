// SPDX-License-Identifier: MPL-2.0

package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// finishRotation completes a segment rotation that an earlier process began.
//
// The write that fills a segment also seals the segment: raft-wal appends an
// index of the entries. A goroutine of raft-wal then records the seal and the
// next segment in the metadata. If the process ends between these two steps,
// raft-wal 0.4.1 opens the sealed segment for appending and refuses every
// append. The server could then store neither votes nor entries. Therefore
// finishRotation records the seal and the next segment, as raft-wal does,
// before raft-wal opens the log.
//
// A crash can also tear the write that contains the index. That write was never
// acknowledged. finishRotation then moves the entries before the torn write to
// a new segment without an index.
func finishRotation(dir string, meta *metadb.BoltMetaDB, segmentSize int) error {
	state, err := meta.Load(dir)
	if err != nil {
		return err
	}
	last := len(state.Segments) - 1
	if last < 0 {
		return checkNoSegments(dir)
	}
	if !state.Segments[last].SealTime.IsZero() {
		return nil
	}
	tail, err := openSealedSegment(dir, state.Segments[last])
	if err != nil || tail == nil {
		return err
	}
	defer tail.Close()

	next := types.SegmentInfo{
		ID: state.NextSegmentID, Codec: tail.info.Codec, CreateTime: time.Now(), SizeLimit: uint32(segmentSize),
	}
	state.NextSegmentID++
	sealed, intact := tail.sealedInfo()
	if intact {
		next.BaseIndex = sealed.MaxIndex + 1
		next.MinIndex = next.BaseIndex
		state.Segments[last] = sealed
		state.Segments = append(state.Segments, next) // raft-wal creates the missing file
	} else {
		next.BaseIndex, next.MinIndex = tail.info.BaseIndex, tail.info.MinIndex
		next.SizeLimit = max(next.SizeLimit, tail.info.SizeLimit)
		if err := tail.moveTo(next); err != nil {
			return fmt.Errorf("move entries of a torn segment: %w", err)
		}
		state.Segments[last] = next // raft-wal removes the old file, which the metadata no longer lists
	}
	return meta.CommitState(state)
}

// checkNoSegments returns an ErrDamaged if dir has segment files. The metadata,
// which are written before the first file, list none. raft-wal would delete the
// files.
func checkNoSegments(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err == nil && len(files) > 0 {
		err = fmt.Errorf("%w: %s lists no segment, and %s exists", ErrDamaged,
			filepath.Join(dir, metadb.FileName), files[0])
	}
	return err
}

// sealedSegment is the last segment of a closed log. Its file has a seal that
// the metadata lacks.
type sealedSegment struct {
	types.SegmentWriter
	filer      *segment.Filer
	info       types.SegmentInfo
	indexStart uint64
}

// openSealedSegment opens the segment of info. It returns nil if the segment
// has no seal or no file.
func openSealedSegment(dir string, info types.SegmentInfo) (*sealedSegment, error) {
	filer := segment.NewFiler(dir, walfs.New())
	whole := info
	whole.MinIndex = info.BaseIndex // include entries that were deleted from the beginning
	w, err := filer.RecoverTail(whole)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("last segment: %w", err)
	}
	isSealed, indexStart, err := w.Sealed()
	if err != nil || !isSealed {
		return nil, errors.Join(err, w.Close())
	}
	return &sealedSegment{SegmentWriter: w, filer: filer, info: info, indexStart: indexStart}, nil
}

// sealedInfo returns the metadata of t with the seal. intact reports whether
// the index of the segment finds every entry.
func (t *sealedSegment) sealedInfo() (info types.SegmentInfo, intact bool) {
	info = t.info
	info.SealTime, info.IndexStart, info.MaxIndex = time.Now(), t.indexStart, t.LastIndex()
	if info.MaxIndex < info.BaseIndex {
		return info, false
	}
	byIndex := info
	byIndex.MinIndex = info.BaseIndex
	r, err := t.filer.Open(byIndex)
	if err != nil {
		return info, false
	}
	defer r.Close()
	for i := info.BaseIndex; i <= info.MaxIndex; i++ {
		written, err := readEntry(t, i)
		found, foundErr := readEntry(r, i)
		if err != nil || foundErr != nil || !bytes.Equal(found, written) {
			return info, false
		}
	}
	return info, true
}

// moveTo durably writes the entries of t to a new segment. A file that already
// has the name of the new segment comes from an interrupted attempt.
func (t *sealedSegment) moveTo(info types.SegmentInfo) error {
	if err := t.filer.Delete(info.BaseIndex, info.ID); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	w, err := t.filer.Create(info)
	if err != nil {
		return err
	}
	var entries []types.LogEntry
	for i := info.BaseIndex; i <= t.LastIndex(); i++ {
		data, err := readEntry(t, i)
		if err != nil {
			return errors.Join(err, w.Close())
		}
		entries = append(entries, types.LogEntry{Index: i, Data: data})
	}
	if len(entries) > 0 {
		err = w.Append(entries)
	}
	return errors.Join(err, w.Close())
}

// readEntry returns a copy of the entry at index.
func readEntry(r types.SegmentReader, index uint64) ([]byte, error) {
	b, err := r.GetLog(index)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	return bytes.Clone(b.Bs), nil
}
