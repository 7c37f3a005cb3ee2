// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/wanfed/wanfed/dcrpc"
)

// leaderKey is the header by which a leader says, before it reads the first message of a stream that was forwarded to it, that it
// takes it.
const leaderKey = "wanfed-leader"

// atLeader has a stream answered by the leader: here, or by handing it on message by message. Until there is a leader that takes
// it it waits, but not long; a stream that broke after that is not begun again.
func (c *calls) atLeader(ctx context.Context, forwarded bool, info *grpc.StreamServerInfo, ss grpc.ServerStream, here func() error) error {
	hold := time.NewTimer(leaderHold)
	defer hold.Stop()
	for {
		changed, pause := c.leader.LeaderChanged(), noPause
		err := c.noLeader()
		if c.leader.IsLeader() {
			if forwarded {
				if err := ss.SendHeader(metadata.Pairs(leaderKey, c.node)); err != nil {
					return err
				}
			}
			return here()
		}
		if node, ok := c.leader.Leader(); ok && node != c.node {
			if forwarded {
				return c.notLeader(node)
			}
			if err = c.relay(ctx, node, info, ss); !notDone(err) {
				return err
			}
			pause = time.After(forwardPause)
		}
		select {
		case <-changed:
		case <-pause:
		case <-hold.C:
			return err
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// relay hands on a stream that goes one way, once the leader has taken it: nothing of it is read before. The pace of the slower
// end is the other's too.
func (c *calls) relay(ctx context.Context, node string, info *grpc.StreamServerInfo, ss grpc.ServerStream) error {
	p, err := peerFrom(ctx)
	if err != nil {
		return err
	}
	in, out, err := messagesOf(info.FullMethod)
	if err != nil {
		return err
	}
	cc, err := c.conns.Server(node)
	if err != nil {
		return c.notSent(node, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ctx = dcrpc.OnBehalf(metadata.NewOutgoingContext(ctx, metadata.MD{}), p)
	desc := &grpc.StreamDesc{ClientStreams: info.IsClientStream, ServerStreams: info.IsServerStream}
	far, err := cc.NewStream(ctx, desc, info.FullMethod)
	switch {
	case status.Code(err) == codes.Unavailable:
		return c.notSent(node, err)
	case err != nil:
		return err
	case info.IsClientStream && info.IsServerStream:
		return status.Errorf(codes.Unimplemented, "%s goes both ways: call the leader, %s", info.FullMethod, node)
	}
	if header, err := far.Header(); status.Code(err) == codes.Unavailable {
		return c.notSent(node, err)
	} else if err != nil {
		return err
	} else if len(header.Get(leaderKey)) == 0 {
		if err := far.RecvMsg(out); err != nil && !errors.Is(err, io.EOF) {
			return err // why it refuses
		}
		return status.Errorf(codes.Internal, "%s answered %s without having taken it", node, info.FullMethod)
	}
	if info.IsClientStream {
		return relayUp(ss, far, in, out)
	}
	return relayDown(ss, far, in, out)
}

// relayUp hands on many messages, and the one answer.
func relayUp(ss grpc.ServerStream, far grpc.ClientStream, in, out proto.Message) error {
	for {
		proto.Reset(in)
		err := ss.RecvMsg(in)
		if errors.Is(err, io.EOF) {
			if err := far.CloseSend(); err != nil {
				return err
			}
			break
		}
		if err != nil {
			return err
		}
		if err := far.SendMsg(in); err != nil {
			break // the answer says why
		}
	}
	if err := far.RecvMsg(out); err != nil {
		return err
	}
	return ss.SendMsg(out)
}

// relayDown hands on one message, and the many answers.
func relayDown(ss grpc.ServerStream, far grpc.ClientStream, in, out proto.Message) error {
	if err := ss.RecvMsg(in); err != nil {
		return err
	}
	if err := far.SendMsg(in); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := far.CloseSend(); err != nil {
		return err
	}
	for {
		proto.Reset(out)
		err := far.RecvMsg(out)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := ss.SendMsg(out); err != nil {
			return err
		}
	}
}

// messagesOf makes an empty message of each kind of a method, "/package.Service/Method".
func messagesOf(method string) (in, out proto.Message, err error) {
	if out, err = replyOf(method); err != nil {
		return nil, nil, err
	}
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil, nil, fmt.Errorf("forward %s: %w", method, err)
	}
	input := d.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(name)).Input() // replyOf has found the method
	mt, err := protoregistry.GlobalTypes.FindMessageByName(input.FullName())
	if err != nil {
		return nil, nil, fmt.Errorf("forward %s: %w", method, err)
	}
	return mt.New().Interface(), out, nil
}
