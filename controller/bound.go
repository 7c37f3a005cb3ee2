// SPDX-License-Identifier: MPL-2.0

package controller

import (
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/wanfed/wanfed/api/pb"
)

// ReferencesKey is the metadata key of the bound references of a computed
// resource. The value has one reference per resource, separated by spaces. A
// reference is group/version/Kind/partition/namespace/name, with each part
// escaped as a path segment of a URL.
const ReferencesKey = "boundReferences"

// References collects the resources that contributed to a computed one. The
// zero value is empty. A References is not safe for concurrent use.
type References struct{ refs map[string]bool }

// Add records resources. Nil resources have no effect.
func (b *References) Add(rs ...*pb.Resource) {
	for _, r := range rs {
		if r != nil {
			b.AddID(r.GetId())
		}
	}
}

// AddID records a resource that may be absent. Its creation then reconciles the
// computed resource.
func (b *References) AddID(id *pb.ID) {
	if b.refs == nil {
		b.refs = make(map[string]bool)
	}
	k, t := keyOf(id), id.GetType()
	parts := []string{t.GetGroup(), t.GetGroupVersion(), t.GetKind(), k.partition, k.namespace, k.name}
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	b.refs[strings.Join(parts, "/")] = true
}

// Store replaces the bound references of r, in its metadata. Equal collections
// store equal values. The caller then writes r.
func (b *References) Store(r *pb.Resource) {
	if len(b.refs) == 0 {
		delete(r.GetMetadata(), ReferencesKey)
		return
	}
	if r.Metadata == nil {
		r.Metadata = make(map[string]string)
	}
	r.Metadata[ReferencesKey] = strings.Join(slices.Sorted(maps.Keys(b.refs)), " ")
}

// BoundReferences returns the bound references of r. It omits invalid ones.
func BoundReferences(r *pb.Resource) []*pb.ID {
	var ids []*pb.ID
next:
	for ref := range strings.FieldsSeq(r.GetMetadata()[ReferencesKey]) {
		parts := strings.Split(ref, "/")
		if len(parts) != 6 {
			continue
		}
		for i, p := range parts {
			var err error
			if parts[i], err = url.PathUnescape(p); err != nil || parts[i] == "" || strings.Contains(parts[i], "\x00") {
				continue next
			}
		}
		ids = append(ids, &pb.ID{
			Type:    &pb.Type{Group: parts[0], GroupVersion: parts[1], Kind: parts[2]},
			Tenancy: &pb.Tenancy{Partition: parts[3], Namespace: parts[4]},
			Name:    parts[5],
		})
	}
	return ids
}
