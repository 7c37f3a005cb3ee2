// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// access is what a rule permits. A higher value includes the lower ones.
type access int

const (
	deny access = iota
	read
	write
)

// accessNames are the values of PolicyRule.access.
var accessNames = []string{deny: "deny", read: "read", write: "write"}

func (a access) String() string { return accessNames[a] }

// needs returns the access that a verb needs.
func needs(v resource.Verb) access {
	if v == resource.VerbRead || v == resource.VerbList {
		return read
	}
	return write
}

// pattern selects types. An empty part selects every value.
type pattern struct{ group, version, kind string }

func (p pattern) matches(t *pb.Type) bool {
	return (p.group == "" || p.group == t.GetGroup()) && (p.kind == "" || p.kind == t.GetKind()) &&
		(p.version == "" || p.version == t.GetGroupVersion())
}

// parsePattern parses "group/version/Kind", "group/version/*", "group/*" or "*".
func parsePattern(s string) (pattern, error) {
	parts := strings.Split(s, "/")
	star := parts[len(parts)-1] == "*"
	if star {
		parts = parts[:len(parts)-1]
	}
	if slices.Contains(parts, "") || slices.Contains(parts, "*") || len(parts) > 3 || !star && len(parts) < 3 || star && len(parts) == 3 {
		return pattern{}, fmt.Errorf("type %.100q: must be group/version/Kind, group/version/*, group/* or *", s)
	}
	parts = append(parts, "", "", "")
	return pattern{parts[0], parts[1], parts[2]}, nil
}

// specificity returns the number of parts that p requires.
func (p pattern) specificity() int {
	n := 0
	for _, part := range []string{p.group, p.version, p.kind} {
		if part != "" {
			n++
		}
	}
	return n
}

type rule struct {
	pattern
	prefix string
	access access
}

// rules are ordered: the first rule that matches decides. A rule with a longer
// prefix comes first, and among equal prefixes the rule with the more specific
// type.
type rules []rule

func (rs rules) sort() {
	slices.SortStableFunc(rs, func(a, b rule) int {
		if n := len(b.prefix) - len(a.prefix); n != 0 {
			return n
		}
		return b.specificity() - a.specificity()
	})
}

// permits reports whether the rules permit a. For a list, every name that begins
// with the prefix of the list must be permitted.
func (rs rules) permits(a resource.Access) bool {
	needed, list := needs(a.Verb), a.Verb == resource.VerbList
	for i := range rs {
		r := &rs[i]
		switch {
		case !r.matches(a.Type):
		case strings.HasPrefix(a.Name, r.prefix):
			return r.access >= needed
		case list && r.access < needed && strings.HasPrefix(r.prefix, a.Name):
			return false // some names in the result are refused
		}
	}
	return false
}

// builtin are the rights of the roles in their own datacenter.
var builtin = map[tlsutil.Role]rules{
	tlsutil.RoleOperator:  {{access: write}},
	tlsutil.RoleServer:    {{access: write}},
	tlsutil.RoleClient:    client,
	tlsutil.RoleAnonymous: client,
	tlsutil.RoleSync: {
		{pattern: pattern{group: "sync"}, access: write},
		{pattern: pattern{group: "coordination", kind: "Lease"}, access: write},
		{pattern: pattern{group: "session"}, access: deny},
		{pattern: pattern{group: "catalog"}, prefix: "sync.", access: write}, // its registration, see package catalog
		{access: read},
	},
	tlsutil.RoleGateway: {{pattern: pattern{group: "federation", kind: "FederationState"}, access: read}},
}

// The states of tasks contain secrets.
var client = rules{
	{pattern: pattern{group: "sync", kind: "State"}, access: deny},
	{pattern: pattern{group: "sync", kind: "Chunk"}, access: deny},
	{access: read},
}

// publicGroups are the groups of types that all datacenters may read, in
// addition to federated types.
var publicGroups = []string{"catalog", federationGroup}

// federationGroup is the group of federation states, members, status and metrics.
const federationGroup = "federation"

// public reports whether a only reads what all datacenters may read.
func public(a resource.Access) bool {
	group := a.Type.GetGroup()
	return needs(a.Verb) == read && group != Type.Group && (a.Federated || slices.Contains(publicGroups, group))
}
