// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// A snapshot is snapshotMagic, followed by records. A record is one byte with
// its kind, its length as a uvarint, and a body of that length:
//
//	'I'  index of the store: a uvarint; the first record
//	'T'  index of a type: a uvarint, then a pb.Type
//	'F'  least index of queries of a type (typeInfo.floor): a uvarint, then a
//	     pb.Type, after the 'T' of the type; without an 'F', the floor is the
//	     index of the type
//	'R'  a pb.Resource
//	'D'  a deleted resource: the index of its deletion, a uvarint, then a pb.ID
//	'E'  number of resources: a uvarint; the last record
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

	maxRecord      = 64 << 20 // maximum length of a body in bytes
	snapshotBuffer = 64 << 10 // size of a read or write in bytes
)

// Snapshot is the state at one moment. A referenced Snapshot keeps that state
// in memory.
type Snapshot struct {
	tables *tables
	index  uint64
}

// Snapshot returns the current state, in constant time.
func (s *State) Snapshot() *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Snapshot{tables: s.published.Load(), index: s.index}
}

// Index returns the store index of the snapshot.
func (sn *Snapshot) Index() uint64 { return sn.index }

// WriteTo streams the snapshot to w. It holds one encoded resource at a time.
// It may run concurrently with Apply.
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

// Digest returns a SHA-256 of all resources. Equal states have equal digests on
// servers of one version of wanfed. Another version may encode a resource in
// another way. Digest holds one encoded resource at a time, and may run
// concurrently with Apply.
func (sn *Snapshot) Digest() ([]byte, error) {
	sum := sha256.New()
	e := newRecordWriter(sum)
	sn.tables.resources.Scan(func(r *pb.Resource) bool {
		e.resource(r)
		return e.err == nil
	})
	_, err := e.end()
	return sum.Sum(nil), err
}

// recordWriter writes records. After an error it writes nothing.
type recordWriter struct {
	w     *bufio.Writer
	head  []byte // buffer for kind and length
	body  []byte // buffer for the body
	count uint64 // resources written
	size  int64  // bytes written
	err   error
}

// newRecordWriter begins a snapshot.
func newRecordWriter(w io.Writer) *recordWriter {
	e := &recordWriter{w: bufio.NewWriterSize(w, snapshotBuffer)}
	e.write([]byte(snapshotMagic))
	return e
}

func (e *recordWriter) write(p []byte) {
	if e.err == nil {
		var n int
		n, e.err = e.w.Write(p)
		e.size += int64(n)
	}
}

