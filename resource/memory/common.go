// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
)

// common is what many resources have in common. It is immutable.
type common struct {
	typ     *pb.Type
	tenancy *pb.Tenancy
	url     string // of the data's type
	prefix  string // how the keys begin: all but the name

	wireID, wireURL []byte // the fields of pb.ID and Any, as protobuf has them
}

// commonKey is what tells one from another.
type commonKey struct {
	group, version, kind string
	partition, namespace string
	tenancy              bool
	url                  string
}

// commons are those that new rows can share. Who uses it must not do so from two goroutines at once.
type commons map[commonKey]*common

// maxCommons bounds how many are remembered: all are forgotten then, but by the rows that have them.
const maxCommons = 4096

// of returns what r has in common with others.
func (all commons) of(r *pb.Resource) *common {
	typ, tenancy := r.Id.Type, r.Id.Tenancy
	key := commonKey{
		typ.GetGroup(), typ.GetGroupVersion(), typ.GetKind(), tenancy.GetPartition(), tenancy.GetNamespace(), tenancy != nil,
		r.Data.GetTypeUrl(),
	}
	if c := all[key]; c != nil {
		return c
	}
	if len(all) >= maxCommons {
		clear(all)
	}
	for _, s := range []*string{&key.group, &key.version, &key.kind, &key.partition, &key.namespace, &key.url} {
		*s = strings.Clone(*s)
	}
	c := &common{
		typ: &pb.Type{Group: key.group, GroupVersion: key.version, Kind: key.kind},
		url: key.url,
	}
	if key.tenancy {
		c.tenancy = &pb.Tenancy{Partition: key.partition, Namespace: key.namespace}
	}
	id := &pb.ID{Type: c.typ, Tenancy: c.tenancy}
	c.prefix = spaceKey(id)
	var err error
	if c.wireID, err = (proto.MarshalOptions{Deterministic: true}).Marshal(id); err != nil {
		panic(fmt.Errorf("a stored resource's id cannot be encoded: %w", err))
	}
	c.wireURL = appendField(nil, fieldURL, []byte(c.url))
	all[key] = c
	return c
}

// hasUnknown says whether r has fields that a row has no place for.
func hasUnknown(r *pb.Resource) bool {
	return len(r.ProtoReflect().GetUnknown()) > 0 || len(r.Id.ProtoReflect().GetUnknown()) > 0 ||
		len(r.Id.Type.ProtoReflect().GetUnknown()) > 0 ||
		r.Id.Tenancy != nil && len(r.Id.Tenancy.ProtoReflect().GetUnknown()) > 0 ||
		r.Data != nil && len(r.Data.ProtoReflect().GetUnknown()) > 0
}
