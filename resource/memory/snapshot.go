// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// A snapshot is snapshotMagic, followed by records. A record is a kind of one
// byte, its length as a uvarint, and that many bytes:
//
//	'I'  the index of the store, a uvarint; once, first
//	'T'  the index of a type: a uvarint, then a pb.Type
//	'F'  the least index of the type's queries: a uvarint, then a pb.Type,
//	     after the 'T' of that type; without it, the index of the type
//	'R'  a pb.Resource
//	'D'  a deleted resource: the index of its deletion, a uvarint, then a pb.ID
//	'E'  the end: the number of resources, a uvarint; once, last
//
// A reader refuses unknown kinds, because it would lose state.
const (
	snapshotMagic = "wanfed snapshot 1\n"

	recordIndex    = 'I'
	recordType     = 'T'
	recordFloor    = 'F'
	recordResource = 'R'
	recordDeleted  = 'D'
	recordEnd      = 'E'

	maxRecord      = 64 << 20 // length of a record, in bytes
	snapshotBuffer = 64 << 10 // bytes that are read or written at a time
)

// Snapshot is the state at one moment. It stays valid, and keeps that state in
// memory, as long as there is a reference to it.
type Snapshot struct {
	tables *tables
	index  uint64
}

// Snapshot returns the present state, in constant time.
func (s *State) Snapshot() *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Snapshot{tables: s.published.Load(), index: s.index}
}

// Index is the store index of the snapshot.
func (sn *Snapshot) Index() uint64 { return sn.index }

// WriteTo streams the snapshot to w. It holds one encoded resource at a time. It
// may run at the same time as Apply.
func (sn *Snapshot) WriteTo(w io.Writer) (int64, error) {
	e := newRecordWriter(w)
	e.number(recordIndex, sn.index)
	for info := range withPrefix(sn.tables.types, "") {
		e.message(recordType, info.index, info.typ)
		e.message(recordFloor, info.floor, info.typ)
	}
	sn.tables.resources.Scan(func(r *pb.Resource) bool {
		e.resource(r)
		return e.err == nil
	})
	for d := range withPrefix(sn.tables.deletions, "") {
		if e.message(recordDeleted, d.index, d.id); e.err != nil {
			break
		}
	}
	return e.end()
}

// recordWriter writes records. After an error it writes nothing.
type recordWriter struct {
	w     *bufio.Writer
	head  []byte // of a record
	body  []byte
	count uint64 // of resources
	n     int64  // bytes written
	err   error
}