func (e *recordWriter) record(kind byte, body []byte) {
	e.head = binary.AppendUvarint(append(e.head[:0], kind), uint64(len(body)))
	e.write(e.head)
	e.write(body)
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

// end completes the snapshot and returns its size.
func (e *recordWriter) end() (int64, error) {
	e.number(recordEnd, e.count)
	if e.err == nil {
		e.err = e.w.Flush()
	}
	return e.size, e.err
}

// Rebase copies the snapshot in r to w, and sets the index of all writes to
// index. It returns the size of the new snapshot. index must be above every
// index in the snapshot. Therefore the new snapshot has no version or index
// that a client has seen before. The new snapshot also has the types of the
// current state. After Restore, a query that waits for a change of such a type
// therefore returns, even if the snapshot has no resource of the type.
func (s *State) Rebase(w io.Writer, r io.Reader, index uint64) (size int64, err error) {
	e := newRecordWriter(w)
	written := map[string]bool{}
	writeType := func(typ *pb.Type) {
		if key := typeKey(typ); !written[key] {
			written[key] = true
			e.message(recordType, index, typ) // without a floor record, the floor is index too
		}
	}
	err = readRecords(r, func(rec record) error {
		switch rec.kind {
		case recordIndex:
			e.number(recordIndex, index)
			for info := range withPrefix(s.published.Load().types, "") {
				writeType(info.typ)
			}
		case recordType:
			writeType(rec.typ)
		case recordResource:
			r := rec.resource
			if r.ModifyIndex >= index {
				return fmt.Errorf("%s was written at index %d, which is not below %d", resource.IDString(r.Id),
					r.ModifyIndex, index)
			}
			r.Version, r.ModifyIndex = strconv.FormatUint(index, 10), index
			e.resource(r)
		}
		return e.err
	})
	if err == nil {
		size, err = e.end()
	}
	if err != nil {
		return 0, fmt.Errorf("rebase snapshot: %w", err)
	}
	return size, nil
}

// SnapshotTotals describes the content of a snapshot.
type SnapshotTotals struct {
	Index     uint64 // store index
	Resources int
	Types     []TypeTotal // types with resources, sorted by name
}

// TypeTotal describes the resources of one type in a snapshot.
type TypeTotal struct {
	Type      string // group/version/Kind
	Resources int
	Bytes     int64 // encoded size
}

// ScanSnapshot reads a snapshot to its end. It makes the same checks as
// Restore, and also rejects duplicate resources. Therefore Restore accepts
// every snapshot that ScanSnapshot accepts. ScanSnapshot holds one resource in
// memory at a time.
func ScanSnapshot(r io.Reader) (SnapshotTotals, error) {
	totals := SnapshotTotals{}
	types := map[string]*TypeTotal{}
	last := "" // key of the previous resource
	err := readRecords(r, func(rec record) error {
		switch rec.kind {
		case recordIndex:
			totals.Index = rec.index
		case recordResource:
			id := rec.resource.Id
			key := idKey(id)
			if totals.Resources > 0 && key <= last {
				return fmt.Errorf("%s is duplicate or out of order", resource.IDString(id))
			}
			last = key
			name := resource.TypeString(id.Type)
			if types[name] == nil {
				types[name] = &TypeTotal{Type: name}
			}
			types[name].Resources++
			types[name].Bytes += int64(rec.size)
			totals.Resources++
		}
		return nil
	})
	if err != nil {
		return SnapshotTotals{}, fmt.Errorf("read snapshot: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(types)) {
		totals.Types = append(totals.Types, *types[name])
	}
	return totals, nil
}

// Restore replaces the whole state with the snapshot in r, which was taken of a
// later state or of another store. After an error the state is unchanged. All
// watches end with resource.ErrWatchReset. The index of a query never falls. If
// the index of a type would fall, Restore raises three indexes above every
// earlier index: the index of the type, the index of the store, and the index
// of all queries of the type.
func (s *State) Restore(r io.Reader) error {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	in, err := readSnapshot(r)
	if err != nil {
		return fmt.Errorf("restore snapshot: %w", err)
	}
	s.mu.Lock()
	if err := s.Err(); err != nil {
		s.mu.Unlock()
		return err
	}
	woken := s.replaceLocked(in)
	s.mu.Unlock()
	wakeAll(woken)
	return nil
}

// replaceLocked replaces the state with in. It returns the items whose
// followers the caller must wake. The caller holds writeMu and mu.
func (s *State) replaceLocked(in *Snapshot) (woken []*item) {
	index := max(s.index, in.index)
	// raised is the new index of a type whose index would fall. The index of
	// the snapshot is preferred, because all servers must use the same index
	// and all of them restore the same snapshot. It can be used only if it is
	// higher than the index of the state.
	raised := in.index
	if raised <= s.index {
		raised = index + 1
	}
	for old := range withPrefix(s.published.Load().types, "") {
		info := *in.tables.typeInfo(typeKey(old.typ))
		info.typ = old.typ
		if info.index < old.index {
			index = raised
			info.index, info.floor = raised, raised
			in.tables.putType(&info)
		}
	}
	return s.installLocked(in.tables, index)
}

// installLocked makes t the tables of the writer and of the readers. The result
// and the locks are those of replaceLocked.
func (s *State) installLocked(t *tables, index uint64) (woken []*item) {
	s.own = t
	s.published.Store(s.own.copy())
	s.index = index
	s.epoch.Add(1)
	s.moved.Notify()
	for info := range withPrefix(t.types, "") {
		s.watchedTypeLocked(typeKey(info.typ)).index = info.index
	}
	return s.endTopicsLocked()
}

// Adopt replaces the whole state with the state of other, which must not be
// used again. Unlike after Restore, indexes may fall, because the earlier state
// was wrong. All watches end with resource.ErrWatchReset. Adopt has no effect
// on a closed state.
func (s *State) Adopt(other *State) {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	s.mu.Lock()
	if s.Err() != nil {
		s.mu.Unlock()
		return
	}
	woken := s.installLocked(other.own, other.Index())
	s.mu.Unlock()
	wakeAll(woken)
}

// readSnapshot reads a whole snapshot into new tables.
func readSnapshot(src io.Reader) (*Snapshot, error) {
	in := &Snapshot{tables: newTables()}
	t := in.tables
	err := readRecords(src, func(rec record) error {
		switch rec.kind {
		case recordIndex:
			in.index = rec.index
		case recordType:
			t.putType(&typeInfo{typ: rec.typ, index: rec.index, floor: rec.index})
		case recordFloor:
			info := *t.typeInfo(typeKey(rec.typ))
			if info.typ == nil || rec.index > info.index {
				return fmt.Errorf("floor %d of type %s has no index, or is above it", rec.index,
					resource.TypeString(rec.typ))
			}
			info.floor = rec.index
			t.putType(&info)
		case recordResource:
			t.put(rec.resource)
		case recordDeleted:
			t.putDeletion(&deletion{id: rec.id, index: rec.index})
		}
		return nil
	})
	return in, err
}

// record is a decoded record. Its kind determines which fields are set.
type record struct {
	kind     byte
	index    uint64
	typ      *pb.Type
	id       *pb.ID
	resource *pb.Resource
	size     int // length of the body in bytes
}

// String describes a record that has an index, except the index of the store.
func (rec record) String() string {
	switch {
	case rec.typ != nil:
		return "type " + resource.TypeString(rec.typ)
	case rec.id != nil:
		return "the deletion of " + resource.IDString(rec.id)
	}
	return resource.IDString(rec.resource.GetId())
}

// readRecords reads a snapshot to its end. It checks each record except the end
// record and passes it to visit, which may keep the messages of the record.
func readRecords(src io.Reader, visit func(record) error) error {
	r := bufio.NewReaderSize(src, snapshotBuffer)
	magic := make([]byte, len(snapshotMagic))
	if _, err := io.ReadFull(r, magic); err != nil || string(magic) != snapshotMagic {
		return fmt.Errorf("it does not begin with %q: it is not a snapshot, or a newer version of wanfed wrote it",
			snapshotMagic)
	}
	var body bytes.Buffer
	var index, count uint64 // store index; number of resources
	for n := 1; ; n++ {
		kind, err := readRecord(r, &body)
		switch {
		case err != nil:
		case (n == 1) != (kind == recordIndex):
			err = errors.New("the index is not the first record")
		case kind == recordEnd:
			if err = checkEnd(r, body.Bytes(), count); err == nil {
				return nil
			}
		default:
			var rec record
			if rec, err = decodeRecord(kind, body.Bytes(), index); err != nil {
				break
			}
			switch kind {
			case recordIndex:
				index = rec.index
			case recordResource:
				count++
			}
			err = visit(rec)
		}
		if err != nil {
			return fmt.Errorf("record %d: %w", n, err)
		}
	}
}

// decodeRecord decodes and checks a record of a snapshot with that store index.
func decodeRecord(kind byte, body []byte, storeIndex uint64) (rec record, err error) {
	rec = record{kind: kind, size: len(body)}
	switch kind {
	case recordIndex:
		rec.index, err = uvarint(body)
		return rec, err
	case recordType, recordFloor:
		rec.typ = new(pb.Type)
		if rec.index, err = decodeIndexed(body, "type", rec.typ); err == nil {
			_, err = newSelection(resource.Query{Type: rec.typ})
		}
	case recordDeleted:
		rec.id = new(pb.ID)
		if rec.index, err = decodeIndexed(body, "deletion", rec.id); err == nil {
			if err = resource.CheckOps([]*pb.Op{resource.RemoveOp(rec.id, "")}); err != nil {
				err = fmt.Errorf("deletion: %w", err)
			}
		}
	case recordResource:
		rec.resource = new(pb.Resource)
		if err = proto.Unmarshal(body, rec.resource); err != nil {
			return rec, fmt.Errorf("resource: %w", err)
		}
		rec.index, err = rec.resource.ModifyIndex, resource.CheckResource(rec.resource)
	default:
		return rec, fmt.Errorf("unknown kind %q; a newer version of wanfed may have written it", kind)
	}
	if err == nil && rec.index > storeIndex {
		err = fmt.Errorf("index %d of %v is above the store's, %d", rec.index, rec, storeIndex)
	}
	return rec, err
}

// decodeIndexed decodes a body that has a number and the message m. Errors
// refer to the record by noun.
func decodeIndexed(body []byte, noun string, m proto.Message) (uint64, error) {
	v, n := binary.Uvarint(body)
	if n <= 0 {
		return 0, fmt.Errorf("a %s without its index", noun)
	}
	if err := proto.Unmarshal(body[n:], m); err != nil {
		return 0, fmt.Errorf("%s: %w", noun, err)
	}
	return v, nil
}

// readRecord reads the next record from r, and stores the body in buf. The
// memory for a large body grows with the bytes that were read, not with the
// length in the record.
func readRecord(r *bufio.Reader, buf *bytes.Buffer) (kind byte, err error) {
	if kind, err = r.ReadByte(); err != nil {
		return 0, truncated(err)
	}
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return 0, truncated(err)
	}
	if n > maxRecord {
		return 0, fmt.Errorf("its length, %d bytes, is above %d", n, maxRecord)
	}
	buf.Reset()
	if _, err := io.CopyN(buf, r, int64(n)); err != nil {
		return 0, truncated(err)
	}
	return kind, nil
}

func truncated(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the snapshot ends here, before its end record: %w", io.ErrUnexpectedEOF)
	}
	return err
}

func uvarint(body []byte) (uint64, error) {
	v, n := binary.Uvarint(body)
	if n <= 0 || n != len(body) {
		return 0, errors.New("record does not contain exactly one number")
	}
	return v, nil
}

// checkEnd checks the body of the end record in a snapshot of count resources,
// and that r ends after the record.
func checkEnd(r *bufio.Reader, body []byte, count uint64) error {
	recorded, err := uvarint(body)
	if err != nil {
		return err
	}
	if recorded != count {
		return fmt.Errorf("the snapshot has %d resources, but its end record has %d", count, recorded)
	}
	if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
		return errors.New("there is data after the end record")
	}
	return nil
}
