// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

func typeOf(s string) *pb.Type {
	parts := strings.Split(s, "/")
	return &pb.Type{Group: parts[0], GroupVersion: parts[1], Kind: parts[2]}
}

// newEngine returns an engine of dc1 with policies, by name. Operators of dc3
// act in dc1 with their certificates, and those of dc4 also by name. Callers of
// dc5 read in dc1.
func newEngine(t testing.TB, policies map[string][]*pb.PolicyRule) *Engine {
	t.Helper()
	e := New(Config{
		DC:            "dc1",
		OperatorsFrom: func() []string { return []string{"dc3"} },
		ForwardFrom:   func() []string { return []string{"dc4"} },
		ReadsFrom:     func() []string { return []string{"dc5"} },
	})
	var all []*pb.Resource
	for name, rules := range policies {
		r, err := resource.NewNamed(Type, name, checkName, &pb.Policy{Rules: rules})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	e.replace(all)
	return e
}

const (
	keys       = "kv/v1/Entry"
	nodes      = "catalog/v1/Node"
	states     = "federation/v1/FederationState"
	documents  = "config/v1/Document"
	tasks      = "sync/v1/Task"
	taskStates = "sync/v1/State"
	sessions   = "session/v1/Session"
	leases     = "coordination/v1/Lease"
	policies   = "policy/v1/Policy"
)

// TestDecideFor_Builtin has the rights of each role, in its own datacenter and in
// another. Each row of the threat model in docs/security.md refers to it.
func TestDecideFor_Builtin(t *testing.T) {
	e := newEngine(t, nil)
	all := []string{keys, nodes, states, documents, tasks, taskStates, sessions, leases, policies}
	for _, tt := range []struct {
		caller      string
		read, write string // types, separated by spaces; "*" means all
	}{
		{"cli/dc1/joe", "*", "*"},
		{"server/dc1/srv1", "*", "*"},
		{"client/dc1/app", "kv catalog federation config sync/v1/Task. session coordination policy", ""},
		{"anonymous/dc1/srv1", "kv catalog federation config sync/v1/Task. session coordination policy", ""},
		{"sync/dc1/s", "kv catalog federation config sync coordination policy", "sync coordination"},
		{"gateway/dc1/gw1", "federation", ""},
		{"user/dc1/joe", "", ""},

		{"cli/dc2/joe", "catalog federation config", ""},
		{"server/dc2/srv1", "catalog federation config", ""},
		{"client/dc2/app", "catalog federation config", ""},
		{"sync/dc2/s", "catalog federation config", ""},
		{"gateway/dc2/gw1", "", ""},
		{"user/dc2/joe", "", ""},
		{"anonymous/dc2/srv1 server/dc2/srv1", "catalog federation config", ""},
		{"client/dc2/app server/dc2/srv1", "catalog federation config", ""},
		{"cli/dc2/joe server/dc2/srv1", "catalog federation config", ""},

		{"cli/dc3/joe", "*", "*"},
		{"cli/dc3/joe server/dc3/srv1", "catalog federation config", ""}, // only its server names it
		{"client/dc3/app", "catalog federation config", ""},
		{"sync/dc3/s", "catalog federation config", ""},
		{"server/dc3/srv1", "catalog federation config", ""},
		{"gateway/dc3/gw1", "", ""},
		{"cli/dc4/joe", "*", "*"},
		{"cli/dc4/joe server/dc4/srv1", "*", "*"},
		{"server/dc4/srv1", "catalog federation config", ""},
		{"client/dc5/app", "kv catalog federation config sync/v1/Task. session coordination policy", ""},
		{"anonymous/dc5/srv1 server/dc5/srv1", "kv catalog federation config sync/v1/Task. session coordination policy", ""},
		{"cli/dc5/joe", "*", ""},
		{"server/dc5/srv1", "catalog federation config", ""},
		{"gateway/dc5/gw1", "", ""},
	} {
		peer, via, named := strings.Cut(tt.caller, " ")
		var c Caller
		c.Peer, _ = Parse(peer)
		if named {
			c.Via, _ = Parse(via)
		}
		for _, name := range all {
			matches := func(list string) bool {
				for f := range strings.FieldsSeq(list) {
					if f == "*" || strings.HasPrefix(name+".", f) {
						return true
					}
				}
				return false
			}
			for verb, list := range map[resource.Verb]string{
				resource.VerbRead: tt.read, resource.VerbList: tt.read,
				resource.VerbWrite: tt.write, resource.VerbDelete: tt.write, resource.VerbWriteStatus: tt.write,
			} {
				a := resource.Access{Verb: verb, Type: typeOf(name), Federated: name == documents || name == states || name == policies}
				err := e.DecideFor(c, a)
				if want := matches(list); (err == nil) != want {
					t.Errorf("DecideFor(%v, %s %s) = %v, want permitted = %v", c, verb, name, err, want)
				}
				if err != nil && !errors.Is(err, resource.ErrDenied) {
					t.Errorf("DecideFor(%v, %s %s) = %v, want ErrDenied", c, verb, name, err)
				}
			}
		}
	}
}

// A named policy permits only what its rules permit, and a list only if all
// names in it are permitted.
func TestDecideFor_Policy(t *testing.T) {
	e := newEngine(t, map[string][]*pb.PolicyRule{
		"joe": {
			{Type: keys, Prefix: "app/", Access: "write"},
			{Type: keys, Prefix: "app/secret/", Access: "deny"},
			{Type: keys, Prefix: "public/", Access: "read"},
			{Type: "catalog/*", Access: "read"},
		},
		"joe.dc3":   {{Type: "*", Access: "read"}},
		"anonymous": {{Type: nodes, Access: "read"}},
	})
	for _, tt := range []struct {
		caller     string
		verb       resource.Verb
		typ, named string
		want       bool
	}{
		{"user/dc1/joe", resource.VerbWrite, keys, "app/a", true},
		{"user/dc1/joe", resource.VerbDelete, keys, "app/", true},
		{"user/dc1/joe", resource.VerbRead, keys, "app/a", true},
		{"user/dc1/joe", resource.VerbList, keys, "app/a", true},
		{"user/dc1/joe", resource.VerbList, keys, "app/secre", false}, // wider than what is permitted
		{"user/dc1/joe", resource.VerbList, keys, "app/", false},
		{"user/dc1/joe", resource.VerbList, keys, "app", false},
		{"user/dc1/joe", resource.VerbList, keys, "", false},
		{"user/dc1/joe", resource.VerbRead, keys, "app/secret/x", false},
		{"user/dc1/joe", resource.VerbWrite, keys, "app/secret/x", false},
		{"user/dc1/joe", resource.VerbRead, keys, "application", false},
		{"user/dc1/joe", resource.VerbRead, keys, "public/x", true},
		{"user/dc1/joe", resource.VerbWrite, keys, "public/x", false},
		{"user/dc1/joe", resource.VerbList, keys, "public/", true},
		{"user/dc1/joe", resource.VerbList, nodes, "", true},
		{"user/dc1/joe", resource.VerbWrite, nodes, "n1", false},
		{"user/dc1/joe", resource.VerbRead, sessions, "x", false},
		{"user/dc1/jane", resource.VerbRead, keys, "app/a", false},
		{"user/dc1/anonymous", resource.VerbRead, nodes, "n1", true}, // a user may have any name
		// The rights of users hold in their own datacenter.
		{"user/dc2/joe", resource.VerbWrite, keys, "app/a", false},
		{"user/dc2/joe", resource.VerbRead, keys, "app/a", false},
		{"user/dc2/joe", resource.VerbRead, nodes, "n1", true},
		// Users of dc3 act in dc1. The policy with the datacenter goes first.
		{"user/dc3/joe", resource.VerbRead, keys, "x", true},
		{"user/dc3/joe", resource.VerbWrite, keys, "app/a", false},
		// A policy replaces the rights of anonymous callers.
		{"anonymous/dc1/srv1", resource.VerbRead, nodes, "n1", true},
		{"anonymous/dc1/srv1", resource.VerbRead, keys, "x", false},
		{"anonymous/dc1/srv1", resource.VerbList, states, "", false},
		// No policy changes the rights of another role.
		{"client/dc1/joe", resource.VerbRead, keys, "x", true},
		{"cli/dc1/joe", resource.VerbWrite, keys, "x", true},
	} {
		p, ok := Parse(tt.caller)
		if !ok {
			t.Fatalf("Parse(%s) = false, want true", tt.caller)
		}
		err := e.DecideFor(Caller{Peer: p}, resource.Access{Verb: tt.verb, Type: typeOf(tt.typ), Name: tt.named})
		if (err == nil) != tt.want {
			t.Errorf("DecideFor(%s, %s %s %q) = %v, want permitted = %v", tt.caller, tt.verb, tt.typ, tt.named, err, tt.want)
		}
	}
}

func TestCompile_Refuses(t *testing.T) {
	many := make([]*pb.PolicyRule, maxRules+1)
	for i := range many {
		many[i] = &pb.PolicyRule{Type: "*", Access: "read"}
	}
	for _, rules := range [][]*pb.PolicyRule{
		{{Type: keys}}, {{Type: keys, Access: "all"}}, {{Access: "read"}}, {{Type: "kv", Access: "read"}},
		{{Type: "kv/v1", Access: "read"}}, {{Type: "*/v1/Entry", Access: "read"}}, {{Type: "kv/v1/Entry/*", Access: "read"}},
		{{Type: "kv/v1/*x", Access: "read"}, {Type: "kv//Entry", Access: "read"}},
		{{Type: keys, Access: "read"}, {Type: keys, Access: "deny"}},
		{{Type: keys, Access: "read", Prefix: strings.Repeat("x", maxPrefix+1)}}, many,
	} {
		if _, err := compile(&pb.Policy{Rules: rules}); err == nil {
			t.Errorf("compile(%v) = nil, want an error", rules[0])
		}
	}
	for _, name := range []string{"", "Joe", "joe.dc1.x", "joe/dc1", "."} {
		if err := checkName(name); !errors.Is(err, resource.ErrInvalid) {
			t.Errorf("checkName(%q) = %v, want ErrInvalid", name, err)
		}
	}
}

// The hook of the type permits only operators to change policies, whatever a
// policy permits.
func TestRegister_OnlyOperatorsWrite(t *testing.T) {
	g := resource.NewRegistry()
	if err := Register(g); err != nil {
		t.Fatal(err)
	}
	reg, err := g.Lookup(Type)
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range tlsutil.Roles {
		err := reg.Authorize(tlsutil.Peer{Role: role, DC: "dc1", Node: "n"}, resource.VerbWrite, nil)
		if want := role == tlsutil.RoleOperator; (err == nil) != want {
			t.Errorf("Authorize(write) of %s = %v, want permitted = %v", role, err, want)
		}
	}
}

// FuzzNamed proves that a server of dc2 names only callers of dc2 that are not
// servers, whatever text it sends.
func FuzzNamed(f *testing.F) {
	server := tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc2", Node: "srv1"}
	for _, s := range []string{"", "cli/dc2/joe", "cli/dc1/joe", "server/dc2/srv1", "anonymous/dc2/srv1", "//", "cli/dc2/a/b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := Named(server, s)
		if err != nil {
			return
		}
		if c.DC != "dc2" || c.Role == tlsutil.RoleServer && c.Peer != server || c.Peer != server && c.Via != server {
			t.Errorf("Named(%q) = %+v, want a caller of dc2", s, c)
		}
		if s != "" && c.Peer.String() != s {
			t.Errorf("Named(%q) = %v, want the same text", s, c.Peer)
		}
	})
}

