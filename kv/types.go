// SPDX-License-Identifier: MPL-2.0

package kv

import (
	"fmt"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// EntryType is the type of entries. They are local to a datacenter.
var EntryType = &pb.Type{Group: "kv", GroupVersion: "v1", Kind: "Entry"}

// MaxValue bounds a value, in bytes.
const MaxValue = 512 << 10

// Register adds the type to a registry.
func Register(r *resource.Registry) error {
	return r.Register(resource.Registration{
		Type: EntryType, Message: &pb.KVEntry{}, CheckName: resource.CheckUTF8Name, Validate: validate, Authorize: authorize,
	})
}

func validate(r *pb.Resource) error {
	e, err := resource.Decode[*pb.KVEntry](r)
	if err != nil {
		return err
	}
	if n := len(e.Value); n > MaxValue {
		return fmt.Errorf("data.value of %q has %d bytes: more than %d", r.GetId().GetName(), n, MaxValue)
	}
	return nil
}

// authorize: servers and operators write; who else has a certificate reads, but for gateways, which need none of it. Operators of
// other datacenters come this far only where the server lets them.
func authorize(p tlsutil.Peer, verb resource.Verb, _ *pb.Resource) error {
	reads := verb == resource.VerbRead || verb == resource.VerbList
	switch p.Role {
	case tlsutil.RoleServer, tlsutil.RoleOperator:
		return nil
	case tlsutil.RoleClient:
		if reads {
			return nil
		}
		return fmt.Errorf("%s certificates read keys; only %s and %s certificates write them", p.Role, tlsutil.RoleServer, tlsutil.RoleOperator)
	}
	return fmt.Errorf("%s certificates have nothing to do with keys", p.Role)
}
