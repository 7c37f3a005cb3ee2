// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

// fixture is a catalog with a Writer whose caller is an operator.
type fixture struct {
	*testing.T
	*Writer
	*View
	store  *countingBackend
	caller *tlsutil.Peer
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	mem := resourcetest.NewStore()
	t.Cleanup(func() { mem.Close() })
	r := &fixture{T: t, store: &countingBackend{Backend: mem}, caller: operator()}
	r.Writer, r.View = newWriter(t, r.store, r.caller)
	return r
}

func (r *fixture) register(reg Registration) {
	r.Helper()
	if err := r.Register(r.Context(), reg); err != nil {
		r.Fatal(err)
	}
}

func (r *fixture) now() *Snapshot {
	r.Helper()
	s, err := r.At(r.Context(), resource.Strong)
	if err != nil {
		r.Fatal(err)
	}
	return s
}

// text returns nodes and services with their checks: node[checks]
// service[checks]...
func (r *fixture) text() string {
	r.Helper()
	ids := func(all []*Check) string {
		out := []string{}
		for _, c := range all {
			out = append(out, c.CheckId)
		}
		return fmt.Sprint(out)
	}
	var out []string
	for _, n := range r.now().Nodes {
		out = append(out, n.Node.Node+ids(n.Checks))
		for _, s := range n.Services {
			out = append(out, s.Id+ids(s.Checks))
		}
	}
	return strings.Join(out, " ")
}

func node(name string) *pb.Node { return &pb.Node{Node: name, Address: "192.0.2.1"} }
func service(node, id string) *pb.Service {
	return &pb.Service{Node: node, Id: id, Service: "s"}
}
func checkFor(node, id, service string) *pb.Check {
	return &pb.Check{Node: node, CheckId: id, ServiceId: service, Status: StatusPassing}
}

// TestWriter changes one catalog in several steps, each a subtest.
func TestWriter(t *testing.T) {
	r := newFixture(t)
	const name = "N 1/a"
	checks := func(all ...*pb.Check) []*pb.Check { return all }
	want := func(t *testing.T, s string) {
		t.Helper()
		if got := r.text(); got != s {
			t.Errorf("catalog = %q, want %q", got, s)
		}
	}
	t.Run("register", func(t *testing.T) {
		r.register(Registration{
			Node: node(name), Service: service(name, "web"),
			Checks: checks(checkFor(name, "c1", "web"), checkFor(name, "c2", "")),
		})
		want(t, "N 1/a[c2] web[c1]")
		if s := r.now(); s.Index < 2 || s.Node(name).Check("c1").ServiceName != "s" {
			t.Errorf("check c1 = %+v, want it to have the service name s", s.Node(name).Check("c1"))
		}
		if n := r.store.count(); n != 1 {
			t.Errorf("one registration made %d commits, want 1", n)
		}
	})
	t.Run("register the same", func(t *testing.T) {
		r.register(Registration{
			Node: node(name), Service: service(name, "web"), Checks: checks(checkFor(name, "c2", "")),
		})
		if n := r.store.count(); n != 1 {
			t.Errorf("an equal registration made %d commits, want 0", n-1)
		}
	})
	t.Run("move a check to the service", func(t *testing.T) {
		before := r.now()
		if before != r.now() {
			t.Error("At() without a change = another snapshot, want the same one")
		}
		r.register(Registration{Node: &pb.Node{Node: name}, Checks: checks(checkFor(name, "c2", "web"))})
		want(t, "N 1/a[] web[c1 c2]")
		after := r.now()
		if after.Index <= before.Index ||
			after.Node(name).Resource != before.Node(name).Resource || after.Node(name).Node != before.Node(name).Node {
			t.Error("At() after a change decoded the unchanged node again, or has the same index, " +
				"want the same node and a higher index")
		}
	})
	t.Run("replace checks", func(t *testing.T) {
		r.register(Registration{
			Node: node(name), Service: service(name, "web"),
			Checks: checks(checkFor(name, "c3", "web")), ReplaceChecks: true,
		})
		want(t, "N 1/a[] web[c3]")
	})
	t.Run("register another node with a similar name", func(t *testing.T) {
		r.register(Registration{Node: node("N 1"), Service: service("N 1", "a/web")})
		want(t, "N 1[] a/web[] N 1/a[] web[c3]")
	})
	t.Run("deregister", func(t *testing.T) {
		for _, d := range [][3]string{
			{name, "", "c3"}, {name, "", "c3"}, {"N 1", "a/web", ""}, {"none", "", ""}, {"N 1", "none", "c"},
		} {
			if err := r.Deregister(t.Context(), d[0], d[1], d[2]); err != nil {
				t.Errorf("Deregister(%q) = %v, want nil", d, err)
			}
		}
		want(t, "N 1[] N 1/a[] web[]")
		if err := r.Deregister(t.Context(), name, "", ""); err != nil {
			t.Errorf("Deregister(%s) = %v, want nil", name, err)
		}
		want(t, "N 1[]")
	})
}

