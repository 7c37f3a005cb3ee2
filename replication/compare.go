// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/fnv"
	"slices"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Bounds of a summary: so many records are in one bucket, as long as there are not too many buckets.
const (
	perBucket  = 32
	maxBuckets = 1024
)

// kind is what shares names: a group and a kind, in any group version.
type kind struct{ group, name string }

func kindOf(t *pb.Type) kind { return kind{t.GetGroup(), t.GetKind()} }

func (k kind) typ() *pb.Type { return &pb.Type{Group: k.group, Kind: k.name} }

func (k kind) compare(other kind) int {
	return cmp.Or(cmp.Compare(k.group, other.group), cmp.Compare(k.name, other.name))
}

// everywhere selects all records of a kind.
func (k kind) everywhere() resource.Query {
	return resource.Query{Type: k.typ(), Tenancy: &pb.Tenancy{Partition: resource.Wildcard, Namespace: resource.Wildcard}}
}

// kindsOf lists the kinds of federated types, in order, each with the types that are registered of it.
func kindsOf(g *resource.Registry) (order []kind, types map[kind][]*pb.Type) {
	types = map[kind][]*pb.Type{}
	for _, reg := range g.Types() {
		if !reg.Federated {
			continue
		}
		k := kindOf(reg.Type)
		if types[k] == nil {
			order = append(order, k)
		}
		types[k] = append(types[k], reg.Type)
	}
	slices.SortFunc(order, kind.compare)
	return order, types
}

// digest is what a comparison needs to know of one record.
type digest struct {
	place string // see placeOf
	uid   string
	index uint64 // the primary's
}

// placeOf is what is the same for all records that can ever be in one place of their kind.
func placeOf(id *pb.ID) string {
	t := resource.FillTenancy(id.GetTenancy())
	return place(t.Partition, t.Namespace, id.GetName())
}

func place(partition, namespace, name string) string {
	return partition + "\x00" + namespace + "\x00" + name
}

// bucketsFor is into how many buckets a follower puts n records.
func bucketsFor(n int) int {
	if n == 0 {
		return 0
	}
	b := 1
	for b < maxBuckets && b*perBucket < n {
		b *= 2
	}
	return b
}

func bucketOf(place string, buckets int) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(place))
	v := h.Sum64()
	return int((v ^ v>>32) & uint64(buckets-1))
}

// summarize gives each bucket its sum, 0 if it is empty. Both sides list records in the same order: by tenancy and name.
func summarize(all []digest, buckets int) []uint64 {
	state := make([]hash.Hash, buckets)
	var buf []byte
	for _, d := range all {
		i := bucketOf(d.place, buckets)
		if state[i] == nil {
			state[i] = sha256.New()
		}
		buf = append(buf[:0], d.place...)
		buf = append(append(buf, 0), d.uid...)
		buf = binary.BigEndian.AppendUint64(append(buf, 0), d.index)
		_, _ = state[i].Write(buf)
	}
	sums := make([]uint64, buckets)
	for i, h := range state {
		if h != nil {
			sums[i] = max(1, binary.BigEndian.Uint64(h.Sum(nil)))
		}
	}
	return sums
}

// difference is what the primary has of one kind and a follower may not have.
type difference struct {
	records []*pb.Resource // in order; nil where the follower turned out to have it
	at      map[string]int // by place, into records
	asked   []bool         // buckets of which the follower was asked for details; nil: none
}

// compare finds out which records may differ from those of a follower with these sums, and of which buckets it must tell
// more. records are those that the follower should have.
func compare(records []*pb.Resource, sums []uint64) (difference, []uint32, error) {
	d := difference{at: map[string]int{}}
	n := len(sums)
	if n == 0 {
		d.records = slices.Clone(records)
		return d, nil, nil
	}
	if n > maxBuckets || n&(n-1) != 0 {
		return d, nil, fmt.Errorf("a summary has %d buckets: must be a power of 2, at most %d", n, maxBuckets)
	}
	own := make([]digest, len(records))
	for i, r := range records {
		own[i] = digest{placeOf(r.GetId()), r.GetId().GetUid(), r.GetModifyIndex()}
	}
	var ask []uint32
	d.asked = make([]bool, n)
	for i, sum := range summarize(own, n) {
		if d.asked[i] = sum != sums[i]; d.asked[i] {
			ask = append(ask, uint32(i))
		}
	}
	for i, r := range records {
		if d.asked[bucketOf(own[i].place, n)] {
			d.at[own[i].place] = len(d.records)
			d.records = append(d.records, r)
		}
	}
	return d, ask, nil
}

// details takes what a follower has of a kind, in buckets that it was asked for, and returns what of it is not here. Those ids
// get the type typ: of which version they are does not matter, they have uids.
func (d *difference) details(typ *pb.Type, all []*pb.FollowDigest) (deletes []*pb.ID, err error) {
	for _, x := range all {
		where := place(x.GetPartition(), x.GetNamespace(), x.GetName())
		if len(d.asked) == 0 || !d.asked[bucketOf(where, len(d.asked))] {
			return nil, fmt.Errorf("details of %s %q were not asked for", typ.GetKind(), x.GetName())
		}
		i, here := d.at[where]
		if !here {
			deletes = append(deletes, &pb.ID{
				Type: typ, Name: x.GetName(), Uid: x.GetUid(),
				Tenancy: &pb.Tenancy{Partition: x.GetPartition(), Namespace: x.GetNamespace()},
			})
			continue
		}
		if r := d.records[i]; r.GetId().GetUid() == x.GetUid() && r.GetModifyIndex() == x.GetIndex() {
			d.records[i] = nil
		}
		delete(d.at, where) // a place is told once
	}
	return deletes, nil
}
