// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/fnv"
	"math/bits"
	"slices"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// A summary has about one bucket for every resourcesPerBucket resources, and at
// most maxBuckets buckets.
const (
	resourcesPerBucket = 32
	maxBuckets         = 1024
)

// kind is a type without its version. Names are unique within a kind.
type kind struct{ group, name string }

func kindOf(t *pb.Type) kind { return kind{t.GetGroup(), t.GetKind()} }

func (k kind) String() string { return k.group + "/" + k.name }

func (k kind) typ() *pb.Type { return &pb.Type{Group: k.group, Kind: k.name} }

func (k kind) compare(other kind) int {
	return cmp.Or(cmp.Compare(k.group, other.group), cmp.Compare(k.name, other.name))
}

// query selects all resources of a kind.
func (k kind) query() resource.Query {
	tenancy := &pb.Tenancy{Partition: resource.Wildcard, Namespace: resource.Wildcard}
	return resource.Query{Type: k.typ(), Tenancy: tenancy}
}

// kindsOf returns the kinds of the federated types in g, in order, and the
// registered types of each kind.
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

// digest identifies one state of one resource.
type digest struct {
	key   string // see keyOf
	uid   string
	index uint64 // ModifyIndex in the primary
}

// keyOf returns the tenancy and name of id, which are unique within a kind.
func keyOf(id *pb.ID) string {
	t := resource.FillTenancy(id.GetTenancy())
	return joinKey(t.Partition, t.Namespace, id.GetName())
}

func joinKey(partition, namespace, name string) string {
	return partition + "\x00" + namespace + "\x00" + name
}

// bucketsFor returns the number of buckets for n resources: a power of 2, or 0.
func bucketsFor(n int) int {
	if n == 0 {
		return 0
	}
	return min(maxBuckets, 1<<bits.Len(uint(n-1)/resourcesPerBucket))
}

func bucketOf(key string, buckets int) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	v := h.Sum64()
	return int((v ^ v>>32) & uint64(buckets-1))
}

// summarize returns the checksum of each bucket. The checksum of an empty
// bucket is 0. Both sides list resources in the same order: by tenancy and
// name.
func summarize(all []digest, buckets int) []uint64 {
	state := make([]hash.Hash, buckets)
	var buf []byte
	for _, d := range all {
		i := bucketOf(d.key, buckets)
		if state[i] == nil {
			state[i] = sha256.New()
		}
		buf = append(buf[:0], d.key...)
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

// difference contains the resources of one kind that a follower may lack.
type difference struct {
	resources []*pb.Resource // in order; nil element: the follower has the resource
	at        map[string]int // by key: index into resources
	requested []bool         // by bucket: the follower must send its digests
}

// compare compares the resources of one kind with the checksums of a follower.
// It returns the resources that may differ from the follower's, and the buckets
// whose digests are needed.
func compare(resources []*pb.Resource, sums []uint64) (difference, []uint32, error) {
	d := difference{at: map[string]int{}}
	n := len(sums)
	if n == 0 { // the follower has no resources
		d.resources = slices.Clone(resources)
		return d, nil, nil
	}
	if n > maxBuckets || n&(n-1) != 0 {
		return d, nil, fmt.Errorf("a summary has %d buckets: must be a power of 2, at most %d", n, maxBuckets)
	}
	digests := make([]digest, len(resources))
	for i, r := range resources {
		digests[i] = digest{keyOf(r.GetId()), r.GetId().GetUid(), r.GetModifyIndex()}
	}
	var needed []uint32
	d.requested = make([]bool, n)
	for i, sum := range summarize(digests, n) {
		if d.requested[i] = sum != sums[i]; d.requested[i] {
			needed = append(needed, uint32(i))
		}
	}
	for i, r := range resources {
		if d.requested[bucketOf(digests[i].key, n)] {
			d.at[digests[i].key] = len(d.resources)
			d.resources = append(d.resources, r)
		}
	}
	return d, needed, nil
}

// applyDetails processes digests of the requested buckets. It removes the
// resources that the follower has from d, and returns the ids that the follower
// must delete. The ids have type typ. Their uids identify the resources in any
// version of the type.
func (d *difference) applyDetails(typ *pb.Type, digests []*pb.FollowDigest) (deletes []*pb.ID, err error) {
	for _, x := range digests {
		k := joinKey(x.GetPartition(), x.GetNamespace(), x.GetName())
		if len(d.requested) == 0 || !d.requested[bucketOf(k, len(d.requested))] {
			return nil, fmt.Errorf("details of %s %q were not requested", typ.GetKind(), x.GetName())
		}
		i, found := d.at[k]
		if !found {
			deletes = append(deletes, &pb.ID{
				Type: typ, Name: x.GetName(), Uid: x.GetUid(),
				Tenancy: &pb.Tenancy{Partition: x.GetPartition(), Namespace: x.GetNamespace()},
			})
			continue
		}
		if r := d.resources[i]; r.GetId().GetUid() == x.GetUid() && r.GetModifyIndex() == x.GetIndex() {
			d.resources[i] = nil
		}
		delete(d.at, k) // a repeated digest counts as a resource that does not exist here
	}
	return deletes, nil
}
