// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// The snapshot format: snapshotMagic, then records. A record is one kind byte, a uvarint length, and that many bytes:
//
//	'I'  the store index, a uvarint; once, first
//	'T'  a type's index: a uvarint, then a pb.Type
//	'F'  the least index that queries of a type have: a uvarint, then a pb.Type, whose 'T' came before; without it, the type's
//	'R'  a pb.Resource
//	'D'  a resource that is no more: the index of its deletion, a uvarint, then a pb.ID
//	'E'  the end: the number of resources, a uvarint; once, last
//
// A reader refuses kinds that it does not know: they would be state that it loses.
const (
	snapshotMagic = "wanfed snapshot 1\n"

	recordIndex    = 'I'
	recordType     = 'T'
	recordFloor    = 'F'
	recordResource = 'R'
	recordDeleted  = 'D'
	recordEnd      = 'E'

	// maxRecord bounds the length of a record, in bytes.
	maxRecord = 64 << 20

	// snapshotBuffer is how much is read or written at a time, in bytes.
	snapshotBuffer = 64 << 10
)

// Snapshot is the state at one moment. It stays valid, and keeps that state in memory, as long as it is referred to.
type Snapshot struct {
	db    *db
	index uint64
}

// Snapshot returns the present state, in constant time.
func (s *State) Snapshot() *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Snapshot{db: s.db.Load(), index: s.index}
}

// Index is the store index of the snapshot.
func (sn *Snapshot) Index() uint64 { return sn.index }

// WriteTo streams the snapshot. It holds no more than one resource in encoded form. It may run beside Apply.
func (sn *Snapshot) WriteTo(w io.Writer) (int64, error) {
	e := &recordWriter{w: bufio.NewWriterSize(w, snapshotBuffer)}
	e.raw([]byte(snapshotMagic))
	e.record(recordIndex, binary.AppendUvarint(nil, sn.index))

	types := sn.db.types.from("")
	for x, ok := types.next(); ok; x, ok = types.next() {
		e.message(recordType, binary.AppendUvarint(nil, x.index), x.typ)
		e.message(recordFloor, binary.AppendUvarint(nil, x.floor), x.typ)
	}
	count := uint64(0)
	resources := sn.db.resources.from("")
	for w, ok := resources.next(); ok && e.err == nil; w, ok = resources.next() {
		e.row(w)
		count++
	}
	graves := sn.db.graves.from("")
	for g, ok := graves.next(); ok && e.err == nil; g, ok = graves.next() {
		e.message(recordDeleted, binary.AppendUvarint(nil, g.index), g.id)
	}
	e.record(recordEnd, binary.AppendUvarint(nil, count))
	if e.err == nil {
		e.err = e.w.Flush()
	}
	return e.n, e.err
}

// recordWriter keeps the first error.
type recordWriter struct {
	w    *bufio.Writer
	head []byte // of a record
	buf  []byte
	n    int64
	err  error
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
	e.head = binary.AppendUvarint(append(e.head[:0], kind), uint64(len(p)))
	e.raw(e.head)
	e.raw(p)
}