// A program that registers again changes neither the metadata of its node nor
// the status of its checks.
func TestRegister_FromAgentAgain(t *testing.T) {
	r := newFixture(t)
	old := node("n")
	old.Meta, old.TaggedAddresses = map[string]string{"rack": "1"}, map[string]string{TagWAN: "198.51.100.1"}
	r.register(Registration{Node: old, Service: service("n", "web"),
		Checks: []*pb.Check{{Node: "n", CheckId: "c", ServiceId: "web", Status: StatusWarning, Output: "so so"}}})
	next := &pb.Node{Node: "n", Address: "192.0.2.7", TaggedAddresses: map[string]string{TagLAN: "192.0.2.7"}}
	r.register(Registration{Node: next, Service: service("n", "web"), Checks: []*pb.Check{checkFor("n", "c", "web")},
		FromAgent: true})
	n := r.now().Node("n")
	if n.Address != "192.0.2.7" || n.Meta["rack"] != "1" || n.TaggedAddresses[TagWAN] == "" ||
		n.TaggedAddresses[TagLAN] != "192.0.2.7" {
		t.Errorf("node = %v, want the new addresses and the old metadata", n.Node)
	}
	if c := n.Check("c"); c.Status != StatusWarning || c.Output != "so so" {
		t.Errorf("check = %v, want the old status and output", c.Check)
	}
}

// A finalizer delays the deletion of a service after its node was deleted. The
// service does not belong to a new node of the same name. Until the finalizer
// is removed, a service with the same id cannot be registered.
func TestRegister_OrphanWithFinalizer(t *testing.T) {
	r := newFixture(t)
	r.register(Registration{Node: node("n"), Service: service("n", "web"),
		Checks: []*pb.Check{checkFor("n", "c", "web")}})
	held := proto.CloneOf(r.now().Node("n").Service("web").Resource)
	held.Metadata = map[string]string{resource.FinalizersKey: "drain"}
	if _, err := r.store.Commit(t.Context(), resource.PutOp(held, held.Version)); err != nil {
		t.Fatal(err)
	}
	if err := r.Deregister(t.Context(), "n", "", ""); err != nil {
		t.Fatal(err)
	}
	r.register(Registration{Node: node("n")})
	if got := r.text(); got != "n[]" {
		t.Errorf("catalog = %q, want n[]", got)
	}
	if err := r.Register(t.Context(),
		Registration{Node: node("n"), Service: service("n", "web")}); !errors.Is(err, resource.ErrConflict) {
		t.Errorf("Register() over an orphan = %v, want ErrConflict", err)
	}
	marked, err := r.store.Read(t.Context(), resource.Strong, held.GetId())
	if err != nil {
		t.Fatal(err)
	}
	marked = proto.CloneOf(marked)
	delete(marked.Metadata, resource.FinalizersKey)
	if _, err := r.store.Commit(t.Context(), resource.PutOp(marked, marked.Version)); err != nil {
		t.Fatal(err)
	}
	r.register(Registration{Node: node("n"), Service: service("n", "web")})
	if got := r.text(); got != "n[] web[]" {
		t.Errorf("catalog without the orphan = %q, want n[] web[]", got)
	}
}

