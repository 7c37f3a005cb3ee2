// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"hash/maphash"
	"iter"
	"maps"
)

// nameParts is in how many parts names are. A change copies one, which of 10,000 names has 40.
const nameParts = 256

var nameSeed = maphash.MakeSeed()

// names maps names to targets. It is immutable; what differs is made by a draft and shares all parts that are the same. The zero
// value is empty.
type names [nameParts]map[string]*target

// find takes as long for many names as for few.
func (n *names) find(name []byte) *target {
	return n[maphash.Bytes(nameSeed, name)%nameParts][string(name)]
}

func (n *names) all() iter.Seq[*target] {
	return func(yield func(*target) bool) {
		for _, part := range n {
			for _, t := range part {
				if !yield(t) {
					return
				}
			}
		}
	}
}

// draft is names that are still being changed.
type draft struct {
	names
	own [nameParts]bool // parts that were copied
}

func (d *draft) get(name string) *target { return d.names.find([]byte(name)) }

// set maps name to t; nil takes it out.
func (d *draft) set(name string, t *target) {
	i := maphash.String(nameSeed, name) % nameParts
	if !d.own[i] {
		d.names[i], d.own[i] = maps.Clone(d.names[i]), true
	}
	switch {
	case t == nil:
		delete(d.names[i], name)
	case d.names[i] == nil:
		d.names[i] = map[string]*target{name: t}
	default:
		d.names[i][name] = t
	}
}
