// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// splitCommits groups the events of several kinds into commits, in order. It
// returns later events unchanged.
func TestSplitCommits(t *testing.T) {
	doc, site := kindOf(docType), kindOf(siteType)
	put := func(k kind, name string, index uint64) event {
		id := &pb.ID{Type: k.typ(), Name: name, Uid: "uid-" + name}
		return event{change{kind: k, put: &pb.Resource{Id: id}}, index}
	}
	del := func(k kind, name string, index uint64) event {
		return event{change{kind: k, deleted: &pb.ID{Type: k.typ(), Name: name, Uid: "uid-" + name}}, index}
	}
	commits, rest := splitCommits([]kind{doc, site}, []event{
		put(site, "s", 4), del(site, "t", 5), // events of the first watch
		del(doc, "a", 3), put(doc, "a", 3), put(doc, "b", 4), put(doc, "c", 4), del(doc, "c", 4), put(doc, "d", 6),
	}, 5)
	var got []string
	for _, c := range commits {
		for _, ch := range c.changes {
			op := "del"
			if ch.put != nil {
				op = "put"
			}
			got = append(got, fmt.Sprint(c.index, " ", op, " ", ch.id().Name))
		}
	}
	// The group version of a changed, so its deletion is dropped.
	want := "[3 put a 4 put b 4 put c 4 del c 4 put s 5 del t]"
	if fmt.Sprint(got) != want {
		t.Errorf("splitCommits() = %v, want %s", got, want)
	}
	if len(rest) != 1 || rest[0].put.Id.Name != "d" {
		t.Errorf("splitCommits() rest = %v, want d", rest)
	}
}

// The log keeps the latest commit regardless of its size, and reports evicted
// commits.
func TestChangeLog_Limits(t *testing.T) {
	l := &changeLog{}
	if _, _, err := l.since(0, 1); !errors.Is(err, errEvicted) {
		t.Errorf("since() before start = %v, want errEvicted", err)
	}
	l.start(7)
	first, at, ok := l.end()
	if !ok || at.Index != 7 {
		t.Fatalf("end() = %v, %v, want index 7", at, ok)
	}
	_, moved, err := l.since(first, 1)
	if err != nil {
		t.Fatal(err)
	}
	k := kindOf(docType)
	add := func(index uint64, size int) {
		l.append(&commit{index: index, checksum: index, size: size, changes: []change{{kind: k, deleted: &pb.ID{}}}})
	}
	add(8, 10)
	<-moved
	add(9, 10)
	add(10, 10)
	for size, want := range map[int]int{1: 1, 20: 2, 25: 2, 1000: 3} {
		if got, _, err := l.since(first, size); err != nil || len(got) != want {
			t.Errorf("since() of %d bytes = %d commits, %v, want %d", size, len(got), err, want)
		}
	}
	add(11, maxLogBytes+1) // alone
	if _, _, err := l.since(first, 1); !errors.Is(err, errEvicted) {
		t.Errorf("since() of an evicted commit = %v, want errEvicted", err)
	}
	if next, ok := l.find(&pb.FollowPosition{Index: 10, Check: 10}); !ok || next != first+3 {
		t.Errorf("find() of the position before the oldest commit = %d, %v, want %d, true", next, ok, first+3)
	}
	for i := range uint64(2 * maxLogChanges) {
		add(12+i, 1)
	}
	if n := len(l.commits); n != maxLogChanges || l.changes != n {
		t.Errorf("log has %d commits and %d changes, want %d commits and changes", n, l.changes, maxLogChanges)
	}
	last, _, _ := l.end()
	if got, _, err := l.since(last, 1); err != nil || got != nil {
		t.Errorf("since() at the end = %v, %v, want no commits and nil", got, err)
	}
	l.start(5)
	if _, _, err := l.since(last, 1); !errors.Is(err, errEvicted) {
		t.Errorf("since() after another start = %v, want errEvicted", err)
	}
	l.stop()
	if _, _, ok := l.end(); ok {
		t.Error("end() after stop: ok = true, want false")
	}
}