// FuzzRules proves that the decision about a list agrees with the decisions about
// the names in it.
func FuzzRules(f *testing.F) {
	f.Add("app/", "app/secret/", uint8(1), uint8(0), "app/s", "ecret/x")
	f.Add("", "a", uint8(0), uint8(2), "", "a")
	f.Fuzz(func(t *testing.T, p1, p2 string, a1, a2 uint8, prefix, rest string) {
		rs := rules{{prefix: p1, access: access(a1 % 3)}, {prefix: p2, access: access(a2 % 3)}}
		rs.sort()
		list := rs.permits(resource.Access{Verb: resource.VerbList, Type: typeOf(keys), Name: prefix})
		name := rs.permits(resource.Access{Verb: resource.VerbRead, Type: typeOf(keys), Name: prefix + rest})
		if list && !name {
			t.Errorf("rules %v permit a list of %q, but not a read of %q", rs, prefix, prefix+rest)
		}
	})
}

func TestDecide_NotesAccess(t *testing.T) {
	e, call := newEngine(t, nil), &Call{}
	ctx := WithCall(WithCaller(context.Background(), Caller{Peer: tlsutil.Peer{Role: tlsutil.RoleOperator, DC: "dc1", Node: "joe"}}), call)
	for i := range maxNoted + 3 {
		a := resource.Access{Verb: resource.VerbWrite, Type: typeOf(keys), Name: fmt.Sprint(i)}
		if err := e.Decide(ctx, a); err != nil {
			t.Fatal(err)
		}
	}
	noted, more := call.Accesses()
	if len(noted) != maxNoted || noted[1].Name != "1" || more != 3 {
		t.Errorf("Accesses() = %d, %d more, want %d and 3", len(noted), more, maxNoted)
	}
	if err := e.Decide(context.Background(), resource.Access{Type: typeOf(keys)}); !errors.Is(err, resource.ErrDenied) {
		t.Errorf("Decide() without a caller = %v, want ErrDenied", err)
	}
}

// BenchmarkDecide measures the decisions that reads of keys need. Built-in roles
// and permitted users must not allocate.
func BenchmarkDecide(b *testing.B) {
	e := newEngine(b, map[string][]*pb.PolicyRule{"joe": {
		{Type: keys, Prefix: "app/", Access: "write"}, {Type: "catalog/*", Access: "read"}, {Type: keys, Prefix: "b/", Access: "read"},
	}})
	typ := typeOf(keys)
	for _, caller := range []string{"client/dc1/app", "anonymous/dc1/srv1", "sync/dc1/s", "user/dc1/joe"} {
		b.Run(strings.ReplaceAll(caller, "/", "-"), func(b *testing.B) {
			p, _ := Parse(caller)
			ctx := WithCaller(context.Background(), Caller{Peer: p})
			b.ReportAllocs()
			for b.Loop() {
				if err := e.Decide(ctx, resource.Access{Verb: resource.VerbRead, Type: typ, Name: "app/x"}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
