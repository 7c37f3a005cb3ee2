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
	"github.com/wanfed/wanfed/resource/memory"
	"github.com/wanfed/wanfed/tlsutil"
)

// rig is a catalog that an operator writes.
type rig struct {
	*testing.T
	*Writer
	*View
	store *counting
	who   *tlsutil.Peer
}

func newRig(t *testing.T) *rig {
	t.Helper()
	mem := memory.New()
	t.Cleanup(func() { mem.Close() })
	r := &rig{T: t, store: &counting{Backend: mem}, who: operator()}
	r.Writer, r.View = newWriter(t, r.store, r.who)
	return r
}

func (r *rig) register(e Registration) {
	r.Helper()
	if err := r.Register(r.Context(), e); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) now() *Snapshot {
	r.Helper()
	s, err := r.At(r.Context(), resource.Strong)
	if err != nil {
		r.Fatal(err)
	}
	return s
}

// text lists services and checks: node[checks] service[checks]...
func (r *rig) text() string {
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

func TestWriter(t *testing.T) {
	r := newRig(t)
	want := func(s string) {
		t.Helper()
		if got := r.text(); got != s {
			t.Errorf("catalog is %q, want %q", got, s)
		}
	}
	r.register(Registration{Node: node("N 1/a"), Service: service("N 1/a", "web"), Checks: []*pb.Check{checkFor("N 1/a", "c1", "web"), checkFor("N 1/a", "c2", "")}})
	want("N 1/a[c2] web[c1]")
	if s := r.now(); s.Index < 2 || s.Node("N 1/a").Check("c1").ServiceName != "s" {
		t.Errorf("%+v", s.Node("N 1/a").Check("c1"))
	}
	if n := r.store.count(); n != 1 {
		t.Errorf("one registration made %d writes", n)
	}
	r.register(Registration{Node: node("N 1/a"), Service: service("N 1/a", "web"), Checks: []*pb.Check{checkFor("N 1/a", "c2", "")}})
	if n := r.store.count(); n != 1 {
		t.Errorf("the same registration again made %d writes", n-1)
	}
	before := r.now()
	if before != r.now() {
		t.Error("nothing has changed, and yet another snapshot")
	}
	r.register(Registration{Node: &pb.Node{Node: "N 1/a"}, Checks: []*pb.Check{checkFor("N 1/a", "c2", "web")}}) // it is the service's now
	want("N 1/a[] web[c1 c2]")
	if after := r.now(); after.Index <= before.Index || after.Node("N 1/a").Resource != before.Node("N 1/a").Resource || after.Node("N 1/a").Node != before.Node("N 1/a").Node {
		t.Error("what has not changed was decoded again, or the index has not moved")
	}
	r.register(Registration{Node: node("N 1/a"), Service: service("N 1/a", "web"), Checks: []*pb.Check{checkFor("N 1/a", "c3", "web")}, ReplaceChecks: true})
	want("N 1/a[] web[c3]")
	r.register(Registration{Node: node("N 1"), Service: service("N 1", "a/web")}) // another node, whatever the slashes say
	want("N 1[] a/web[] N 1/a[] web[c3]")
	for _, d := range [][3]string{{"N 1/a", "", "c3"}, {"N 1/a", "", "c3"}, {"N 1", "a/web", ""}, {"nobody", "", ""}, {"N 1", "none", "c"}} {
		if err := r.Deregister(t.Context(), d[0], d[1], d[2]); err != nil {
			t.Errorf("deregister %q: %v", d, err)
		}
	}
	want("N 1[] N 1/a[] web[]")
	if err := r.Deregister(t.Context(), "N 1/a", "", ""); err != nil {
		t.Error(err)
	}
	want("N 1[]")
}

// What a program says of itself again leaves alone what others have said of it.
func TestAgentRegistersAgain(t *testing.T) {
	r := newRig(t)
	old := node("n")
	old.Meta, old.TaggedAddresses = map[string]string{"rack": "1"}, map[string]string{TagWAN: "198.51.100.1"}
	r.register(Registration{Node: old, Service: service("n", "web"), Checks: []*pb.Check{{Node: "n", CheckId: "c", ServiceId: "web", Status: StatusWarning, Output: "so so"}}})
	next := &pb.Node{Node: "n", Address: "192.0.2.7", TaggedAddresses: map[string]string{TagLAN: "192.0.2.7"}}
	r.register(Registration{Node: next, Service: service("n", "web"), Checks: []*pb.Check{checkFor("n", "c", "web")}, FromAgent: true})
	n := r.now().Node("n")
	if n.Address != "192.0.2.7" || n.Meta["rack"] != "1" || n.TaggedAddresses[TagWAN] == "" || n.TaggedAddresses[TagLAN] != "192.0.2.7" {
		t.Errorf("node %v", n.Node)
	}
	if c := n.Check("c"); c.Status != StatusWarning || c.Output != "so so" {
		t.Errorf("check %v", c.Check)
	}
}

// What is left of a node that was deleted is not that of the next one with its name. While it is held back nobody can have its
// place; that ends the registration.
func TestNodeMadeAnewAmongLeftovers(t *testing.T) {
	r := newRig(t)
	r.register(Registration{Node: node("n"), Service: service("n", "web"), Checks: []*pb.Check{checkFor("n", "c", "web")}})
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
		t.Errorf("catalog is %q", got)
	}
	if err := r.Register(t.Context(), Registration{Node: node("n"), Service: service("n", "web")}); !errors.Is(err, resource.ErrConflict) {
		t.Errorf("in the place of what is held: %v", err)
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
		t.Errorf("when nothing is held any more, catalog is %q", got)
	}
}