func TestRegister_Concurrent(t *testing.T) {
	r := newFixture(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 10 {
				id := fmt.Sprintf("s%d", i)
				reg := Registration{Node: node("n"), Service: service("n", id),
					Checks: []*pb.Check{checkFor("n", "c"+id, id)}}
				if err := r.Register(t.Context(), reg); err != nil {
					t.Errorf("Register() = %v, want nil", err)
				}
				if j == 9 {
					return
				}
				if err := r.Deregister(t.Context(), "n", id, ""); err != nil {
					t.Errorf("Deregister() = %v, want nil", err)
				}
			}
		})
	}
	wg.Wait()
	if n := r.now().Node("n"); len(n.Services) != 8 || len(n.AllChecks()) != 8 {
		t.Errorf("catalog = %s, want eight services with one check each", r.text())
	}
}

func TestWriter_Refuses(t *testing.T) {
	r := newFixture(t)
	r.register(Registration{Node: node("n")})
	long := strings.Repeat("x", maxName+1)
	many := map[string]string{}
	for i := range maxPairs + 1 {
		many[fmt.Sprint(i)] = ""
	}
	with := func(change func(reg *Registration)) Registration {
		reg := Registration{Node: node("n"), Service: service("n", "web"),
			Checks: []*pb.Check{checkFor("n", "c", "web")}}
		change(&reg)
		return reg
	}
	for name, test := range map[string]struct {
		reg  Registration
		want error
	}{
		"missing node": {Registration{Node: &pb.Node{Node: "none"}}, ErrNoNode},
		"missing service": {Registration{Node: node("n"), Checks: []*pb.Check{checkFor("n", "c", "none")}},
			ErrNoService},
		"empty node":    {with(func(reg *Registration) { reg.Node.Node = "" }), resource.ErrInvalid},
		"long node":     {with(func(reg *Registration) { reg.Node.Node = long }), resource.ErrInvalid},
		"NUL":           {with(func(reg *Registration) { reg.Node.Node = "a\x00" }), resource.ErrInvalid},
		"not UTF-8":     {with(func(reg *Registration) { reg.Service.Id = "\xff" }), resource.ErrInvalid},
		"empty service": {with(func(reg *Registration) { reg.Service.Service = "" }), resource.ErrInvalid},
		"too long with escaped slashes": {with(func(reg *Registration) {
			reg.Node.Node, reg.Service.Id = strings.Repeat("/", maxName), "s"
		}), resource.ErrInvalid},
		"port":     {with(func(reg *Registration) { reg.Service.Port = 65536 }), resource.ErrInvalid},
		"metadata": {with(func(reg *Registration) { reg.Service.Meta = many }), resource.ErrInvalid},
		"node metadata": {with(func(reg *Registration) {
			reg.Node.Meta = map[string]string{"k": strings.Repeat("v", maxPairValue+1)}
		}), resource.ErrInvalid},
		"status": {with(func(reg *Registration) { reg.Checks[0].Status = "fine" }), resource.ErrInvalid},
		"output": {with(func(reg *Registration) { reg.Checks[0].Output = strings.Repeat("x", MaxOutput+1) }),
			resource.ErrInvalid},
	} {
		if err := r.Register(t.Context(), test.reg); !errors.Is(err, test.want) {
			t.Errorf("%s: Register() = %v, want %v", name, err, test.want)
		}
	}
	if got := r.text(); got != "n[]" {
		t.Errorf("catalog after refused registrations = %s, want n[]", got)
	}
	// A client is refused even if the registration would change nothing.
	r.caller.Role = tlsutil.RoleClient
	if err := r.Register(t.Context(), Registration{Node: node("n")}); !errors.Is(err, resource.ErrDenied) {
		t.Errorf("Register() by a client = %v, want ErrDenied", err)
	}
	if err := r.Deregister(t.Context(), "none", "", ""); !errors.Is(err, resource.ErrDenied) {
		t.Errorf("Deregister() by a client = %v, want ErrDenied", err)
	}
}

func TestResourceName_Unique(t *testing.T) {
	seen := map[string]bool{}
	for _, pair := range [][2]string{{"a", "b/c"}, {"a/b", "c"}, {"a%2Fb", "c"}, {"a%2fb", "c"}, {"a", "b"},
		{"a/", "b"}} {
		seen[resourceName(pair[0], pair[1])] = true
	}
	if len(seen) != 6 {
		t.Errorf("resourceName() of six pairs = %v, want six names", slices.Sorted(maps.Keys(seen)))
	}
}