// A batch, which is applied deletions first, has the same effect as its changes
// in order.
func TestChangeBatch(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		oneByOne, batched := resourcetest.NewStore(), resourcetest.NewStore()
		b := &changeBatch{send: func(m *pb.FollowResponse) error {
			var ops []*pb.Op
			for _, id := range m.Deletes {
				ops = append(ops, resource.RemoveReplicaOp(id))
			}
			for _, r := range m.Upserts {
				ops = append(ops, resource.ReplicaOp(r))
			}
			_, err := batched.Commit(t.Context(), ops...)
			return err
		}}
		uids := map[string]string{}
		for i := range uint64(30) {
			name := fmt.Sprint("n", rng.IntN(4))
			id := &pb.ID{Type: docType, Name: name, Tenancy: resource.FillTenancy(nil)}
			c := change{kind: kindOf(docType), size: rng.IntN(batchBytes)}
			if uids[name] == "" || rng.IntN(3) > 0 {
				if uids[name] == "" {
					uids[name] = fmt.Sprint("uid", i)
				}
				id.Uid = uids[name]
				c.put = &pb.Resource{Id: id, Generation: fmt.Sprint(i), PrimaryModifyIndex: i + 1}
				commitOne(t, oneByOne, resource.ReplicaOp(c.put))
			} else {
				id.Uid = uids[name]
				uids[name] = ""
				c.deleted = id
				commitOne(t, oneByOne, resource.RemoveReplicaOp(id))
			}
			if err := b.add(c); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.flush(0, nil); err != nil {
			t.Fatal(err)
		}
		want, got := replicas(t, oneByOne, false), replicas(t, batched, false)
		equal := func(a, b *pb.Resource) bool { return proto.Equal(a, b) }
		if !maps.EqualFunc(got, want, equal) {
			t.Fatalf("seed %d: replicas after the batches = %v, want %v", seed, got, want)
		}
	}
}

// randomDifference returns the resources of a primary and the digests of a
// follower. differ is the number of resources that differ.
func randomDifference(rng *rand.Rand) (primary []*pb.Resource, follower []digest, differ int) {
	for i := range rng.IntN(3000) {
		name, uid := fmt.Sprintf("n%06d", i), fmt.Sprint("u", i)
		id := &pb.ID{Type: docType, Name: name, Uid: uid, Tenancy: resource.FillTenancy(nil)}
		r := &pb.Resource{Id: id, ModifyIndex: uint64(i + 2)}
		d := digest{keyOf(id), id.Uid, r.ModifyIndex}
		choice := rng.IntN(400)
		switch choice {
		case 1:
			d.uid = "another"
		case 2:
			d.index--
		case 3:
			d.index = 0
		}
		if choice != 0 {
			primary = append(primary, r)
		}
		if choice != 4 {
			follower = append(follower, d)
		}
		if choice <= 4 {
			differ++
		}
	}
	return primary, follower, differ
}

// A comparison sends and deletes exactly the resources that differ.
func TestCompare(t *testing.T) {
	for seed := range uint64(40) {
		primary, follower, differ := randomDifference(rand.New(rand.NewPCG(seed, 2)))
		buckets := bucketsFor(len(follower))
		d, needed, err := compare(primary, summarize(follower, buckets))
		if err != nil {
			t.Fatal(err)
		}
		requested := map[uint32]bool{}
		for _, b := range needed {
			requested[b] = true
		}
		var details []*pb.FollowDigest
		for _, f := range follower {
			if requested[uint32(bucketOf(f.key, buckets))] {
				name := f.key[len("default\x00default\x00"):]
				details = append(details, &pb.FollowDigest{
					Partition: "default", Namespace: "default", Name: name, Uid: f.uid, Index: f.index,
				})
			}
		}
		deletes, err := d.applyDetails(docType, details)
		if err != nil {
			t.Fatal(err)
		}
		sent := 0
		for _, r := range d.resources {
			if r != nil {
				sent++
			}
		}
		if sent+len(deletes) != differ {
			t.Fatalf("seed %d: %d resources to send, %d to delete, want %d in total", seed, sent, len(deletes), differ)
		}
		if n, most := len(details), (differ+1)*8*resourcesPerBucket; n > most {
			t.Errorf("seed %d: %d digests for %d differences, want at most %d", seed, n, differ, most)
		}
	}
}
