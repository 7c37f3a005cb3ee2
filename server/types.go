// SPDX-License-Identifier: MPL-2.0

package server

import (
	"errors"

	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/document"
	"github.com/wanfed/wanfed/enroll"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/kv"
	"github.com/wanfed/wanfed/lease"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/replication"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/revocation"
	"github.com/wanfed/wanfed/session"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/trust"
)

// types has the functions that register the types of resources. A new type
// needs only a line here: see docs/new-resource-type.md.
var types = []func(*resource.Registry) error{
	resource.Register,
	catalog.Register,
	document.Register,
	enroll.Register,
	federation.Register,
	kv.Register,
	lease.Register,
	policy.Register,
	replication.Register,
	session.Register,
	task.Register,
}

// newRegistry returns a registry of all types. id verifies revocation lists and
// changes of the trusted CAs.
func newRegistry(id *tlsutil.Identity) (*resource.Registry, error) {
	r := resource.NewRegistry()
	errs := []error{revocation.Register(r, id), trust.Register(r, id)}
	for _, register := range types {
		errs = append(errs, register(r))
	}
	return r, errors.Join(errs...)
}
