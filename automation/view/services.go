// SPDX-License-Identifier: MPL-2.0

package view

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
)

// instanceState is an instance of a service as it was rendered last. It is
// immutable, except for entry.
type instanceState struct {
	id      string // of the part
	name    string // of the service
	tags    []string
	node    *record
	passing bool
	part    *part // without metadata of a user
	render  func() api.ServiceEntry
	entry   *api.ServiceEntry // for filters; nil: not needed yet
}

// instanceJSON is an element of the variable "services". The order of the fields
// is the order of their names.
type instanceJSON struct {
	Address             string            `json:"address"`
	UserMeta            struct{}          `json:"cts_user_defined_meta"`
	ID                  string            `json:"id"`
	Kind                string            `json:"kind"`
	Meta                map[string]string `json:"meta"`
	Name                string            `json:"name"`
	Namespace           string            `json:"namespace"`
	Node                string            `json:"node"`
	NodeAddress         string            `json:"node_address"`
	NodeDatacenter      string            `json:"node_datacenter"`
	NodeID              string            `json:"node_id"`
	NodeMeta            map[string]string `json:"node_meta"`
	NodeTaggedAddresses map[string]string `json:"node_tagged_addresses"`
	Port                uint32            `json:"port"`
	Status              string            `json:"status"`
	Tags                []string          `json:"tags"`
}

// render returns the current state of an instance, or nil if it is absent.
func (c *catalogMirror) render(i *instance) *instanceState {
	service, node := i.records.first(), i.node.records.first()
	if service == nil || node == nil || !owns(node, service) {
		return nil
	}
	s, n := service.data.(*pb.Service), node.data.(*pb.Node)
	checks := slices.Concat(i.node.checksOf("", node), i.node.checksOf(s.Id, service))
	status := worst(checks)
	tags := slices.Sorted(slices.Values(s.Tags))
	dc := c.dcOf(n)
	key := s.Id + "." + n.Node + "." + dc
	// Two instances have one key if an id or the name of a node has dots.
	id := key + "\x00" + n.Node
	return &instanceState{
		id: id, name: s.Service, tags: tags, node: node, passing: status == api.CheckPassing,
		part: newPart(key, instanceJSON{
			Address: cmp.Or(s.Address, n.Address), ID: s.Id, Kind: s.Kind, Meta: orEmpty(s.Meta), Name: s.Service,
			Node: n.Node, NodeAddress: n.Address, NodeDatacenter: dc, NodeID: n.Id, NodeMeta: orEmpty(n.Meta),
			NodeTaggedAddresses: orEmpty(n.TaggedAddresses), Port: s.Port, Status: status,
			Tags: append([]string{}, tags...),
		}),
		render: func() api.ServiceEntry {
			out := api.ServiceEntry{Node: api.FromNode(n, dc, api.Indexes{Modify: node.index}),
				Service: api.FromService(s, api.Indexes{Modify: service.index})}
			for _, r := range checks {
				check := r.data.(*pb.Check)
				var tags []string
				if check.ServiceId != "" {
					tags = s.Tags
				}
				out.Checks = append(out.Checks, api.FromCheck(check, tags, api.Indexes{Modify: r.index}))
			}
			return out
		},
	}
}

// worst returns the worst status of checks.
func worst(checks []*record) string {
	out := api.CheckPassing
	for _, r := range checks {
		switch status := r.data.(*pb.Check).Status; {
		case status == api.CheckCritical:
			return status
		case status != api.CheckPassing:
			out = status
		}
	}
	return out
}

// setInstance adds or changes an instance in a view of kind "services", or
// removes it if the view does not select it any more.
func (v *view) setInstance(s *instanceState) {
	if !s.passing && !v.anyStatus {
		v.remove(s.id)
		return
	}
	if v.filter != nil {
		if s.entry == nil {
			s.entry = new(s.render())
		}
		ok, err := v.filter.Matches(*s.entry)
		if v.setError(s.id, err); err != nil {
			return
		}
		if !ok {
			v.remove(s.id)
			return
		}
	}
	p := s.part
	if len(v.userMeta) > 0 {
		p = p.withUserMeta(v.userMeta)
	}
	v.setPart(s.id, p)
}

// noUserMeta precedes the metadata of a user in an instanceJSON. In a string, it
// would have backslashes.
var noUserMeta = []byte(`,"cts_user_defined_meta":{}`)

// withUserMeta returns a copy of the part of an instance with the JSON of the
// metadata of a user.
func (p *part) withUserMeta(meta json.RawMessage) *part {
	i := bytes.Index(p.text, noUserMeta) + len(noUserMeta) - len("{}")
	return digested(p.key, slices.Concat(p.text[:i], meta, p.text[i+len("{}"):]))
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}
