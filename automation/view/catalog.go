// SPDX-License-Identifier: MPL-2.0

package view

import (
	"cmp"
	"maps"
	"slices"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
)

// catalogMirror has the catalog of a datacenter. The state depends only on the
// current resources, and not on the order in which the three streams sent them.
// As in catalog.Snapshot, a service or check is absent if its owner is absent or
// was replaced.
type catalogMirror struct {
	dc       string // empty: that of each node
	nodes    map[string]*node
	services map[string]*service
	// Views by the names that they select: of services, of the names of services,
	// and of nodes.
	instanceViews, nameViews, nodeViews selectors

	dirty      map[*instance]struct{}
	dirtyNodes map[*node]struct{}
}

func newCatalogMirror(dc string) *catalogMirror {
	return &catalogMirror{
		dc: dc, nodes: map[string]*node{}, services: map[string]*service{},
		dirty: map[*instance]struct{}{}, dirtyNodes: map[*node]struct{}{},
	}
}

// node has the resources that name a node. Several resources may describe one
// object, because the names of resources are free. The first one in the order of
// names is valid.
type node struct {
	name      string
	records   records
	instances map[string]*instance          // by id
	checks    map[string]map[string]*record // by id of the service or "", and by name of the resource
	views     map[*view]struct{}            // of nodes with a regular expression that matches
}

// instance is an instance of a service.
type instance struct {
	node    *node
	id      string
	records records
	state   *instanceState // nil: absent, or not yet rendered
}

// service has the instances with one name.
type service struct {
	name      string
	instances map[*instance]struct{}
	// Views with a regular expression that matches. It is evaluated when the
	// first instance appears.
	instanceViews, nameViews map[*view]struct{}
}

// records are resources that describe the same object, in the order of names.
type records []*record

// first returns the valid record, or nil.
func (rs records) first() *record {
	if len(rs) == 0 {
		return nil
	}
	return rs[0]
}

// replace replaces old by r. Either may be nil.
func (rs *records) replace(old, r *record) {
	if old != nil {
		*rs = slices.DeleteFunc(*rs, func(o *record) bool { return o == old })
	}
	if r != nil {
		i, _ := slices.BinarySearchFunc(*rs, r.name, func(o *record, name string) int { return cmp.Compare(o.name, name) })
		*rs = slices.Insert(*rs, i, r)
	}
}

// dcOf returns the datacenter of a node.
func (c *catalogMirror) dcOf(n *pb.Node) string { return cmp.Or(c.dc, n.Datacenter) }

// owns reports whether owner owns r, or r has no owner.
func owns(owner, r *record) bool { return r.owner == "" || r.owner == owner.uid }

func (c *catalogMirror) apply(_ int, old, r *record) {
	if old != nil {
		c.change(old, old, nil)
	}
	if r != nil {
		c.change(r, nil, r)
	}
}

// change replaces old by r, of which one is nil. of is the other one.
func (c *catalogMirror) change(of, old, r *record) {
	switch data := of.data.(type) {
	case *pb.Node:
		n := c.node(data.Node)
		n.records.replace(old, r)
		c.touch(n)
	case *pb.Service:
		n := c.node(data.Node)
		i := n.instances[data.Id]
		if i == nil {
			i = &instance{node: n, id: data.Id}
			n.instances[data.Id] = i
		}
		i.records.replace(old, r)
		c.dirty[i] = struct{}{}
	case *pb.Check:
		n := c.node(data.Node)
		if r == nil {
			delete(n.checks[data.ServiceId], of.name)
		} else if n.checks[data.ServiceId] == nil {
			n.checks[data.ServiceId] = map[string]*record{of.name: r}
		} else {
			n.checks[data.ServiceId][of.name] = r
		}
		if i := n.instances[data.ServiceId]; data.ServiceId == "" {
			c.touch(n)
		} else if i != nil {
			c.dirty[i] = struct{}{}
		}
	}
}

// node returns the node with the name, which may have no resource yet.
func (c *catalogMirror) node(name string) *node {
	n := c.nodes[name]
	if n == nil {
		n = &node{name: name, instances: map[string]*instance{}, checks: map[string]map[string]*record{},
			views: c.nodeViews.matching(name)}
		c.nodes[name] = n
	}
	c.dirtyNodes[n] = struct{}{}
	return n
}

// touch marks a node and its instances as changed.
func (c *catalogMirror) touch(n *node) {
	for _, i := range n.instances {
		c.dirty[i] = struct{}{}
	}
}

