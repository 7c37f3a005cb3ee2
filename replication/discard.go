// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/internal/atomicfile"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcehttp"
)

const (
	// maxDiscardFile is the size in bytes from which a further file is begun.
	// Each addition writes the whole file again.
	maxDiscardFile = 16 << 20
	// maxLoggedNames limits the names in a log line.
	maxLoggedNames = 20
)

// discards saves the writes that a former primary must discard, because the new
// primary lacks them. "wanfed resource apply -f FILE" reads the files: one
// resource in JSON per line.
type discards struct {
	manager *PrimaryManager
	// copied is the index up to which the new primary has copied the resources
	// of this datacenter. 0: unknown.
	copied uint64
	file   string // "" before the first write
	data   []byte // contents of file
}

// newDiscards returns the discards of a stream of the new primary. formers are
// the former primaries that the new one knows.
func newDiscards(ctx context.Context, p *PrimaryManager, formers []*pb.FormerPrimary) (*discards, error) {
	group, err := federation.GroupID(ctx, p.cfg.Backend)
	if err != nil {
		return nil, err
	}
	d := &discards{manager: p}
	for _, f := range formers {
		if f.GetDatacenter() == p.cfg.DC && f.GetGroupId() == group {
			d.copied = f.GetIndex()
		}
	}
	return d, nil
}

// save saves the resources of this datacenter that ms delete or replace, and
// that the new primary never had. The caller commits ms only after save has
// succeeded.
func (d *discards) save(ctx context.Context, ms []*pb.FollowResponse) error {
	found := map[string]*pb.Resource{} // by uid; nil: visited, and not lost
	for _, m := range ms {
		for _, id := range m.GetDeletes() {
			if err := d.collect(ctx, id, nil, found); err != nil {
				return err
			}
		}
		for _, r := range m.GetUpserts() {
			if err := d.collect(ctx, r.GetId(), r, found); err != nil {
				return err
			}
		}
	}
	maps.DeleteFunc(found, func(_ string, r *pb.Resource) bool { return r == nil })
	if len(found) == 0 {
		return nil
	}
	var lines bytes.Buffer
	var names []string
	for _, r := range ownersFirst(found) {
		line, err := encodeDiscarded(d.manager.cfg.Registry, r)
		if err != nil {
			return fmt.Errorf("encode %s: %w", resource.IDString(r.GetId()), err)
		}
		lines.Write(append(line, '\n'))
		names = append(names, r.GetId().GetType().GetKind()+" "+r.GetId().GetName())
	}
	if err := d.write(lines.Bytes()); err != nil {
		return fmt.Errorf("save the writes that the new primary lacks, before they are discarded: %w", err)
	}
	d.manager.cfg.Logger.Warn("discarding acknowledged writes that the new primary lacks; they are saved in a file",
		"file", d.file, "count", len(names), "names", names[:min(len(names), maxLoggedNames)])
	return nil
}

