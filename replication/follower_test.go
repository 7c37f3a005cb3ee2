// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// fakeSource is a faulty primary. It sends the given messages and then nothing.
type fakeSource struct {
	pb.UnimplementedReplicationServiceServer
	messages []*pb.FollowResponse
}

func (s *fakeSource) Follow(stream grpc.BidiStreamingServer[pb.FollowRequest, pb.FollowResponse]) error {
	for _, m := range s.messages {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return nil
}

func (s *fakeSource) follower(t *testing.T, secondary resource.Backend) *Follower {
	t.Helper()
	srv := grpc.NewServer()
	pb.RegisterReplicationServiceServer(srv, s)
	ln, _ := serve(t, srv)
	conn := connect(t, ln)
	return follower(t, secondary, func() *grpc.ClientConn { return conn })
}

// A follower stores changes of federated types only. Invalid changes do not
// delay valid changes in the same message.
func TestFollower_RefusesInvalidChanges(t *testing.T) {
	secondary := resourcetest.NewStore()
	local := put(t, secondary, localType, "local", "own")
	own := put(t, secondary, docType, "own", "own")
	replica := func(typ *pb.Type, name, uid string, index uint64) *pb.Resource {
		r := newResource(t, typ, "x", "1")
		r.Id.Name, r.Id.Uid, r.PrimaryModifyIndex = name, uid, index
		return r
	}
	valid, localUpsert := replica(docType, "valid", "u1", 7), replica(localType, "x", "u2", 7)
	source := &fakeSource{messages: []*pb.FollowResponse{
		{Begin: &pb.FollowBegin{Kinds: []*pb.FollowKind{
			{Type: docType, Records: 1}, {Type: localType, Records: 9, Unknown: 9},
		}}},
		{
			Upserts: []*pb.Resource{
				localUpsert,
				replica(docType, "no-uid", "", 7),
				replica(docType, "no-index", "u3", 0),
				replica(docType, "nul\x00", "u4", 7),
				valid, nil, {},
			},
			Deletes: []*pb.ID{local.Id, {Type: docType, Name: own.Id.Name, Tenancy: own.Id.Tenancy}, nil, {}},
			Index:   7,
		},
	}}
	f := source.follower(t, secondary)
	run(t, f.run)
	waitUntil(t, secondary, func() error {
		if st := f.Status(); st.Refused != 10 || st.Changes != 1 || st.Index != 7 {
			return fmt.Errorf("Status() = %+v, want 10 refused changes, 1 change and index 7", st)
		}
		return nil
	})
	for _, r := range []*pb.Resource{local, own, valid} {
		if _, err := secondary.Read(t.Context(), resource.Eventual, r.Id); err != nil {
			t.Errorf("Read(%s) = %v, want nil", r.Id.Name, err)
		}
	}
	if _, err := secondary.Read(t.Context(), resource.Eventual, localUpsert.Id); !errors.Is(err, resource.ErrNotFound) {
		t.Errorf("Read() of a refused resource = %v, want ErrNotFound", err)
	}
}

// A stream without messages times out.
func TestFollower_StreamTimeout(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for streamTimeout")
	}
	t.Parallel()
	secondary := resourcetest.NewStore()
	f := (&fakeSource{}).follower(t, secondary)
	start := time.Now()
	run(t, f.run)
	waitUntil(t, secondary, func() error {
		if f.Status().LastError == nil {
			return errors.New("LastError = nil, want a timeout")
		}
		return nil
	})
	if elapsed := time.Since(start); elapsed < streamTimeout || elapsed > streamTimeout+5*time.Second {
		t.Errorf("stream ended after %v, want %v", elapsed, streamTimeout)
	}
}