func TestConcurrentRegistrations(t *testing.T) {
	r := newRig(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 10 {
				id := fmt.Sprintf("s%d", i)
				e := Registration{Node: node("n"), Service: service("n", id), Checks: []*pb.Check{checkFor("n", "c"+id, id)}}
				if err := r.Register(t.Context(), e); err != nil {
					t.Error(err)
				}
				if j == 9 {
					return
				}
				if err := r.Deregister(t.Context(), "n", id, ""); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := r.now().Node("n"); len(n.Services) != 8 || len(n.AllChecks()) != 8 {
		t.Errorf("catalog is %s", r.text())
	}
}

func TestWriterRefuses(t *testing.T) {
	r := newRig(t)
	r.register(Registration{Node: node("n")})
	long := strings.Repeat("x", maxName+1)
	many := map[string]string{}
	for i := range maxPairs + 1 {
		many[fmt.Sprint(i)] = ""
	}
	with := func(change func(e *Registration)) Registration {
		e := Registration{Node: node("n"), Service: service("n", "web"), Checks: []*pb.Check{checkFor("n", "c", "web")}}
		change(&e)
		return e
	}
	for name, test := range map[string]struct {
		e    Registration
		want error
	}{
		"node that is missing":    {Registration{Node: &pb.Node{Node: "nobody"}}, ErrNoNode},
		"service that is missing": {Registration{Node: node("n"), Checks: []*pb.Check{checkFor("n", "c", "none")}}, ErrNoService},
		"empty node":              {with(func(e *Registration) { e.Node.Node = "" }), resource.ErrInvalid},
		"long node":               {with(func(e *Registration) { e.Node.Node = long }), resource.ErrInvalid},
		"NUL":                     {with(func(e *Registration) { e.Node.Node = "a\x00" }), resource.ErrInvalid},
		"no UTF-8":                {with(func(e *Registration) { e.Service.Id = "\xff" }), resource.ErrInvalid},
		"empty service":           {with(func(e *Registration) { e.Service.Service = "" }), resource.ErrInvalid},
		"slashes that make it too long": {with(func(e *Registration) {
			e.Node.Node, e.Service.Id = strings.Repeat("/", maxName), "s"
		}), resource.ErrInvalid},
		"port":          {with(func(e *Registration) { e.Service.Port = 65536 }), resource.ErrInvalid},
		"metadata":      {with(func(e *Registration) { e.Service.Meta = many }), resource.ErrInvalid},
		"node metadata": {with(func(e *Registration) { e.Node.Meta = map[string]string{"k": strings.Repeat("v", maxPairValue+1)} }), resource.ErrInvalid},
		"status":        {with(func(e *Registration) { e.Checks[0].Status = "fine" }), resource.ErrInvalid},
		"output":        {with(func(e *Registration) { e.Checks[0].Output = strings.Repeat("x", MaxOutput+1) }), resource.ErrInvalid},
	} {
		if err := r.Register(t.Context(), test.e); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
	if got := r.text(); got != "n[]" {
		t.Errorf("something was written: %s", got)
	}
	r.who.Role = tlsutil.RoleClient
	if err := r.Register(t.Context(), Registration{Node: node("n")}); !errors.Is(err, resource.ErrDenied) { // which would change nothing
		t.Errorf("a client's registration: %v", err)
	}
	if err := r.Deregister(t.Context(), "nobody", "", ""); !errors.Is(err, resource.ErrDenied) {
		t.Errorf("a client's deregistration: %v", err)
	}
}

func TestUnderNode(t *testing.T) {
	seen := map[string]bool{}
	for _, pair := range [][2]string{{"a", "b/c"}, {"a/b", "c"}, {"a%2Fb", "c"}, {"a%2fb", "c"}, {"a", "b"}, {"a/", "b"}} {
		seen[resourceName(pair[0], pair[1])] = true
	}
	if len(seen) != 6 {
		t.Errorf("two are the same: %v", slices.Sorted(maps.Keys(seen)))
	}
}
