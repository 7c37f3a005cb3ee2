// SPDX-License-Identifier: MPL-2.0

package view

import (
	"github.com/wanfed/wanfed/api/pb"
)

// recordMirror has the resources of one stream. Each resource is a part of the
// views that select its name.
type recordMirror struct {
	records map[string]*record
	dirty   map[string]struct{}
	views   selectors
	render  func(r *record) (*part, error)
}

func newRecordMirror(render func(*record) (*part, error)) *recordMirror {
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
		var err error
		for v := range m.views.all(name, m.views.matching(name)) {
			if r := m.records[name]; p == nil && err == nil && r != nil {
				p, err = m.render(r)
			}
			v.setResult(name, p, err)
		}
	}
	clear(m.dirty)
}

func (m *recordMirror) add(v *view) {
	m.views.add(v)
	for name, r := range m.records {
		if v.match(name) {
			p, err := m.render(r)
			v.setResult(name, p, err)
		}
	}
}

func (m *recordMirror) remove(v *view) { m.views.remove(v) }

// renderKey renders an entry of the key-value store. Bytes that are not UTF-8
// become U+FFFD, because strings of Terraform are Unicode.
func renderKey(r *record) (*part, error) {
	return newPart(r.name, string(r.data.(*pb.KVEntry).Value)), nil
}