func (e *recordWriter) row(w row) {
	e.buf = w.appendWire(e.buf[:0])
	e.record(recordResource, e.buf)
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

// Restore replaces the whole state with the snapshot that r streams, of a later state or of another one. If it fails, the state
// is as it was. All watches end with resource.ErrWatchReset. The index of a query never falls: if that of a type would, it, the
// store's, and those of all queries of the type jump above what was seen.
func (s *State) Restore(r io.Reader) error { return s.restore(r, false) }

// restore takes a foreign snapshot, of no state that this one was or will be, for one of which everything was just written.
func (s *State) restore(r io.Reader, foreign bool) error {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	in, err := readSnapshot(r)
	if err != nil {
		return fmt.Errorf("restore snapshot: %w", err)
	}
	s.mu.Lock()
	if s.closed.Load() {
		s.mu.Unlock()
		return resource.ErrClosed
	}
	woken := s.replaceLocked(in, foreign)
	s.mu.Unlock()
	wakeAll(woken)
	return nil
}

// replaceLocked makes what was read the state, and returns the items to wake.
func (s *State) replaceLocked(in *restored, foreign bool) (woken []*item) {
	index := max(s.index, in.index)
	above := in.index // where an index that would fall goes: the snapshot's, if it is above all, so that all servers have the same
	if above <= s.index {
		above = index + 1
	}
	o := new(owner)
	known := s.db.Load().types.from("")
	for was, ok := known.next(); ok; was, ok = known.next() {
		is := *in.db.typeRow(typeKey(was.typ))
		is.typ = was.typ
		switch {
		case is.index < was.index:
			index = above
			is.index, is.floor = above, above
		case foreign && s.index > 1:
			is.floor = is.index
		default:
			continue
		}
		in.db.putType(o, &is)
	}
	s.db.Store(&in.db)
	s.index = index
	s.epoch.Add(1)
	s.moved.wakeLocked()
	types := in.db.types.from("")
	for x, ok := types.next(); ok; x, ok = types.next() {
		s.kindLocked(typeKey(x.typ)).index = x.index
	}
	return s.endLocked()
}

// restored is a snapshot that was read completely.
type restored struct {
	db    db
	index uint64
}

func readSnapshot(src io.Reader) (*restored, error) {
	in, o := new(restored), new(owner)
	err := scan(src, sink{
		begin: func(index uint64) error { in.index = index; return nil },
		typ: func(typ *pb.Type, index uint64) error {
			in.db.putType(o, &typeIndex{typ: typ, index: index, floor: index})
			return nil
		},
		floor: func(typ *pb.Type, floor uint64) error {
			x := *in.db.typeRow(typeKey(typ))
			if x.typ == nil || floor > x.index {
				return fmt.Errorf("floor %d of type %s is above its index, or has none", floor, resource.TypeString(typ))
			}
			x.floor = floor
			in.db.putType(o, &x)
			return nil
		},
		resource: func(w row, _ int) error {
			in.db.load(o, w)
			return nil
		},
		deleted: func(id *pb.ID, index uint64) error {
			in.db.putGrave(o, &grave{id: id, index: index})
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	return in, nil
}

// recordReader reads records.
type recordReader struct {
	r    *bufio.Reader
	used int // bytes of the last record that are in r's buffer
	buf  bytes.Buffer
}

// skip goes to the end of the last record.
func (in *recordReader) skip() error {
	_, err := in.r.Discard(in.used)
	in.used = 0
	return err
}

// record returns the next record, which is valid until the one after it is read. It allocates as bytes come, not as the length says.
func (in *recordReader) record() (kind byte, p []byte, err error) {
	if err := in.skip(); err != nil {
		return 0, nil, err
	}
	if kind, err = in.r.ReadByte(); err != nil {
		return 0, nil, torn(err)
	}
	n, err := binary.ReadUvarint(in.r)
	if err != nil {
		return 0, nil, torn(err)
	}
	if n > maxRecord {
		return 0, nil, fmt.Errorf("its length, %d bytes, is above %d", n, maxRecord)
	}
	if int(n) <= in.r.Size() {
		if p, err = in.r.Peek(int(n)); err != nil {
			return 0, nil, torn(err)
		}
		in.used = int(n)
		return kind, p, nil
	}
	in.buf.Reset()
	if _, err := io.CopyN(&in.buf, in.r, int64(n)); err != nil {
		return 0, nil, torn(err)
	}
	return kind, in.buf.Bytes(), nil
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

func checkEnd(in *recordReader, p []byte, count uint64) error {
	want, err := uvarint(p)
	if err != nil {
		return err
	}
	if want != count {
		return fmt.Errorf("the snapshot has %d resources, its end says %d", count, want)
	}
	if err := in.skip(); err != nil {
		return err
	}
	if _, err := in.r.ReadByte(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the end record")
	}
	return nil
}
