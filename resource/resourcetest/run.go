// SPDX-License-Identifier: MPL-2.0

package resourcetest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Target is a backend under test with its optional operations.
type Target struct {
	// Backend accepts writes and strong reads, and resource.ReapOnce runs on it.
	resource.Backend
	// Snapshot takes a snapshot and returns a function that restores it.
	Snapshot func(ctx context.Context) (restore func(ctx context.Context) error, err error)
	// Restart stops the backend and returns a new one with the stored data. No
	// subtest uses the old one again.
	Restart func(t *testing.T) Target
	// Owned is the size of the largest cascade. Default: 10,000.
	Owned int
}

// Run runs a subtest for each part of the contract of resource.Backend. The
// subtest NAME is the function testNAME, whose comment describes it.
func Run(t *testing.T, open func(t *testing.T) Target) {
	for _, sub := range []struct {
		name string
		run  func(*env)
	}{
		{"Create", testCreate},
		{"CompareAndSwap", testCompareAndSwap},
		{"ConcurrentWriters", testConcurrentWriters},
		{"InvalidOps", testInvalidOps},
		{"Batch", testBatch},
		{"Expect", testExpect},
		{"Overwrite", testOverwrite},
		{"OverwriteTogether", testOverwriteTogether},
		{"Remove", testRemove},
		{"EndedContext", testEndedContext},
		{"Immutable", testImmutable},
		{"List", testList},
		{"Names", testNames},
		{"Index", testIndex},
		{"IndexOfQuery", testIndexOfQuery},
		{"GroupVersion", testGroupVersion},
		{"Tenancy", testTenancy},
		{"Status", testStatus},
		{"Owner", testOwner},
		{"OwnerReplaced", testOwnerReplaced},
		{"Replica", testReplica},
		{"ReplicaReplaced", testReplicaReplaced},
		{"Finalizers", testFinalizers},
		{"FinalizersForbid", testFinalizersForbid},
		{"FinalizersOfOwned", testFinalizersOfOwned},
		{"FinalizersOfReplica", testFinalizersOfReplica},
		{"OwnerOfReplica", testOwnerOfReplica},
		{"Cascade", testCascade},
		{"CascadeSteps", testCascadeSteps},
		{"CascadeDeep", testCascadeDeep},
		{"Monotonic", testMonotonic},
		{"Watch", testWatch},
		{"WatchSelects", testWatchSelects},
		{"WatchEnds", testWatchEnds},
		{"WatchConcurrent", testWatchConcurrent},
		{"Wait", testWait},
		{"WaitSelects", testWaitSelects},
		{"WaitEnds", testWaitEnds},
		{"Restore", testRestore},
		{"Restart", testRestart},
	} {
		t.Run(sub.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			target := open(t)
			e := &env{T: t, ctx: ctx, b: target.Backend, target: target}
			e.typ = e.newType("Thing")
			sub.run(e)
		})
	}
}

// env is the environment of one subtest. Its methods fail the subtest if the
// backend returns an error that they do not expect.
type env struct {
	*testing.T
	ctx context.Context
	b   resource.Backend
	typ *pb.Type // of this subtest alone

	target Target
}

// newType returns a type that no other subtest uses.
func (e *env) newType(kind string) *pb.Type {
	return &pb.Type{Group: strings.ToLower(e.Name()), GroupVersion: "v1", Kind: kind}
}

// fresh returns a new resource with the text as data.
func (e *env) fresh(name, text string) *pb.Resource {
	e.Helper()
	r, err := resource.New(e.typ, name, &pb.Node{Node: text})
	if err != nil {
		e.Fatal(err)
	}
	return r
}

// changed returns a copy of r with other data.
func (e *env) changed(r *pb.Resource, text string) *pb.Resource {
	e.Helper()
	c := proto.CloneOf(r)
	if err := resource.SetData(c, &pb.Node{Node: text}); err != nil {
		e.Fatal(err)
	}
	return c
}

// text returns the data of r, as passed to fresh or changed.
func (e *env) text(r *pb.Resource) string {
	e.Helper()
	n, err := resource.Decode[*pb.Node](r)
	if err != nil {
		e.Fatal(err)
	}
	return n.GetNode()
}

// commit commits ops.
func (e *env) commit(ops ...*pb.Op) []*pb.Resource {
	e.Helper()
	out, err := e.b.Commit(e.ctx, ops...)
	if err != nil {
		e.Fatal(err)
	}
	if len(out) != len(ops) {
		e.Fatalf("Commit of %d ops returned %d resources", len(ops), len(out))
	}
	return out
}

// put writes r if the stored version is expect, and returns the stored
// resource.
func (e *env) put(r *pb.Resource, expect string) *pb.Resource {
	e.Helper()
	return e.commit(resource.PutOp(r, expect))[0]
}

// refused checks that a Commit of ops fails with want and changes nothing.
func (e *env) refused(want error, ops ...*pb.Op) {
	e.Helper()
	before, index := e.list(resource.Query{Type: e.typ})
	if _, err := e.b.Commit(e.ctx, ops...); !errors.Is(err, want) {
		e.Fatalf("Commit() = %v, want %v", err, want)
	}
	after, index2 := e.list(resource.Query{Type: e.typ})
	if index2 != index {
		e.Errorf("index after a failed Commit = %d, want %d", index2, index)
	}
	e.same(after, before)
}

// list is a strong List. Later eventual reads are not older.
func (e *env) list(q resource.Query) ([]*pb.Resource, uint64) {
	e.Helper()
	all, index, err := e.b.List(e.ctx, resource.Strong, q)
	if err != nil {
		e.Fatal(err)
	}
	return all, index
}

// read is a strong Read.
func (e *env) read(id *pb.ID) *pb.Resource {
	e.Helper()
	r, err := e.b.Read(e.ctx, resource.Strong, id)
	if err != nil {
		e.Fatal(err)
	}
	return r
}

// missing checks that no resource with that id exists.
func (e *env) missing(id *pb.ID) {
	e.Helper()
	for _, c := range []resource.Consistency{resource.Strong, resource.Eventual} {
		if r, err := e.b.Read(e.ctx, c, id); !errors.Is(err, resource.ErrNotFound) {
			e.Errorf("Read(%s) = %v, %v; want ErrNotFound", resource.IDString(id), r, err)
		}
	}
}

// same checks that the resources are equal in all fields.
func (e *env) same(got, want []*pb.Resource) {
	e.Helper()
	if len(got) != len(want) {
		e.Fatalf("resources = %d: %v, want %d: %v", len(got), names(got), len(want), names(want))
	}
	for i := range got {
		if !proto.Equal(got[i], want[i]) {
			e.Errorf("resource %d:\ngot  %v\nwant %v", i, got[i], want[i])
		}
	}
}

func names(all []*pb.Resource) []string {
	out := make([]string, len(all))
	for i, r := range all {
		out[i] = r.GetId().GetName()
	}
	return out
}