// collect adds the resource that is stored under id to found if it is lost, and
// otherwise nil. It also adds the resources that are deleted with it.
func (d *discards) collect(ctx context.Context, id *pb.ID, replacement *pb.Resource,
	found map[string]*pb.Resource) error {
	own, err := d.manager.cfg.Backend.Read(ctx, resource.Eventual,
		&pb.ID{Type: id.GetType(), Tenancy: id.GetTenancy(), Name: id.GetName()})
	if mismatch, ok := errors.AsType[*resource.GroupVersionError](err); ok {
		own, err = mismatch.Stored, nil
	}
	switch {
	case errors.Is(err, resource.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	if found[own.GetId().GetUid()] = nil; d.lost(own, replacement) {
		found[own.GetId().GetUid()] = own
	}
	if own.GetPrimaryModifyIndex() != 0 || replacement.GetId().GetUid() == own.GetId().GetUid() {
		return nil
	}
	owned, err := d.manager.cfg.Backend.ListByOwner(ctx, own.GetId())
	if err != nil {
		return err
	}
	for _, r := range owned {
		_, visited := found[r.GetId().GetUid()]
		if visited || d.manager.follower.types[kindOf(r.GetId().GetType())] == nil {
			continue
		}
		if err := d.collect(ctx, r.GetId(), nil, found); err != nil {
			return err
		}
	}
	return nil
}

// ownersFirst returns the resources in an order in which they can be created.
// byUID has their uids as keys.
func ownersFirst(byUID map[string]*pb.Resource) []*pb.Resource {
	depth := func(r *pb.Resource) (n int) {
		for o := byUID[r.GetOwner().GetUid()]; o != nil && n < len(byUID); o = byUID[o.GetOwner().GetUid()] {
			n++
		}
		return n
	}
	return slices.SortedFunc(maps.Values(byUID), func(a, b *pb.Resource) int {
		return cmp.Or(cmp.Compare(depth(a), depth(b)), cmp.Compare(a.GetModifyIndex(), b.GetModifyIndex()),
			cmp.Compare(a.GetId().GetUid(), b.GetId().GetUid()))
	})
}

// lost reports whether own is a resource that this datacenter wrote as the
// primary, and that the new primary never had. replacement is nil if the new
// primary has no resource of its name.
func (d *discards) lost(own, replacement *pb.Resource) bool {
	switch _, deleted := resource.Terminating(own); {
	case own.GetPrimaryModifyIndex() != 0, own.GetModifyIndex() <= d.copied, deleted:
		return false
	case resource.SameType(own.GetId().GetType(), federation.StateType):
		return false // AntiEntropy of the state's datacenter writes it again
	case replacement == nil:
		return true
	}
	a, b := replicaOf(own), replicaOf(replacement)
	for _, r := range []*pb.Resource{a, b} {
		r.PrimaryModifyIndex, r.PrimaryEpoch = 0, 0
	}
	return !proto.Equal(a, b)
}

// write adds lines to the file.
func (d *discards) write(lines []byte) error {
	if d.file == "" || len(d.data) >= maxDiscardFile {
		d.data = nil
		name := "discarded-" + time.Now().UTC().Format("20060102T150405.000000000Z") + ".json"
		d.file = filepath.Join(d.manager.cfg.DataDir, name)
	}
	d.data = append(d.data, lines...)
	return atomicfile.WriteFile(d.file, d.data, 0o600)
}

// encodeDiscarded returns the JSON of r without uid, version and status. It can
// therefore be written in any primary.
func encodeDiscarded(g *resource.Registry, r *pb.Resource) ([]byte, error) {
	data, err := resourcehttp.DataJSON(g, r)
	if err != nil {
		return nil, err
	}
	r = &pb.Resource{Id: proto.CloneOf(r.GetId()), Owner: proto.CloneOf(r.GetOwner()), Metadata: r.GetMetadata()}
	r.Id.Uid = ""
	if r.Owner != nil {
		r.Owner.Uid = ""
	}
	return json.Marshal(api.FromResource(r, data))
}

// DiscardFiles returns the files of this server with writes that this
// datacenter discarded as a former primary, the oldest first. An operator
// removes them.
func (p *PrimaryManager) DiscardFiles() []string {
	files, _ := filepath.Glob(filepath.Join(p.cfg.DataDir, "discarded-*.json")) // fails only for an invalid pattern
	slices.Sort(files)
	return files
}

// formersAfter returns the former primaries after the promotion of this
// datacenter in place of former.
func (p *PrimaryManager) formersAfter(ctx context.Context, former string) ([]*pb.FormerPrimary, error) {
	st := p.stored()
	state, _, err := federation.ReadState(ctx, p.cfg.Backend, former)
	if err != nil {
		return nil, err
	}
	next := slices.DeleteFunc(st.GetFormers(), func(f *pb.FormerPrimary) bool {
		return f.GetDatacenter() == former || f.GetDatacenter() == p.cfg.DC
	})
	f := &pb.FormerPrimary{Datacenter: former, GroupId: state.GetGroupId()}
	if st.GetDatacenter() == former && st.GetComplete() {
		f.Index = st.GetReached()
		if p.followedDC() == former {
			f.Index = max(f.Index, p.follower.Status().Index)
		}
	}
	return append(next, f), nil
}

// reachedInterval is the interval at which a Follower stores its index. It also
// stores the index at the end of a stream.
const reachedInterval = 10 * time.Second

// storeReached stores the index that the replicas have reached, unless the last
// call that stored one is less than interval ago. An index that has decreased,
// because the primary restored a snapshot, is stored at once.
func (f *Follower) storeReached(ctx context.Context, interval time.Duration) error {
	st, index := f.manager.stored(), f.Status().Index
	if !st.GetComplete() || index == 0 || index == st.GetReached() ||
		index > st.GetReached() && time.Since(f.reachedAt) < interval {
		return nil
	}
	f.reachedAt = time.Now()
	err := f.manager.update(ctx, func(st *pb.Primary) { st.Reached = index })
	if errors.Is(err, resource.ErrConflict) {
		return nil // the next heartbeat repeats it
	}
	return err
}
