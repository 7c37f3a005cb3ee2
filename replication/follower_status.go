// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// FollowerStatus tells how following goes.
type FollowerStatus struct {
	Connected bool
	// LastContact is when the primary last said anything: its stream carries a sign of life every SourceHeartbeat.
	LastContact time.Time
	// Index is the primary's index that the copies have reached.
	Index       uint64
	LastError   error
	LastErrorAt time.Time
	// ReceivedBytes is what came down the streams, encoded; Commits and Changes what it became here.
	ReceivedBytes, Commits, Changes uint64
	// Streams that went on where the last one had ended, and those that began with a comparison.
	Resumed, Compared uint64
	// Refused are records that the primary sent and that are none to store here.
	Refused uint64
}

// TypeStatus tells how copies of one type go.
type TypeStatus struct {
	// Type is group/version/Kind, as registered here; of several versions the first. Without version: not known here.
	Type string
	// Known: it is federated here. If not, nothing is copied.
	Known bool
	// Records are the copies here. Primary is how many the primary had when the stream began, Unknown those of them of which
	// this version of wanfed does not know the type.
	Records, Primary, Unknown uint64
	// Index is the highest of the primary that a copy came with, Changed when one last came or went since this server started.
	Index   uint64
	Changed time.Time
	// Changes and Bytes are what came, encoded.
	Changes, Bytes uint64
}

// kindStatus is guarded by Follower.mu.
type kindStatus struct {
	index, changes, bytes uint64
	primary, unknown      uint64
	changed               time.Time
	said                  bool // that a side does not know it
}

func (k kind) String() string { return k.group + "/" + k.name }

// Status returns how it goes. LastError is nil after a success.
func (f *Follower) Status() FollowerStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// Types returns how it goes with each type, ordered by name: those that are federated here, and those that the primary has
// besides. It counts the copies.
func (f *Follower) TypeStatuses(ctx context.Context) ([]TypeStatus, error) {
	records, highest := map[kind]uint64{}, map[kind]uint64{}
	for _, k := range f.order {
		all, _, err := f.cfg.Backend.List(ctx, resource.Eventual, k.everywhere())
		if err != nil {
			return nil, err
		}
		records[k] = uint64(len(all))
		for _, r := range all {
			highest[k] = max(highest[k], r.GetPrimaryModifyIndex())
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := []TypeStatus{}
	for k, st := range f.kinds {
		t := TypeStatus{
			Type: k.String(), Records: records[k], Primary: st.primary, Unknown: st.unknown,
			Index: max(st.index, highest[k]), Changed: st.changed, Changes: st.changes, Bytes: st.bytes,
		}
		if types := f.types[k]; types != nil {
			t.Known, t.Type = true, resource.TypeString(types[0])
		}
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b TypeStatus) int { return strings.Compare(a.Type, b.Type) })
	return out, nil
}

// Highest is the highest index of the primary that a copy here has: how far they are, also when the primary was not heard of since
// the start. 0 also when the store is closed. It reads all copies.
func (f *Follower) HighestIndex() (index uint64) {
	for _, k := range f.order {
		all, _, err := f.cfg.Backend.List(context.Background(), resource.Eventual, k.everywhere()) // of the own memory
		if err != nil {
			return 0
		}
		for _, r := range all {
			index = max(index, r.GetPrimaryModifyIndex())
		}
	}
	return index
}

func (f *Follower) heard() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Connected = true
	f.status.LastContact = time.Now()
	f.status.LastError = nil
}

// levelSince says whether the stream that began then has come to something.
func (f *Follower) levelSince(t time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.level.After(t)
}

// hasLast says whether the copies were level, last, with a primary that had handed over to dc before: then nothing is missing.
func (f *Follower) hasLast(dc string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.levelTo == dc
}

func (f *Follower) note(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Connected = false
	if err != nil {
		f.status.LastError, f.status.LastErrorAt = err, time.Now()
	}
}

// began notes how a stream begins. What is reached is told anew: the primary's index may have gone back.
func (f *Follower) began(begin *pb.FollowBegin) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handedTo = begin.GetHandedTo()
	if begin.GetResumed() {
		f.status.Resumed++
		return
	}
	f.status.Compared++
	f.anew = true
}

// reached notes what was stored.
func (f *Follower) reached(ms []*pb.FollowResponse, changes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if changes > 0 {
		f.status.Commits++
		f.status.Changes += uint64(changes)
	}
	for _, m := range ms {
		if m.GetIndex() > 0 {
			f.level, f.levelTo = time.Now(), f.handedTo
		}
		if f.anew && m.GetIndex() > 0 {
			f.anew, f.status.Index = false, 0
		}
		f.status.Index = max(f.status.Index, m.GetIndex())
		f.status.ReceivedBytes += uint64(proto.Size(m))
	}
}
