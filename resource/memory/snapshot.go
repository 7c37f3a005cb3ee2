// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/go-memdb"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// The snapshot format: snapshotMagic, then records. A record is one kind byte, a uvarint length, and that many bytes:
//
//	'I'  the store index, a uvarint; once, first
//	'T'  a type's index: a uvarint, then a pb.Type
//	'R'  a pb.Resource
//	'E'  the end: the number of resources, a uvarint; once, last
//
// A reader refuses kinds that it does not know: they would be state that it loses.
const (
	snapshotMagic = "wanfed snapshot 1\n"

	recordIndex    = 'I'
	recordType     = 'T'
	recordResource = 'R'
	recordEnd      = 'E'

	// maxRecord bounds the length of a record, in bytes.
	maxRecord = 64 << 20
)

// Snapshot is the state at one moment. It stays valid, and keeps that state in memory, as long as it is referred to.
type Snapshot struct {
	txn   *memdb.Txn
	index uint64
}

// Snapshot returns the present state, in constant time.
func (s *State) Snapshot() *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Snapshot{txn: s.db.Load().Txn(false), index: s.index}
}

// Index is the store index of the snapshot.
func (sn *Snapshot) Index() uint64 { return sn.index }

// WriteTo streams the snapshot. It holds no more than one resource in encoded form. It may run beside Apply.
func (sn *Snapshot) WriteTo(w io.Writer) (int64, error) {
	e := &recordWriter{w: bufio.NewWriter(w)}
	e.raw([]byte(snapshotMagic))
	e.record(recordIndex, binary.AppendUvarint(nil, sn.index))

	for it := must(sn.txn.Get(tableIndex, indexID)); ; {
		row := it.Next()
		if row == nil {
			break
		}
		x := row.(*typeIndex)
		e.message(recordType, binary.AppendUvarint(nil, x.index), x.typ)
	}
	count := uint64(0)
	for it := must(sn.txn.Get(tableResource, indexID)); e.err == nil; count++ {
		row := it.Next()
		if row == nil {
			break
		}
		e.message(recordResource, nil, row.(*pb.Resource))
	}
	e.record(recordEnd, binary.AppendUvarint(nil, count))
	if e.err == nil {
		e.err = e.w.Flush()
	}
	return e.n, e.err
}

// recordWriter keeps the first error.
type recordWriter struct {
	w   *bufio.Writer
	buf []byte
	n   int64
	err error
}

func (e *recordWriter) raw(p []byte) {
	if e.err != nil {
		return
	}
	var n int
	n, e.err = e.w.Write(p)
	e.n += int64(n)
}

func (e *recordWriter) record(kind byte, p []byte) {
	e.raw(binary.AppendUvarint([]byte{kind}, uint64(len(p))))
	e.raw(p)
}

func (e *recordWriter) message(kind byte, head []byte, m proto.Message) {
	if e.err != nil {
		return
	}
	e.buf, e.err = proto.MarshalOptions{}.MarshalAppend(append(e.buf[:0], head...), m)
	if e.err == nil {
		e.record(kind, e.buf)
	}
}

// Restore replaces the whole state with the snapshot that r streams. If it fails, the state is as it was. All watches end with
// resource.ErrWatchReset. The index of a type never falls: one that would, and the store's own, jump above what was seen.
func (s *State) Restore(r io.Reader) error {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	in, err := readSnapshot(r)
	if err != nil {
		return fmt.Errorf("restore snapshot: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return resource.ErrClosed
	}
	s.replaceLocked(in)
	return nil
}

// replaceLocked makes what was read the state.
func (s *State) replaceLocked(in *restored) {
	index := max(s.index, in.index)
	above := in.index // where an index that would fall goes: the snapshot's, if it is above all, so that all servers have the same
	if above <= s.index {
		above = index + 1
	}
	old := s.db.Load().Txn(false)
	txn := in.db.Txn(true)
	for it := must(old.Get(tableIndex, indexID)); ; {
		row := it.Next()
		if row == nil {
			break
		}
		was := row.(*typeIndex)
		if indexOf(txn, typeKey(was.typ)) < was.index {
			index = above
			mustDo(txn.Insert(tableIndex, &typeIndex{typ: was.typ, index: index}))
		}
	}
	txn.Commit()
	s.db.Store(in.db)
	s.index = index
	s.epoch++
	s.moved.wakeLocked()
	read := in.db.Txn(false)
	for it := must(read.Get(tableIndex, indexID)); ; {
		row := it.Next()
		if row == nil {
			break
		}
		s.topicLocked(typeKey(row.(*typeIndex).typ)).index = row.(*typeIndex).index
	}
	for _, t := range s.topics {
		t.dropLocked()
		t.wakeLocked()
	}
}

// restored is a snapshot that was read completely.
type restored struct {
	db    *memdb.MemDB
	index uint64
}

func readSnapshot(src io.Reader) (*restored, error) {
	in := &restored{db: newDB()}
	txn := in.db.Txn(true)
	defer txn.Abort()
	err := scan(src, sink{
		begin: func(index uint64) error { in.index = index; return nil },
		typ: func(typ *pb.Type, index uint64) error {
			return txn.Insert(tableIndex, &typeIndex{typ: typ, index: index})
		},
		resource: func(r *pb.Resource, _ int) error { return txn.Insert(tableResource, r) },
	})
	if err != nil {
		return nil, err
	}
	txn.Commit()
	return in, nil
}

// readRecord reads one record's bytes into buf. It allocates as bytes come, not as the length says.
func readRecord(r *bufio.Reader, buf *bytes.Buffer) (kind byte, err error) {
	if kind, err = r.ReadByte(); err != nil {
		return 0, torn(err)
	}
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return 0, torn(err)
	}
	if n > maxRecord {
		return 0, fmt.Errorf("its length, %d bytes, is above %d", n, maxRecord)
	}
	buf.Reset()
	if _, err := io.CopyN(buf, r, int64(n)); err != nil {
		return 0, torn(err)
	}
	return kind, nil
}

func torn(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the snapshot ends here, before its end record: %w", io.ErrUnexpectedEOF)
	}
	return err
}

func uvarint(p []byte) (uint64, error) {
	v, n := binary.Uvarint(p)
	if n <= 0 || n != len(p) {
		return 0, errors.New("it is not one number")
	}
	return v, nil
}

func checkEnd(r *bufio.Reader, p []byte, count uint64) error {
	want, err := uvarint(p)
	if err != nil {
		return err
	}
	if want != count {
		return fmt.Errorf("the snapshot has %d resources, its end says %d", count, want)
	}
	if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the end record")
	}
	return nil
}
