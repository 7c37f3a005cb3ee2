// SPDX-License-Identifier: MPL-2.0

package rpc

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
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
)

const (
	// leaderTimeout is the maximum time that a call waits for a leader of the
	// datacenter.
	leaderTimeout = 7 * time.Second
	// forwardDelay is the pause before a call is forwarded again to a leader
	// that could not be reached.
	forwardDelay = 100 * time.Millisecond
	// acceptedKey is the header that a leader sends when it accepts a forwarded
	// stream, before it reads the first message.
	acceptedKey = "wanfed-leader"
)

// atLeader makes a call at the leader. If this server leads, atLeader calls
// serve. Otherwise atLeader calls forward with the node of the leader. It
// repeats this, up to leaderTimeout, while the datacenter has no leader or
// forward returns retry. The argument forwarded reports that another server
// forwarded the call to this server.
func (e *Edge) atLeader(
	ctx context.Context, forwarded bool, serve func() error, forward func(node string) (retry bool, err error),
) error {
	for deadline := time.Now().Add(leaderTimeout); ; {
		changed := e.cfg.Leader.LeaderChanged()
		if e.cfg.Leader.IsLeader() {
			return serve()
		}
		var err error
		wait := time.Until(deadline)
		if node, ok := e.cfg.Leader.Leader(); ok && node != e.cfg.Node {
			if forwarded { // the forwarding server must find the leader again
				return e.notLeader(node)
			}
			var retry bool
			if retry, err = forward(node); !retry {
				return err
			}
			wait = min(wait, forwardDelay) // the leader may be dead, or no longer lead
		}
		backoff.Sleep(ctx, wait, changed)
		switch {
		case ctx.Err() != nil:
			return status.FromContextError(ctx.Err()).Err()
		case time.Now().Before(deadline):
		case err != nil:
			return err
		default:
			return e.noLeader()
		}
	}
}

