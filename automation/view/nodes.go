// SPDX-License-Identifier: MPL-2.0

package view

import (
	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
)

// nodeJSON is an element of the variable "nodes". The order of the fields is the
// order of their names.
type nodeJSON struct {
	Address         string            `json:"address"`
	ID              string            `json:"id"`
	Meta            map[string]string `json:"meta"`
	Name            string            `json:"name"`
	Status          string            `json:"status"`
	TaggedAddresses map[string]string `json:"tagged_addresses"`
}

// flushNode renders a node into the views that select it.
func (c *catalogMirror) flushNode(n *node) {
	for v := range c.nodeViews.all(n.name, n.views) {
		c.setNode(v, n)
	}
}

// setNode adds, changes or removes a node in a view of kind "nodes".
func (c *catalogMirror) setNode(v *view, n *node) {
	r := n.records.first()
	if r == nil {
		v.remove(n.name)
		return
	}
	data := r.data.(*pb.Node)
	ok, err := v.filter.Matches(api.FromNode(data, c.dcOf(data), api.Indexes{Modify: r.index}))
	if v.setError(n.name, err); err != nil {
		return
	}
	if !ok || !hasMeta(data.Meta, v.query.NodeMeta) {
		v.remove(n.name)
		return
	}
	v.setPart(n.name, newPart(n.name, nodeJSON{
		Address: data.Address, ID: data.Id, Meta: orEmpty(data.Meta), Name: n.name,
		Status: worst(n.checksOf("", r)), TaggedAddresses: orEmpty(data.TaggedAddresses),
	}))
}
