// SPDX-License-Identifier: MPL-2.0

package view

import (
	"bytes"
	"encoding/json"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
)

// recordMirror has the resources of one stream. Each resource is a part of the
// views that select its name.
type recordMirror struct {
	records map[string]*record
	dirty   map[string]struct{}
	views   selectors
	render  func(r *record) *part
}

func newRecordMirror(render func(*record) *part) *recordMirror {
	return &recordMirror{records: map[string]*record{}, dirty: map[string]struct{}{}, render: render}
}

func (m *recordMirror) apply(_ int, old, r *record) {
	if r == nil {
		delete(m.records, old.name)
		m.dirty[old.name] = struct{}{}
		return
	}
	m.records[r.name] = r
	m.dirty[r.name] = struct{}{}
}

func (m *recordMirror) flush() {
	for name := range m.dirty {
		var p *part
		for v := range m.views.all(name, m.views.matching(name)) {
			if r := m.records[name]; p == nil && r != nil {
				p = m.render(r)
			}
			v.setPart(name, p)
		}
	}
	clear(m.dirty)
}

func (m *recordMirror) add(v *view) {
	m.views.add(v)
	for name, r := range m.records {
		if v.match(name) {
			v.setPart(name, m.render(r))
		}
	}
}

func (m *recordMirror) remove(v *view) { m.views.remove(v) }

// renderKey renders an entry of the key-value store. Bytes that are not UTF-8
// become U+FFFD, because strings of Terraform are Unicode.
func renderKey(r *record) *part { return newPart(r.name, string(r.data.(*pb.KVEntry).Value)) }

// renderJSON renders the result of decodeDocument or decodeResource.
func renderJSON(r *record) *part { return newPart(r.name, r.data) }

// resourceJSON is an element of the variable "resources".
type resourceJSON struct {
	Data     any               `json:"data"`
	Metadata map[string]string `json:"metadata"`
}

func decodeResource(r api.Resource) (any, error) {
	data, err := decodeJSON(r.Data)
	return resourceJSON{Data: data, Metadata: orEmpty(r.Metadata)}, err
}

// decodeDocument returns the content of a document.
func decodeDocument(r api.Resource) (any, error) {
	data, err := decodeJSON(r.Data)
	document, _ := data.(map[string]any)
	return document["content"], err
}

// decodeJSON decodes a value without a change of its numbers.
func decodeJSON(text json.RawMessage) (out any, err error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	err = dec.Decode(&out)
	return out, err
}
