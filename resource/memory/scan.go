// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Totals say what a snapshot holds.
type SnapshotTotals struct {
	Index     uint64 // the store's
	Resources int
	Types     []TypeTotal // those with resources, by name
}

// TypeTotal says what a snapshot holds of one type.
type TypeTotal struct {
	Type      string // group/version/Kind
	Resources int
	Bytes     int64 // encoded
}

// Scan reads a snapshot to its end and checks all that Restore does; besides, that no resource is there twice. It keeps
// one resource at a time. What it accepts, Restore restores.
func ScanSnapshot(r io.Reader) (SnapshotTotals, error) {
	out := SnapshotTotals{}
	types := map[string]*TypeTotal{}
	last, like, t := "", (*common)(nil), (*TypeTotal)(nil) // of the last resource
	err := scan(r, sink{
		begin:   func(index uint64) error { out.Index = index; return nil },
		typ:     func(*pb.Type, uint64) error { return nil },
		floor:   func(*pb.Type, uint64) error { return nil },
		deleted: func(*pb.ID, uint64) error { return nil },
		resource: func(w row, size int) error {
			key := w.key()
			if out.Resources > 0 && key <= last {
				return fmt.Errorf("%s is there twice, or not in order", resource.IDString(w.resource().Id))
			}
			last = key
			if w.c != like {
				like = w.c
				name := resource.TypeString(w.c.typ)
				if t = types[name]; t == nil {
					t = &TypeTotal{Type: name}
					types[name] = t
				}
			}
			t.Resources++
			t.Bytes += int64(size)
			out.Resources++
			return nil
		},
	})
	if err != nil {
		return SnapshotTotals{}, fmt.Errorf("read snapshot: %w", err)
	}
	for _, t := range types {
		out.Types = append(out.Types, *t)
	}
	slices.SortFunc(out.Types, func(a, b TypeTotal) int { return strings.Compare(a.Type, b.Type) })
	return out, nil
}

// Rebase writes the snapshot that r streams to w as one of which everything was written at index, which is above whatever
// was: versions and indexes that the resources had, before the snapshot or since, are none that they have now. The types
// that s has are in it too, so that nobody waits in vain for one to change of which nothing is left.
func (s *State) Rebase(w io.Writer, r io.Reader, index uint64) error {
	e := &recordWriter{w: bufio.NewWriter(w)}
	count := uint64(0)
	known := map[string]bool{}
	put := func(typ *pb.Type, _ uint64) error {
		if key := typeKey(typ); !known[key] {
			known[key] = true
			e.message(recordType, binary.AppendUvarint(nil, index), typ) // and no floor: the same
		}
		return e.err
	}
	err := scan(r, sink{
		begin: func(uint64) error {
			e.raw([]byte(snapshotMagic))
			e.record(recordIndex, binary.AppendUvarint(nil, index))
			types := s.db.Load().types.from("")
			for x, ok := types.next(); ok; x, ok = types.next() {
				if err := put(x.typ, 0); err != nil {
					return err
				}
			}
			return e.err
		},
		typ:     put,
		floor:   func(*pb.Type, uint64) error { return nil },
		deleted: func(*pb.ID, uint64) error { return nil },
		resource: func(w row, _ int) error {
			if was := w.modifyIndex(); was >= index {
				return fmt.Errorf("%s was written at %d, not below %d", resource.IDString(w.resource().Id), was, index)
			}
			e.row(w.at(index))
			count++
			return e.err
		},
	})
	if err == nil {
		e.record(recordEnd, binary.AppendUvarint(nil, count))
		if e.err == nil {
			e.err = e.w.Flush()
		}
		err = e.err
	}
	if err != nil {
		return fmt.Errorf("rebase snapshot: %w", err)
	}
	return nil
}

// sink takes the records of a snapshot: begin first, once.
type sink struct {
	begin      func(index uint64) error
	typ, floor func(typ *pb.Type, index uint64) error
	resource   func(w row, size int) error
	deleted    func(id *pb.ID, index uint64) error
}

// scan reads a snapshot to its end, checks each record, and hands it on.
func scan(src io.Reader, to sink) error {
	r := bufio.NewReaderSize(src, snapshotBuffer)
	magic := make([]byte, len(snapshotMagic))
	if _, err := io.ReadFull(r, magic); err != nil || string(magic) != snapshotMagic {
		return fmt.Errorf("it does not begin with %q: no snapshot, or one of a newer version", snapshotMagic)
	}
	in := recordReader{r: r}
	rows := wireRows{all: make(commons)}
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
			err = scanType(p, index, to.typ)
		case recordFloor:
			err = scanType(p, index, to.floor)
		case recordDeleted:
			err = scanDeleted(p, index, to)
		case recordResource:
			count++
			err = scanResource(&rows, p, index, to)
		case recordEnd:
			if err = checkEnd(&in, p, count); err == nil {
				return nil
			}
		default:
			err = fmt.Errorf("kind %q is not known; a newer version of wanfed may have written it", kind)
		}
		if err != nil {
			return fmt.Errorf("record %d: %w", n, err)
		}
	}
}

func scanType(p []byte, storeIndex uint64, to func(*pb.Type, uint64) error) error {
	index, n := binary.Uvarint(p)
	if n <= 0 {
		return errors.New("a type without its index")
	}
	typ := new(pb.Type)
	if err := proto.Unmarshal(p[n:], typ); err != nil {
		return fmt.Errorf("type: %w", err)
	}
	if _, err := newSelection(resource.Query{Type: typ}); err != nil {
		return err
	}
	if index > storeIndex {
		return fmt.Errorf("index %d of type %s is above the store's, %d", index, resource.TypeString(typ), storeIndex)
	}
	return to(typ, index)
}

func scanDeleted(p []byte, storeIndex uint64, to sink) error {
	index, n := binary.Uvarint(p)
	if n <= 0 {
		return errors.New("a deletion without its index")
	}
	id := new(pb.ID)
	if err := proto.Unmarshal(p[n:], id); err != nil {
		return fmt.Errorf("deletion: %w", err)
	}
	if err := resource.CheckOps([]*pb.Op{resource.RemoveOp(id, "")}); err != nil {
		return fmt.Errorf("deletion: %w", err)
	}
	if index > storeIndex {
		return fmt.Errorf("index %d of the deletion of %s is above the store's, %d", index, resource.IDString(id), storeIndex)
	}
	return to.deleted(id, index)
}

func scanResource(rows *wireRows, p []byte, storeIndex uint64, to sink) error {
	w, err := rows.row(p)
	if err != nil {
		return err
	}
	if index := w.modifyIndex(); index > storeIndex {
		return fmt.Errorf("index %d of %s is above the store's, %d", index, resource.IDString(w.resource().Id), storeIndex)
	}
	return to.resource(w, len(p))
}