// checksOf returns the valid checks of a service, or of the node if serviceID is
// "", ordered by id.
func (n *node) checksOf(serviceID string, owner *record) []*record {
	out := make([]*record, 0, len(n.checks[serviceID]))
	for _, r := range n.checks[serviceID] {
		if owns(owner, r) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *record) int {
		return cmp.Or(cmp.Compare(a.data.(*pb.Check).CheckId, b.data.(*pb.Check).CheckId), cmp.Compare(a.name, b.name))
	})
	return out
}

func (c *catalogMirror) flush() {
	names := map[*service]struct{}{} // whose existence or tags may have changed
	for i := range c.dirty {
		c.flushInstance(i, names)
		if len(i.records) == 0 {
			delete(i.node.instances, i.id)
		}
	}
	for s := range names {
		c.flushName(s)
		if len(s.instances) == 0 {
			delete(c.services, s.name)
		}
	}
	for n := range c.dirtyNodes {
		c.flushNode(n)
		maps.DeleteFunc(n.checks, func(_ string, checks map[string]*record) bool { return len(checks) == 0 })
		if len(n.records) == 0 && len(n.instances) == 0 && len(n.checks) == 0 {
			delete(c.nodes, n.name)
		}
	}
	clear(c.dirty)
	clear(c.dirtyNodes)
}

// flushInstance renders an instance into the views of its service. It adds the
// services whose existence or tags may have changed to names.
func (c *catalogMirror) flushInstance(i *instance, names map[*service]struct{}) {
	old := i.state
	i.state = c.render(i)
	if old != nil && (i.state == nil || i.state.name != old.name) {
		s := c.services[old.name]
		delete(s.instances, i)
		for v := range c.instanceViews.all(s.name, s.instanceViews) {
			v.remove(old.id)
		}
		names[s] = struct{}{}
	}
	if i.state == nil {
		return
	}
	s := c.service(i.state.name)
	s.instances[i] = struct{}{}
	for v := range c.instanceViews.all(s.name, s.instanceViews) {
		v.setInstance(i.state)
	}
	if old == nil || old.name != i.state.name || old.node != i.state.node || !slices.Equal(old.tags, i.state.tags) {
		names[s] = struct{}{}
	}
}

// service returns the service with the name, which may have no instance yet.
func (c *catalogMirror) service(name string) *service {
	s := c.services[name]
	if s == nil {
		s = &service{name: name, instances: map[*instance]struct{}{},
			instanceViews: c.instanceViews.matching(name), nameViews: c.nameViews.matching(name)}
		c.services[name] = s
	}
	return s
}

// flushName renders the tags of a service.
func (c *catalogMirror) flushName(s *service) {
	var all *part // without a condition for nodes
	for v := range c.nameViews.all(s.name, s.nameViews) {
		if len(v.query.NodeMeta) > 0 {
			v.setPart(s.name, s.tags(v))
			continue
		}
		if all == nil {
			all = s.tags(v)
		}
		v.setPart(s.name, all)
	}
}

// tags returns the part with the tags of the instances that v selects, or nil if
// it selects none.
func (s *service) tags(v *view) *part {
	selected := false
	tags := map[string]struct{}{}
	for i := range s.instances {
		if hasMeta(i.state.node.data.(*pb.Node).Meta, v.query.NodeMeta) {
			selected = true
			for _, tag := range i.state.tags {
				tags[tag] = struct{}{}
			}
		}
	}
	if !selected {
		return nil
	}
	return newPart(s.name, append([]string{}, slices.Sorted(maps.Keys(tags))...))
}

// hasMeta reports whether meta has all pairs of want.
func hasMeta(meta, want map[string]string) bool {
	for key, value := range want {
		if own, ok := meta[key]; !ok || own != value {
			return false
		}
	}
	return true
}

func (c *catalogMirror) add(v *view) {
	switch v.query.Kind {
	case task.KindServices:
		c.instanceViews.add(v)
	case task.KindCatalogServices:
		c.nameViews.add(v)
	case task.KindNodes:
		c.nodeViews.add(v)
	}
	for _, s := range c.services {
		if !v.match(s.name) {
			continue
		}
		switch v.query.Kind {
		case task.KindServices:
			addIf(&s.instanceViews, v)
			for i := range s.instances {
				v.setInstance(i.state)
			}
		case task.KindCatalogServices:
			addIf(&s.nameViews, v)
			v.setPart(s.name, s.tags(v))
		}
	}
	for _, n := range c.nodes {
		if v.query.Kind == task.KindNodes && v.match(n.name) {
			addIf(&n.views, v)
			c.setNode(v, n)
		}
	}
}

func (c *catalogMirror) remove(v *view) {
	c.instanceViews.remove(v)
	c.nameViews.remove(v)
	c.nodeViews.remove(v)
	for _, s := range c.services {
		delete(s.instanceViews, v)
		delete(s.nameViews, v)
	}
	for _, n := range c.nodes {
		delete(n.views, v)
	}
}
