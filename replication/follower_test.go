// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// hostile is a compromised or faulty primary. It sends the given messages.
type hostile struct {
	pb.UnimplementedReplicationServiceServer
	messages []*pb.FollowResponse
}

func (h *hostile) Follow(stream grpc.BidiStreamingServer[pb.FollowRequest, pb.FollowResponse]) error {
	for _, m := range h.messages {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return nil
}

// A primary can write federated resources and nothing else. Invalid changes do not
// delay the others.
func TestFollower_RefusesInvalidChanges(t *testing.T) {
	secondary := resourcetest.NewStore()
	local := put(t, secondary, localType, "mine", "own")
	kept := put(t, secondary, docType, "kept", "own")
	good, local2, noUID, noIndex := record(t, docType, "good", "1"), record(t, localType, "x", "1"), record(t, docType, "x", "1"), record(t, docType, "y", "1")
	for _, r := range []*pb.Resource{good, local2, noUID} {
		r.PrimaryModifyIndex = 7
	}
	noUID.Id.Uid = ""
	nul := record(t, docType, "z", "1")
	nul.Id.Name, nul.PrimaryModifyIndex = "z\x00", 7
	h := &hostile{messages: []*pb.FollowResponse{
		{Begin: &pb.FollowBegin{Kinds: []*pb.FollowKind{{Type: docType, Records: 1}, {Type: localType, Records: 9, Unknown: 9}}}},
		{
			Upserts: []*pb.Resource{local2, noUID, noIndex, nul, good, nil, {}},
			Deletes: []*pb.ID{local.Id, {Type: docType, Name: "kept", Tenancy: kept.Id.Tenancy}, nil, {}},
			Index:   7,
		},
	}}
	srv := grpc.NewServer()
	pb.RegisterReplicationServiceServer(srv, h)
	ln, _ := serve(t, srv)
	cc := connect(t, ln)
	f := follower(t, secondary, func() *grpc.ClientConn { return cc })
	run(t, f.Run)
	until(t, secondary, func() error {
		if st := f.Status(); st.Refused != 10 || st.Changes != 1 || st.Index != 7 {
			return fmt.Errorf("status: %+v", st)
		}
		return nil
	})
	for _, r := range []*pb.Resource{local, kept, good} {
		if _, err := secondary.Read(t.Context(), resource.Eventual, r.Id); err != nil {
			t.Error(err)
		}
	}
	if _, err := secondary.Read(t.Context(), resource.Eventual, local2.Id); !errors.Is(err, resource.ErrNotFound) {
		t.Errorf("Read() of a record of a local type = %v, want ErrNotFound", err)
	}
}

// leaderless is the store of a server without a leader.
type leaderless struct{ *resourcetest.Store }

func (s leaderless) List(ctx context.Context, c resource.Consistency, q resource.Query) ([]*pb.Resource, uint64, error) {
	if c == resource.Strong {
		return nil, 0, resource.ErrNotLeader
	}
	return s.Store.List(ctx, c, q)
}

// A silent stream times out.
func TestFollower_StreamTimeout(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as streamTimeout")
	}
	t.Parallel()
	secondary := resourcetest.NewStore()
	srv := grpc.NewServer()
	pb.RegisterReplicationServiceServer(srv, &hostile{})
	ln, _ := serve(t, srv)
	cc := connect(t, ln)
	f := follower(t, secondary, func() *grpc.ClientConn { return cc })
	began := time.Now()
	run(t, f.Run)
	until(t, secondary, func() error {
		if f.Status().LastError == nil {
			return errors.New("still following")
		}
		return nil
	})
	if took := time.Since(began); took < streamTimeout || took > streamTimeout+5*time.Second {
		t.Errorf("the stream ended after %v, want %v", took, streamTimeout)
	}
}
