// SPDX-License-Identifier: MPL-2.0

package operator

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/logtail"
)

// DescribeServer implements pb.OperatorServiceServer. Any server responds.
func (s *Service) DescribeServer(context.Context, *pb.DescribeServerRequest) (*pb.DescribeServerResponse, error) {
	out := s.Describe()
	out.Datacenter, out.Node, out.Now = s.DC, s.Node, timestamppb.New(time.Now())
	out.RaftRole, out.LastIndex = "follower", s.Store.LastIndex()
	if s.Store.IsLeader() {
		out.RaftRole = "leader"
	}
	out.Leader, _ = s.Store.Leader()
	members, _ := s.Store.Members() // without them, the number of voters is 0
	for _, m := range members {
		if m.Voter {
			out.Voters++
		}
	}
	return out, nil
}

// WatchLog implements pb.OperatorServiceServer. Any server responds.
func (s *Service) WatchLog(req *pb.WatchLogRequest, stream grpc.ServerStreamingServer[pb.LogLine]) error {
	if s.LogTail == nil {
		return status.Error(codes.Unimplemented, "the log of this server cannot be watched")
	}
	v, err := s.LogTail.Open(req.GetLevel(), req.GetFormat())
	if _, ok := errors.AsType[*logtail.TooManyError](err); ok {
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	defer v.Close()
	s.Logger.Info("log watched", "kind", req.GetLevel(), "operator", operatorName(stream.Context()))
	for line := (&pb.LogLine{}); ; {
		if err := stream.Send(line); err != nil {
			return err
		}
		next, err := v.Next(stream.Context())
		if err != nil {
			return status.FromContextError(err).Err()
		}
		line = &pb.LogLine{Text: next.Text, Dropped: next.Dropped}
	}
}
