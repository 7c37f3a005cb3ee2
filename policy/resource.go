// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// Type is the type of policies. It is federated.
var Type = &pb.Type{Group: "policy", GroupVersion: "v1", Kind: "Policy"}

const (
	// Anonymous is the name of the policy of callers without a certificate.
	Anonymous = "anonymous"
	// maxRules bounds the rules of a policy, and maxPrefix the bytes of a prefix.
	maxRules  = 256
	maxPrefix = resource.MaxUTF8NameLen
)

// Register adds Type to a registry.
func Register(g *resource.Registry) error {
	return g.Register(resource.Registration{
		Type: Type, Message: &pb.Policy{}, Scope: resource.ScopeCluster, Federated: true, CheckName: checkName,
		Validate: resource.ValidateData(func(p *pb.Policy) error { _, err := compile(p); return err }),
		Authorize: func(p tlsutil.Peer, verb resource.Verb, _ *pb.Resource) error {
			if needs(verb) == read || p.Role == tlsutil.RoleOperator {
				return nil
			}
			return errors.New("only operators may change policies")
		},
	})
}

// checkName returns an ErrInvalid unless name is "user" or "user.datacenter".
func checkName(name string) error {
	user, dc, found := strings.Cut(name, ".")
	err := tlsutil.CheckLabel(user)
	if err == nil && found {
		err = tlsutil.CheckLabel(dc)
	}
	if err != nil {
		return fmt.Errorf("%w name %.130q: must be the node in a user's certificate, or node.datacenter: %w",
			resource.ErrInvalid, name, err)
	}
	return nil
}

// compile returns the rules of a policy, or the first fault.
func compile(p *pb.Policy) (rules, error) {
	if n := len(p.GetRules()); n > maxRules {
		return nil, fmt.Errorf("data.rules has %d rules: more than %d", n, maxRules)
	}
	out := make(rules, 0, len(p.GetRules()))
	for i, r := range p.GetRules() {
		types, err := parsePattern(r.GetType())
		if err != nil {
			return nil, fmt.Errorf("data.rules[%d].%w", i, err)
		}
		a := slices.Index(accessNames, r.GetAccess())
		switch {
		case a < 0:
			return nil, fmt.Errorf("data.rules[%d].access %.20q: must be %s", i, r.GetAccess(), strings.Join(accessNames, ", "))
		case slices.ContainsFunc(out, func(o rule) bool { return o.pattern == types && o.prefix == r.GetPrefix() }):
			return nil, fmt.Errorf("data.rules[%d]: another rule has the same type and prefix", i)
		case len(r.GetPrefix()) > maxPrefix:
			return nil, fmt.Errorf("data.rules[%d].prefix has %d bytes: more than %d", i, len(r.GetPrefix()), maxPrefix)
		}
		out = append(out, rule{types, r.GetPrefix(), access(a)})
	}
	out.sort()
	return out, nil
}
