// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"unsafe"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
)

// row is a stored resource in one piece of memory, which has no pointers: as messages it would take three times as much, and the
// collector would have to look at each. Who asks gets messages made of it. It is immutable.
//
// b is the resource's key, a byte of flags, and then, each if its flag says so and numbers as uvarints:
//
//	the ModifyIndex
//	with isWhole alone: the rest is the whole resource as protobuf has it
//	the CreateIndex
//	uid and generation: packed in 16 bytes, or the length and the text
//	hasVersion    length and text of a version that is not the ModifyIndex
//	hasPrimary    the PrimaryModifyIndex
//	hasRest       the length of owner, metadata and status, and these as a pb.Resource that has nothing else
//	hasData       the value of the data, to the end
type row struct {
	c *common
	b string
}

const (
	isWhole = 1 << iota // some part has fields that this version of wanfed does not know
	packedUID
	packedGeneration
	hasVersion
	hasPrimary
	hasRest
	hasData
)

// key is where the row is stored: its idKey.
func (w row) key() string { return w.b[:w.body()] }

func (w row) body() int {
	n := len(w.c.prefix)
	return n + strings.IndexByte(w.b[n:], 0) + 1
}

func (w row) name() string { return w.b[len(w.c.prefix) : w.body()-1] }

func (w row) modifyIndex() uint64 {
	index, _ := uvarintOf(w.b[w.body()+1:])
	return index
}

// owned says whether the resource may have an owner.
func (w row) owned() bool { return w.b[w.body()]&(isWhole|hasRest) != 0 }

// newRow stores r. It panics if r cannot be encoded: then nobody can have sent it.
func newRow(all commons, r *pb.Resource) row {
	c := all.of(r)
	var rest *pb.Resource
	var flags byte
	switch {
	case hasUnknown(r):
		flags, rest = isWhole, r
	case r.Owner != nil || len(r.Metadata) > 0 || len(r.Status) > 0:
		flags, rest = hasRest, &pb.Resource{Owner: r.Owner, Metadata: r.Metadata, Status: r.Status}
	}
	p := parts{
		name: r.Id.Name, uid: r.Id.Uid, generation: r.Generation, version: r.Version, flags: flags,
		create: r.CreateIndex, modify: r.ModifyIndex, primary: r.PrimaryModifyIndex,
	}
	if rest != nil {
		p.rest = mustMarshal(rest)
	}
	if r.Data != nil {
		p.flags |= hasData
		p.value = r.Data.Value
	}
	return p.row(c)
}

// parts are what a row is made of. Its strings may be views of memory that is used again.
type parts struct {
	name, uid, generation, version string
	flags                          byte // isWhole, hasRest, hasData
	create, modify, primary        uint64
	rest, value                    []byte
}

func (p *parts) row(c *common) row {
	var uid, generation [16]byte
	var number [20]byte
	buf := make([]byte, 0, 64)
	if p.flags&isWhole != 0 {
		buf = binary.AppendUvarint(append(buf, isWhole), p.modify)
		return join(c, p.name, buf, p.rest)
	}
	if pack(&uid, p.uid) {
		p.flags |= packedUID
	}
	if pack(&generation, p.generation) {
		p.flags |= packedGeneration
	}
	if p.version != string(strconv.AppendUint(number[:0], p.modify, 10)) {
		p.flags |= hasVersion
	}
	if p.primary != 0 {
		p.flags |= hasPrimary
	}
	buf = append(buf, p.flags)
	buf = binary.AppendUvarint(binary.AppendUvarint(buf, p.modify), p.create)
	buf = appendText(buf, p.flags&packedUID != 0, &uid, p.uid)
	buf = appendText(buf, p.flags&packedGeneration != 0, &generation, p.generation)
	if p.flags&hasVersion != 0 {
		buf = append(binary.AppendUvarint(buf, uint64(len(p.version))), p.version...)
	}
	if p.flags&hasPrimary != 0 {
		buf = binary.AppendUvarint(buf, p.primary)
	}
	if p.flags&hasRest != 0 {
		buf = append(binary.AppendUvarint(buf, uint64(len(p.rest))), p.rest...)
	}
	return join(c, p.name, buf, p.value)
}

func join(c *common, name string, head, tail []byte) row {
	var b strings.Builder
	b.Grow(len(c.prefix) + len(name) + 1 + len(head) + len(tail))
	b.WriteString(c.prefix)
	b.WriteString(name)
	b.WriteByte(0)
	b.Write(head)
	b.Write(tail)
	return row{c, b.String()}
}

func appendText(buf []byte, packed bool, as *[16]byte, text string) []byte {
	if packed {
		return append(buf, as[:]...)
	}
	return append(binary.AppendUvarint(buf, uint64(len(text))), text...)
}