// retryUntilLeader calls serve. It repeats this, up to leaderTimeout, while
// serve fails because the datacenter has no leader.
func (e *Edge) retryUntilLeader(ctx context.Context, serve func() error) error {
	for start := time.Now(); ; {
		changed := e.cfg.Leader.LeaderChanged()
		err := serve()
		if !notDone(err) || time.Since(start) >= leaderTimeout {
			return err
		}
		backoff.Sleep(ctx, forwardDelay, changed)
		if ctx.Err() != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// noLeader returns the error of a call that waited for a leader without
// success.
func (e *Edge) noLeader() error {
	reason := "its servers must reach each other (see: wanfed members)"
	if err := e.cfg.WriteError(); err != nil {
		reason = fmt.Sprintf("%s: %v", e.cfg.Node, err)
	}
	return resource.StatusError(noLeaderError(fmt.Sprintf("%s has no leader; %s", e.cfg.DC, reason)))
}

// noLeaderError is a resource.ErrNotLeader with its own text.
type noLeaderError string

func (e noLeaderError) Error() string        { return string(e) }
func (e noLeaderError) Is(target error) bool { return target == resource.ErrNotLeader }

// notLeader returns the error of a call that was forwarded to this server while
// node leads.
func (e *Edge) notLeader(node string) error {
	return resource.StatusError(fmt.Errorf("%s in %s: %w; %s is", e.cfg.Node, e.cfg.DC, resource.ErrNotLeader, node))
}

// notSent returns the error of a call that could not be sent to the leader. The
// call had no effect, so it may be repeated.
func (e *Edge) notSent(node string, err error) error {
	return resource.StatusError(fmt.Errorf("%s in %s: %w; %s is, and cannot be reached: %s",
		e.cfg.Node, e.cfg.DC, resource.ErrNotLeader, node, status.Convert(err).Message()))
}

// notDone reports whether a call failed without effect because no leader
// accepted the call.
func notDone(err error) bool { return errors.Is(resource.FromStatus(err), resource.ErrNotLeader) }

// unknownOutcome converts the error of a call that was sent to the leader and
// ended without a response. The leader may have executed the call.
func (e *Edge) unknownOutcome(node string, err error) error {
	// A response of the leader has another code, or an error of package resource.
	if status.Code(err) != codes.Unavailable || resource.FromStatus(err) != err {
		return err
	}
	return resource.StatusError(fmt.Errorf("at the leader of %s, %s: %w: %s; read the data before you repeat the call",
		e.cfg.DC, node, resource.ErrUnknownOutcome, status.Convert(err).Message()))
}

// forward makes a call at the leader, with the identity and the deadline of the
// caller. A function of Config.Forward authorizes the caller itself, because it
// calls the leader with the identity of this server.
func (e *Edge) forward(ctx context.Context, c call, node, method string, req any) (any, error) {
	if f := e.cfg.Forward[method]; f != nil {
		return f(ctx, node, req)
	}
	_, reply, err := messagesOf(method)
	if err != nil {
		return nil, err
	}
	cc, err := e.cfg.Connect(node)
	if err != nil {
		return nil, e.notSent(node, err)
	}
	ctx = c.outgoing(ctx)
	var leader grpcpeer.Peer // stays empty if the call was not sent
	err = cc.Invoke(ctx, method, req, reply, grpc.Peer(&leader))
	switch {
	case err == nil:
		return reply, nil
	case leader.Addr == nil && status.Code(err) == codes.Unavailable:
		return nil, e.notSent(node, err)
	}
	return nil, err
}

// outgoing returns the context of a call at the leader, with the identity of the
// caller, its address, and the epoch that a server of another datacenter has sent.
func (c call) outgoing(ctx context.Context) context.Context {
	incoming, _ := metadata.FromIncomingContext(ctx)
	md := onBehalf(c.caller)
	md.Append(api.EpochKey, incoming.Get(api.EpochKey)...)
	md.Set(api.OnBehalfAddrKey, c.record.Addr)
	return metadata.NewOutgoingContext(ctx, md)
}

// streamAtLeader serves a stream at the leader. If another server leads, the
// stream is relayed message by message. A stream that broke after the leader
// accepted it is not restarted.
func (e *Edge) streamAtLeader(
	ctx context.Context, c call, info *grpc.StreamServerInfo, ss grpc.ServerStream, serve func() error,
) error {
	acceptAndServe := func() error {
		if c.forwarded {
			if err := ss.SendHeader(metadata.Pairs(acceptedKey, e.cfg.Node)); err != nil {
				return err
			}
		}
		return serve()
	}
	return e.atLeader(ctx, c.forwarded, acceptAndServe, func(node string) (retry bool, err error) {
		err = e.relay(ctx, c, node, info, ss)
		return notDone(err), err
	})
}

// relay relays a stream to the leader: first the requests, then the responses.
// It therefore supports no bidirectional streams: either the requests or the
// responses must be a single message, which test/rules checks. relay reads no
// request before the leader has accepted the stream. Until then, the stream can
// be relayed to another leader.
func (e *Edge) relay(
	ctx context.Context, c call, node string, info *grpc.StreamServerInfo, ss grpc.ServerStream,
) error {
	in, out, err := messagesOf(info.FullMethod)
	if err != nil {
		return err
	}
	cc, err := e.cfg.Connect(node)
	if err != nil {
		return e.notSent(node, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ctx = c.outgoing(ctx)
	desc := &grpc.StreamDesc{ClientStreams: info.IsClientStream, ServerStreams: info.IsServerStream}
	leader, err := cc.NewStream(ctx, desc, info.FullMethod)
	var header metadata.MD
	if err == nil {
		header, err = leader.Header()
	}
	switch {
	case status.Code(err) == codes.Unavailable:
		return e.notSent(node, err)
	case err != nil:
		return err
	case len(header.Get(acceptedKey)) == 0:
		if err := leader.RecvMsg(out); err != nil && !errors.Is(err, io.EOF) {
			return err // the reason why the leader refused the stream
		}
		return status.Errorf(codes.Internal, "%s responded to %s without accepting the stream", node, info.FullMethod)
	}
	// If the leader ends the stream early, SendMsg returns io.EOF, and RecvMsg
	// returns the error of the leader.
	err = relayMessages(in, info.IsClientStream, ss.RecvMsg, leader.SendMsg)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := leader.CloseSend(); err != nil {
		return err
	}
	return relayMessages(out, info.IsServerStream, leader.RecvMsg, ss.SendMsg)
}

// relayMessages relays one message from receive to send, or many messages until
// receive returns io.EOF. It uses m for all messages.
func relayMessages(m proto.Message, many bool, receive, send func(any) error) error {
	for {
		proto.Reset(m)
		err := receive(m)
		if many && errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = send(m)
		}
		if err != nil || !many {
			return err
		}
	}
}

// messagesOf returns an empty request and an empty response of a method,
// "/package.Service/Method".
func messagesOf(method string) (in, out proto.Message, err error) {
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", "."))
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	m, ok := d.(protoreflect.MethodDescriptor)
	if err != nil || !ok {
		return nil, nil, fmt.Errorf("forward %s: no such method", method)
	}
	request, requestErr := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
	response, responseErr := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
	if err := errors.Join(requestErr, responseErr); err != nil {
		return nil, nil, fmt.Errorf("forward %s: %w", method, err)
	}
	return request.New().Interface(), response.New().Interface(), nil
}
