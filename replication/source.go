// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// SourceHeartbeat is how often an idle stream carries an empty message.
const SourceHeartbeat = 2 * time.Second

// Chunks of the first difference: at most this many resources, and this many bytes, in a message.
const (
	chunkResources = 256
	chunkBytes     = 1 << 20
)

// SourceConfig configures a Source.
type SourceConfig struct {
	Backend  resource.Backend
	Registry *resource.Registry
	// Primary says whether this datacenter is the primary: only its records may be followed.
	Primary bool
}

// Source lets secondaries follow this datacenter's federated records.
type Source struct {
	pb.UnimplementedReplicationServiceServer
	cfg SourceConfig
}

// NewSource checks cfg.
func NewSource(cfg SourceConfig) (*Source, error) {
	if cfg.Backend == nil || cfg.Registry == nil {
		return nil, errors.New("replication: Backend and Registry are required")
	}
	return &Source{cfg: cfg}, nil
}

// Follow implements pb.ReplicationServiceServer. It ends when the follower goes, or with UNAVAILABLE when the store was
// replaced: the follower then begins anew.
func (s *Source) Follow(req *pb.FollowRequest, stream grpc.ServerStreamingServer[pb.FollowResponse]) error {
	if !s.cfg.Primary {
		return status.Error(codes.FailedPrecondition, "this datacenter is not the primary: nothing to follow here")
	}
	reg, err := s.cfg.Registry.Lookup(req.GetType())
	if err != nil {
		return resource.StatusError(err)
	}
	if !reg.Federated {
		return status.Errorf(codes.InvalidArgument, "%s is no federated type", resource.TypeString(req.Type))
	}
	w, err := s.cfg.Backend.Watch(resource.Query{Type: req.Type})
	if err != nil {
		return resource.StatusError(err)
	}
	defer w.Close()
	index, err := s.difference(stream, w, req.Have)
	if err != nil {
		return err
	}
	return s.changes(stream, w, index)
}

// difference reads the watch's snapshot and sends what the follower has not, and the names it has too many. At least one
// message is sent, so that the follower knows it is in sync.
func (s *Source) difference(stream grpc.ServerStreamingServer[pb.FollowResponse], w resource.Watch, have []*pb.Digest) (uint64, error) {
	known := make(map[string]*pb.Digest, len(have))
	for _, d := range have {
		known[d.Name] = d
	}
	var index uint64
	msg, size := &pb.FollowResponse{}, 0
	for {
		e, err := w.Next(stream.Context())
		if err != nil {
			return 0, resource.StatusError(err)
		}
		if e.GetEndOfSnapshot() != nil {
			break
		}
		r := e.GetUpsert().GetResource()
		index = max(index, r.GetModifyIndex())
		d := known[r.GetId().GetName()]
		delete(known, r.GetId().GetName())
		if d != nil && d.Uid == r.Id.Uid && d.PrimaryModifyIndex == r.ModifyIndex {
			continue
		}
		msg.Upserts = append(msg.Upserts, outgoing(r))
		size += proto.Size(r)
		if len(msg.Upserts) >= chunkResources || size >= chunkBytes {
			if err := stream.Send(msg); err != nil {
				return 0, err
			}
			msg, size = &pb.FollowResponse{}, 0
		}
	}
	for name := range known {
		msg.Deletes = append(msg.Deletes, name)
	}
	msg.Index = index
	return index, stream.Send(msg)
}

// changes sends each change as it comes, and a sign of life when none does.
func (s *Source) changes(stream grpc.ServerStreamingServer[pb.FollowResponse], w resource.Watch, index uint64) error {
	for {
		ctx, cancel := context.WithTimeout(stream.Context(), SourceHeartbeat)
		e, err := w.Next(ctx)
		cancel()
		msg := &pb.FollowResponse{}
		switch {
		case err == nil:
			if r := e.GetUpsert().GetResource(); r != nil {
				index = max(index, r.ModifyIndex)
				msg.Upserts = []*pb.Resource{outgoing(r)}
			} else if r := e.GetDelete().GetResource(); r != nil {
				index = max(index, r.ModifyIndex)
				msg.Deletes = []string{r.Id.Name}
			}
		case errors.Is(err, context.DeadlineExceeded) && stream.Context().Err() == nil:
		default:
			return resource.StatusError(err)
		}
		msg.Index = index
		if err := stream.Send(msg); err != nil {
			return err
		}
	}
}

// outgoing is the copy of a resource that a secondary stores: no status, and our index as the primary's.
func outgoing(r *pb.Resource) *pb.Resource {
	return &pb.Resource{
		Id: r.Id, Owner: r.Owner, Generation: r.Generation, Metadata: r.Metadata, Data: r.Data,
		PrimaryModifyIndex: r.ModifyIndex,
	}
}