// pieces is a row taken apart.
type pieces struct {
	flags                          byte
	create, modify, primary        uint64
	name, uid, generation, version string // uid and generation as they are stored
	rest, value                    string
}

func (w row) open() pieces {
	at := w.body()
	v := pieces{name: w.b[len(w.c.prefix) : at-1], flags: w.b[at]}
	s := w.b[at+1:]
	v.modify, s = uvarintOf(s)
	if v.flags&isWhole != 0 {
		v.rest = s
		return v
	}
	v.create, s = uvarintOf(s)
	v.uid, s = textOf(s, v.flags&packedUID != 0)
	v.generation, s = textOf(s, v.flags&packedGeneration != 0)
	if v.flags&hasVersion != 0 {
		v.version, s = textOf(s, false)
	}
	if v.flags&hasPrimary != 0 {
		v.primary, s = uvarintOf(s)
	}
	if v.flags&hasRest != 0 {
		v.rest, s = textOf(s, false)
	}
	v.value = s
	return v
}

func textOf(s string, packed bool) (text, rest string) {
	n := uint64(16)
	if !packed {
		n, s = uvarintOf(s)
	}
	return s[:n], s[n:]
}

func uvarintOf(s string) (v uint64, rest string) {
	for i, shift := 0, 0; ; i, shift = i+1, shift+7 {
		v |= uint64(s[i]&0x7f) << shift
		if s[i] < 0x80 {
			return v, s[i+1:]
		}
	}
}

// bytesOf is s, which its user must not write to.
func bytesOf(s string) []byte {
	return unsafe.Slice(unsafe.StringData(s), len(s))[:len(s):len(s)]
}

// viewOf is p, until somebody writes to it.
func viewOf(p []byte) string { return unsafe.String(unsafe.SliceData(p), len(p)) }

// texts appends uid, generation and version as messages have them.
func (v *pieces) texts(buf []byte) (_ []byte, uid, generation int) {
	if v.flags&packedUID != 0 {
		buf = unpack(buf, v.uid)
	} else {
		buf = append(buf, v.uid...)
	}
	uid = len(buf)
	if v.flags&packedGeneration != 0 {
		buf = unpack(buf, v.generation)
	} else {
		buf = append(buf, v.generation...)
	}
	generation = len(buf)
	if v.flags&hasVersion != 0 {
		return append(buf, v.version...), uid, generation
	}
	return strconv.AppendUint(buf, v.modify, 10), uid, generation
}

// resource is the row as a message. All that is made of one row share its data, which nobody writes to.
func (w row) resource() *pb.Resource {
	v := w.open()
	if v.flags&isWhole != 0 {
		r := new(pb.Resource)
		mustUnmarshal(v.rest, r)
		return r
	}
	var room [128]byte
	buf, uid, generation := v.texts(room[:0])
	version := len(buf)
	text := string(append(buf, v.name...)) // a copy, so that who keeps a name does not keep the data
	id := &pb.ID{Uid: text[:uid], Name: text[version:], Type: w.c.typ, Tenancy: w.c.tenancy}
	both := new(struct {
		r    pb.Resource
		data anypb.Any
	})
	r := &both.r
	if v.flags&hasRest != 0 {
		mustUnmarshal(v.rest, r)
	}
	r.Id, r.Generation, r.Version = id, text[uid:generation], text[generation:version]
	r.CreateIndex, r.ModifyIndex, r.PrimaryModifyIndex = v.create, v.modify, v.primary
	if v.flags&hasData != 0 {
		both.data.TypeUrl, both.data.Value = w.c.url, bytesOf(v.value)
		r.Data = &both.data
	}
	return r
}

// at is the row as if it had been written at index.
func (w row) at(index uint64) row {
	v := w.open()
	p := parts{name: v.name, flags: v.flags & (isWhole | hasRest | hasData), create: v.create, modify: index, primary: v.primary}
	if v.flags&isWhole != 0 {
		r := w.resource()
		r.Version, r.ModifyIndex = strconv.FormatUint(index, 10), index
		p.rest = mustMarshal(r)
		return p.row(w.c)
	}
	v.modify, v.flags = index, v.flags&^hasVersion
	var room [128]byte
	texts, uid, generation := v.texts(room[:0])
	text := string(texts)
	p.uid, p.generation, p.version = text[:uid], text[uid:generation], text[generation:]
	p.rest, p.value = bytesOf(v.rest), bytesOf(v.value)
	return p.row(w.c)
}

func mustMarshal(r *pb.Resource) []byte {
	b, err := proto.Marshal(r)
	if err != nil {
		panic(fmt.Errorf("a stored resource cannot be encoded: %w", err)) // it was decoded
	}
	return b
}

func mustUnmarshal(s string, r *pb.Resource) {
	if err := proto.Unmarshal(bytesOf(s), r); err != nil {
		panic(fmt.Errorf("a stored resource is damaged: %w", err)) // newRow has encoded it
	}
}
