// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
)

// ID names a resource of the default tenancy, whatever its uid.
func ID(typ *pb.Type, name string) *pb.ID {
	return &pb.ID{Name: name, Type: typ, Tenancy: FillTenancy(nil)}
}

// WithData returns a copy of r with other data and a new generation: what to Put, expecting r.Version.
func WithData(r *pb.Resource, data proto.Message) (*pb.Resource, error) {
	r = proto.CloneOf(r)
	return r, SetData(r, data)
}
