// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// Events of several kinds become commits in order. Incomplete commits are left.
func TestSplitCommits(t *testing.T) {
	doc, site := kindOf(docType), kindOf(siteType)
	put := func(k kind, name string, index uint64) event {
		id := &pb.ID{Type: k.typ(), Name: name, Uid: "uid-" + name}
		return event{change{kind: k, put: &pb.Resource{Id: id}}, index}
	}
	gone := func(k kind, name string, index uint64) event {
		return event{change{kind: k, deleted: &pb.ID{Type: k.typ(), Name: name, Uid: "uid-" + name}}, index}
	}
	commits, left := splitCommits([]kind{doc, site}, []event{
		put(site, "s", 4), gone(site, "t", 5), // the watch of one kind
		gone(doc, "a", 3), put(doc, "a", 3), put(doc, "b", 4), put(doc, "c", 4), gone(doc, "c", 4), put(doc, "d", 6), // of the other
	}, 5)
	var got []string
	for _, c := range commits {
		for _, ch := range c.changes {
			what := "gone"
			if ch.put != nil {
				what = "put"
			}
			got = append(got, fmt.Sprint(c.index, " ", what, " ", ch.id().Name))
		}
	}
	// a changed its version, so its upsert is kept. c was created and deleted.
	want := "[3 put a 4 put b 4 put c 4 gone c 4 put s 5 gone t]"
	if fmt.Sprint(got) != want {
		t.Errorf("splitCommits() = %v, want %s", got, want)
	}
	if len(left) != 1 || left[0].put.Id.Name != "d" {
		t.Errorf("splitCommits() left %v, want d", left)
	}
}

// The log keeps the latest commit whatever its size, and reports evicted places.
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
		t.Errorf("since() of an evicted place = %v, want errEvicted", err)
	}
	if next, ok := l.find(&pb.FollowPosition{Index: 10, Check: 10}); !ok || next != first+3 {
		t.Errorf("find() of the position before the oldest commit = %d, %v, want %d", next, ok, first+3)
	}
	for i := range uint64(2 * maxLogChanges) {
		add(12+i, 1)
	}
	if n := len(l.commits); n != maxLogChanges || l.changes != n {
		t.Errorf("log has %d commits and %d changes, want %d", n, l.changes, maxLogChanges)
	}
	last, _, _ := l.end()
	if got, _, err := l.since(last, 1); err != nil || got != nil {
		t.Errorf("since() at the end = %v, %v, want none", got, err)
	}
	l.start(5)
	if _, _, err := l.since(last, 1); !errors.Is(err, errEvicted) {
		t.Errorf("since() after another start = %v, want errEvicted", err)
	}
	l.stop()
	if _, _, ok := l.end(); ok {
		t.Error("end() after stop is ok, want not")
	}
}

// A batch, with deletions first, has the same effect as its changes in order.
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
				commit1(t, oneByOne, resource.ReplicaOp(c.put))
			} else {
				id.Uid = uids[name]
				uids[name] = ""
				c.deleted = id
				commit1(t, oneByOne, resource.RemoveReplicaOp(id))
			}
			if err := b.add(c); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.flush(0, nil); err != nil {
			t.Fatal(err)
		}
		want, got := copies(t, oneByOne, false), copies(t, batched, false)
		if len(want) != len(got) {
			t.Fatalf("seed %d: %v, want %v", seed, got, want)
		}
		for name := range want {
			if !proto.Equal(want[name], got[name]) {
				t.Fatalf("seed %d: %v, want %v", seed, got[name], want[name])
			}
		}
	}
}

// After a comparison of random records, the follower has those of the primary, and
// nothing was sent that it had.
func TestCompare(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var primary []*pb.Resource
		var follower []digest
		differ := 0
		for i := range rng.IntN(3000) {
			id := &pb.ID{Type: docType, Name: fmt.Sprintf("n%06d", i), Uid: fmt.Sprint("u", i), Tenancy: resource.FillTenancy(nil)}
			r := &pb.Resource{Id: id, ModifyIndex: uint64(i + 2)}
			d := digest{keyOf(id), id.Uid, r.ModifyIndex}
			odds := rng.IntN(400)
			if odds != 0 {
				primary = append(primary, r)
			}
			switch odds {
			case 1:
				d.uid = "another"
			case 2:
				d.index--
			case 3:
				d.index = 0
			}
			if odds != 4 {
				follower = append(follower, d)
			}
			if odds <= 4 {
				differ++
			}
		}
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
		for _, h := range follower {
			if requested[uint32(bucketOf(h.key, buckets))] {
				name := h.key[len("default\x00default\x00"):]
				details = append(details, &pb.FollowDigest{Partition: "default", Namespace: "default", Name: name, Uid: h.uid, Index: h.index})
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
		if got := sent + len(deletes); got != differ {
			t.Fatalf("seed %d: %d of %d records differ, but %d were sent and %d deleted", seed, differ, len(primary), sent, len(deletes))
		}
		if n := len(details); n > (differ+1)*8*resourcesPerBucket {
			t.Errorf("seed %d: %d digests for %d differences, want fewer", seed, n, differ)
		}
	}
}
