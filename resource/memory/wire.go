// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// numbers of pb.Resource's and pb.ID's fields.
const (
	fieldID, fieldOwner, fieldVersion, fieldGeneration, fieldMetadata, fieldStatus, fieldData = 1, 2, 3, 4, 5, 6, 7
	fieldCreate, fieldModify, fieldPrimary                                                    = 100, 101, 102
	fieldUID, fieldName                                                                       = 1, 2
	fieldURL, fieldValue                                                                      = 1, 2
)

// appendWire appends the resource as protobuf has it.
func (w row) appendWire(buf []byte) []byte {
	v := w.open()
	if v.flags&isWhole != 0 {
		return append(buf, v.rest...)
	}
	var room [128]byte
	texts, uid, generation := v.texts(room[:0])
	buf = protowire.AppendTag(buf, fieldID, protowire.BytesType)
	buf = protowire.AppendVarint(buf, uint64(sizeText(uid)+sizeText(len(v.name))+len(w.c.wireID)))
	buf = appendField(buf, fieldUID, texts[:uid])
	buf = appendField(buf, fieldName, bytesOf(v.name))
	buf = append(buf, w.c.wireID...)
	buf = appendField(buf, fieldVersion, texts[generation:])
	buf = appendField(buf, fieldGeneration, texts[uid:generation])
	buf = append(buf, v.rest...)
	if v.flags&hasData != 0 {
		buf = protowire.AppendTag(buf, fieldData, protowire.BytesType)
		buf = protowire.AppendVarint(buf, uint64(len(w.c.wireURL)+sizeText(len(v.value))))
		buf = append(buf, w.c.wireURL...)
		buf = appendField(buf, fieldValue, bytesOf(v.value))
	}
	buf = appendNumber(buf, fieldCreate, v.create)
	buf = appendNumber(buf, fieldModify, v.modify)
	return appendNumber(buf, fieldPrimary, v.primary)
}

// sizeText is what appendField adds, for a number below 16.
func sizeText(n int) int {
	if n == 0 {
		return 0
	}
	return 1 + protowire.SizeBytes(n)
}

func appendField(buf []byte, n protowire.Number, p []byte) []byte {
	if len(p) == 0 {
		return buf
	}
	return protowire.AppendBytes(protowire.AppendTag(buf, n, protowire.BytesType), p)
}

func appendNumber(buf []byte, n protowire.Number, v uint64) []byte {
	if v == 0 {
		return buf
	}
	return protowire.AppendVarint(protowire.AppendTag(buf, n, protowire.VarintType), v)
}

// wireRows makes rows of resources as protobuf has them, one after the other. Those that are like the one before, and as appendWire
// writes them, need no messages for that.
type wireRows struct {
	all commons
	c   *common // of the last; nil before
}

// row checks p as resource.CheckResource does.
func (rows *wireRows) row(p []byte) (row, error) {
	if w, ok := rows.plain(p); ok {
		return w, nil
	}
	r := new(pb.Resource)
	if err := proto.Unmarshal(p, r); err != nil {
		return row{}, fmt.Errorf("resource: %w", err)
	}
	if err := resource.CheckResource(r); err != nil {
		return row{}, err
	}
	w := newRow(rows.all, r)
	rows.c = w.c
	return w, nil
}

// plain does so if p is that simple; else it may be good or bad.
func (rows *wireRows) plain(p []byte) (_ row, ok bool) {
	c := rows.c
	if c == nil {
		return row{}, false
	}
	var in parts
	id, p, _ := takeField(p, fieldID)
	uid, id, _ := takeField(id, fieldUID)
	name, id, _ := takeField(id, fieldName)
	version, p, _ := takeField(p, fieldVersion)
	generation, p, _ := takeField(p, fieldGeneration)
	data, p, has := takeField(p, fieldData)
	if has {
		if !bytes.HasPrefix(data, c.wireURL) {
			return row{}, false
		}
		in.flags = hasData
		in.value, data, _ = takeField(data[len(c.wireURL):], fieldValue)
	}
	in.create, p = takeNumber(p, fieldCreate)
	in.modify, p = takeNumber(p, fieldModify)
	in.primary, p = takeNumber(p, fieldPrimary)
	if len(p) > 0 || len(data) > 0 || !bytes.Equal(id, c.wireID) || len(uid) == 0 || len(name) == 0 || bytes.IndexByte(name, 0) >= 0 ||
		!utf8.Valid(uid) || !utf8.Valid(name) || !utf8.Valid(version) || !utf8.Valid(generation) {
		return row{}, false
	}
	in.name, in.uid, in.version, in.generation = viewOf(name), viewOf(uid), viewOf(version), viewOf(generation)
	return in.row(c), true
}

// takeField returns the field that p begins with, and what follows it, if it is that field; else nothing, and p.
func takeField(p []byte, field protowire.Number) (value, rest []byte, ok bool) {
	if len(p) == 0 || p[0] != byte(field)<<3|byte(protowire.BytesType) {
		return nil, p, false
	}
	value, n := protowire.ConsumeBytes(p[1:])
	if n < 0 {
		return nil, p, false
	}
	return value, p[1+n:], true
}

func takeNumber(p []byte, field protowire.Number) (v uint64, rest []byte) {
	n, typ, size := protowire.ConsumeTag(p)
	if size < 0 || n != field || typ != protowire.VarintType {
		return 0, p
	}
	v, used := protowire.ConsumeVarint(p[size:])
	if used < 0 {
		return 0, p
	}
	return v, p[size+used:]
}