// newRecordWriter begins a snapshot.
func newRecordWriter(w io.Writer) *recordWriter {
	e := &recordWriter{w: bufio.NewWriterSize(w, snapshotBuffer)}
	e.raw([]byte(snapshotMagic))
	return e
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

func (e *recordWriter) number(kind byte, v uint64) { e.record(kind, binary.AppendUvarint(nil, v)) }

// message writes a record of a number and a message.
func (e *recordWriter) message(kind byte, v uint64, m proto.Message) {
	e.encode(kind, binary.AppendUvarint(e.body[:0], v), m)
}

func (e *recordWriter) resource(r *pb.Resource) {
	e.count++
	e.encode(recordResource, e.body[:0], r)
}

func (e *recordWriter) encode(kind byte, body []byte, m proto.Message) {
	if e.err != nil {
		return
	}
	if e.body, e.err = (proto.MarshalOptions{Deterministic: true}).MarshalAppend(body, m); e.err == nil {
		e.record(kind, e.body)
	}
}

// end completes the snapshot.
func (e *recordWriter) end() (int64, error) {
	e.number(recordEnd, e.count)
	if e.err == nil {
		e.err = e.w.Flush()
	}
	return e.n, e.err
}

// Rebase copies the snapshot that r streams to w, with index as the index of all
// its writes. The index must be above every index in the snapshot. The new
// snapshot therefore contains no version or index that a client has seen before.
// It also contains the types of the present state. After Restore, a query that
// waits for a change of a type without resources therefore returns.
func (s *State) Rebase(w io.Writer, r io.Reader, index uint64) error {
	e := newRecordWriter(w)
	known := map[string]bool{}
	put := func(typ *pb.Type, _ uint64) error {
		if key := typeKey(typ); !known[key] {
			known[key] = true
			e.message(recordType, index, typ) // needs no floor record, because the floor is also index
		}
		return e.err
	}
	err := readRecords(r, recordHandlers{
		begin: func(uint64) error {
			e.number(recordIndex, index)
			for info := range withPrefix(s.published.Load().types, "") {
				if err := put(info.typ, 0); err != nil {
					return err
				}
			}
			return e.err
		},
		typ:     put,
		floor:   func(*pb.Type, uint64) error { return nil },
		deleted: func(*pb.ID, uint64) error { return nil },
		resource: func(r *pb.Resource, _ int) error {
			if r.ModifyIndex >= index {
				return fmt.Errorf("%s was written at index %d, which is not below %d", resource.IDString(r.Id), r.ModifyIndex, index)
			}
			r.Version, r.ModifyIndex = strconv.FormatUint(index, 10), index
			e.resource(r)
			return e.err
		},
	})
	if err == nil {
		_, err = e.end()
	}
	if err != nil {
		return fmt.Errorf("rebase snapshot: %w", err)
	}
	return nil
}

// SnapshotTotals describes the content of a snapshot.
type SnapshotTotals struct {
	Index     uint64 // of the store
	Resources int
	Types     []TypeTotal // those with resources, by name
}

// TypeTotal describes the resources of one type in a snapshot.
type TypeTotal struct {
	Type      string // group/version/Kind
	Resources int
	Bytes     int64 // encoded
}

// ScanSnapshot reads a snapshot to its end. It makes the same checks as Restore,
// and also checks that there are no duplicate resources. It holds one resource in
// memory at a time. Restore accepts every snapshot that ScanSnapshot accepts.
func ScanSnapshot(r io.Reader) (SnapshotTotals, error) {
	totals := SnapshotTotals{}
	types := map[string]*TypeTotal{}
	last := "" // key of the last resource
	err := readRecords(r, recordHandlers{
		begin:   func(index uint64) error { totals.Index = index; return nil },
		typ:     func(*pb.Type, uint64) error { return nil },
		floor:   func(*pb.Type, uint64) error { return nil },
		deleted: func(*pb.ID, uint64) error { return nil },
		resource: func(r *pb.Resource, size int) error {
			key := idKey(r.Id)
			if totals.Resources > 0 && key <= last {
				return fmt.Errorf("%s is duplicate or out of order", resource.IDString(r.Id))
			}
			last = key
			name := resource.TypeString(r.Id.Type)
			t := types[name]
			if t == nil {
				t = &TypeTotal{Type: name}
				types[name] = t
			}
			t.Resources++
			t.Bytes += int64(size)
			totals.Resources++
			return nil
		},
	})
	if err != nil {
		return SnapshotTotals{}, fmt.Errorf("read snapshot: %w", err)
	}
	for _, t := range types {
		totals.Types = append(totals.Types, *t)
	}
	slices.SortFunc(totals.Types, func(a, b TypeTotal) int { return strings.Compare(a.Type, b.Type) })
	return totals, nil
}

// Restore replaces the whole state with the snapshot that r streams, of a later
// state or of another store. If it fails, the state stays as it was. All watches
// end with resource.ErrWatchReset. The index of a query never falls. If the index
// of a type would fall, then it is set above all earlier indexes instead, together
// with the index of the store and of all queries of the type.
func (s *State) Restore(r io.Reader) error {
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
	woken := s.replaceLocked(in)
	s.mu.Unlock()
	wakeAll(woken)
	return nil
}

// replaceLocked replaces the state with the restored tables. It returns the items
// whose followers the caller must wake. The caller holds writeMu and mu.
func (s *State) replaceLocked(in *restored) (woken []*item) {
	index := max(s.index, in.index)
	// risen is the new index of a type whose index would fall. It is the index
	// of the snapshot if that is above all other indexes, so that all servers
	// use the same index.
	risen := in.index
	if risen <= s.index {
		risen = index + 1
	}
	for old := range withPrefix(s.published.Load().types, "") {
		info := *in.tables.typeInfo(typeKey(old.typ))
		info.typ = old.typ
		if info.index < old.index {
			index = risen
			info.index, info.floor = risen, risen
			in.tables.putType(&info)
		}
	}
	s.own = in.tables
	s.published.Store(s.own.copy())
	s.index = index
	s.epoch.Add(1)
	s.moved.Notify()
	for info := range withPrefix(in.tables.types, "") {
		s.watchedTypeLocked(typeKey(info.typ)).index = info.index
	}
	return s.endTopicsLocked()
}

// restored is a snapshot that was read completely.
type restored struct {
	tables *tables
	index  uint64
}

func readSnapshot(src io.Reader) (*restored, error) {
	in := &restored{tables: newTables()}
	t := in.tables
	err := readRecords(src, recordHandlers{
		begin: func(index uint64) error { in.index = index; return nil },
		typ: func(typ *pb.Type, index uint64) error {
			t.putType(&typeInfo{typ: typ, index: index, floor: index})
			return nil
		},
		floor: func(typ *pb.Type, floor uint64) error {
			info := *t.typeInfo(typeKey(typ))
			if info.typ == nil || floor > info.index {
				return fmt.Errorf("floor %d of type %s has no index, or is above it", floor, resource.TypeString(typ))
			}
			info.floor = floor
			t.putType(&info)
			return nil
		},
		resource: func(r *pb.Resource, _ int) error {
			t.put(r)
			return nil
		},
		deleted: func(id *pb.ID, index uint64) error {
			t.putDeletion(&deletion{id: id, index: index})
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	return in, nil
}

// recordHandlers take the records of a snapshot. They own the messages. readRecords
// calls begin first, once.
type recordHandlers struct {
	begin      func(index uint64) error
	typ, floor func(typ *pb.Type, index uint64) error
	resource   func(r *pb.Resource, size int) error
	deleted    func(id *pb.ID, index uint64) error
}

// readRecords reads a snapshot to its end, and checks each record before it
// calls the record's handler.
func readRecords(src io.Reader, to recordHandlers) error {
	r := bufio.NewReaderSize(src, snapshotBuffer)
	magic := make([]byte, len(snapshotMagic))
	if _, err := io.ReadFull(r, magic); err != nil || string(magic) != snapshotMagic {
		return fmt.Errorf("it does not begin with %q: it is not a snapshot, or a newer version of wanfed wrote it", snapshotMagic)
	}
	in := recordReader{r: r}
	var index, count uint64
	for n := 1; ; n++ {
		kind, p, err := in.record()
		if err == nil && (n == 1) != (kind == recordIndex) {
			err = errors.New("the index is not the first record")
		}
		if err != nil {
			return fmt.Errorf("record %d: %w", n, err)
		}
		switch kind {
		case recordIndex:
			if index, err = uvarint(p); err == nil {
				err = to.begin(index)
			}
		case recordType:
			err = readType(p, index, to.typ)
		case recordFloor:
			err = readType(p, index, to.floor)
		case recordDeleted:
			err = readDeleted(p, index, to.deleted)
		case recordResource:
			count++
			err = readResource(p, index, to.resource)
		case recordEnd:
			if err = in.checkEnd(p, count); err == nil {
				return nil
			}
		default:
			err = fmt.Errorf("unknown kind %q; a newer version of wanfed may have written it", kind)
		}
		if err != nil {
			return fmt.Errorf("record %d: %w", n, err)
		}
	}
}

func readType(p []byte, storeIndex uint64, to func(*pb.Type, uint64) error) error {
	typ := new(pb.Type)
	index, err := readNumbered(p, "type", typ)
	if err != nil {
		return err
	}
	if _, err := newSelection(resource.Query{Type: typ}); err != nil {
		return err
	}
	if index > storeIndex {
		return fmt.Errorf("index %d of type %s is above the store's, %d", index, resource.TypeString(typ), storeIndex)
	}
	return to(typ, index)
}

func readDeleted(p []byte, storeIndex uint64, to func(*pb.ID, uint64) error) error {
	id := new(pb.ID)
	index, err := readNumbered(p, "deletion", id)
	if err != nil {
		return err
	}
	if err := resource.CheckOps([]*pb.Op{resource.RemoveOp(id, "")}); err != nil {
		return fmt.Errorf("deletion: %w", err)
	}
	if index > storeIndex {
		return fmt.Errorf("index %d of the deletion of %s is above the store's, %d", index, resource.IDString(id), storeIndex)
	}
	return to(id, index)
}

// readNumbered decodes a record of a number and a message.
func readNumbered(p []byte, what string, m proto.Message) (uint64, error) {
	v, n := binary.Uvarint(p)
	if n <= 0 {
		return 0, fmt.Errorf("a %s without its index", what)
	}
	if err := proto.Unmarshal(p[n:], m); err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	return v, nil
}

func readResource(p []byte, storeIndex uint64, to func(*pb.Resource, int) error) error {
	r := new(pb.Resource)
	if err := proto.Unmarshal(p, r); err != nil {
		return fmt.Errorf("resource: %w", err)
	}
	if err := resource.CheckResource(r); err != nil {
		return err
	}
	if r.ModifyIndex > storeIndex {
		return fmt.Errorf("index %d of %s is above the store's, %d", r.ModifyIndex, resource.IDString(r.Id), storeIndex)
	}
	return to(r, len(p))
}

// recordReader reads records.
type recordReader struct {
	r    *bufio.Reader
	used int // bytes of the last record in r's buffer
	buf  bytes.Buffer
}

// skip moves to the end of the last record.
func (in *recordReader) skip() error {
	_, err := in.r.Discard(in.used)
	in.used = 0
	return err
}

// record returns the next record. Its bytes are valid until the next call. The
// memory for a large record grows with the bytes that are read. It does not
// depend on the length that precedes the record.
func (in *recordReader) record() (kind byte, p []byte, err error) {
	if err := in.skip(); err != nil {
		return 0, nil, err
	}
	if kind, err = in.r.ReadByte(); err != nil {
		return 0, nil, truncated(err)
	}
	n, err := binary.ReadUvarint(in.r)
	if err != nil {
		return 0, nil, truncated(err)
	}
	if n > maxRecord {
		return 0, nil, fmt.Errorf("its length, %d bytes, is above %d", n, maxRecord)
	}
	if int(n) <= in.r.Size() {
		if p, err = in.r.Peek(int(n)); err != nil {
			return 0, nil, truncated(err)
		}
		in.used = int(n)
		return kind, p, nil
	}
	in.buf.Reset()
	if _, err := io.CopyN(&in.buf, in.r, int64(n)); err != nil {
		return 0, nil, truncated(err)
	}
	return kind, in.buf.Bytes(), nil
}

func truncated(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the snapshot ends here, before its end record: %w", io.ErrUnexpectedEOF)
	}
	return err
}

func uvarint(p []byte) (uint64, error) {
	v, n := binary.Uvarint(p)
	if n <= 0 || n != len(p) {
		return 0, errors.New("record does not contain exactly one number")
	}
	return v, nil
}

// checkEnd checks the end record p of a snapshot with count resources.
func (in *recordReader) checkEnd(p []byte, count uint64) error {
	want, err := uvarint(p)
	if err != nil {
		return err
	}
	if want != count {
		return fmt.Errorf("the snapshot has %d resources, but its end record has %d", count, want)
	}
	if err := in.skip(); err != nil {
		return err
	}
	if _, err := in.r.ReadByte(); !errors.Is(err, io.EOF) {
		return errors.New("there is data after the end record")
	}
	return nil
}
