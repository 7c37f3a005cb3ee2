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
	// acceptedKey is the header by which a leader accepts a forwarded stream,
	// before it reads the first message.
	acceptedKey = "wanfed-leader"
	// consistencyKey is the metadata key of the consistency of a read.
	consistencyKey = "x-wanfed-consistency"
)

// atLeader makes a call at the leader. If this server leads, atLeader calls
// here. Otherwise it calls there(node), which forwards the call. It waits, up
// to leaderTimeout, while the datacenter has no leader or there reports retry.
func (e *Edge) atLeader(
	ctx context.Context, forwarded bool, here func() error, there func(node string) (retry bool, err error),
) error {
	timeout := time.After(leaderTimeout)
	for {
		changed, err := e.cfg.Leader.LeaderChanged(), e.noLeader()
		var delay <-chan time.Time
		if e.cfg.Leader.IsLeader() {
			return here()
		}
		if node, ok := e.cfg.Leader.Leader(); ok && node != e.cfg.Node {
			if forwarded { // return at once: the forwarding server must find the leader again
				return e.notLeader(node)
			}
			var retry bool
			if retry, err = there(node); !retry {
				return err
			}
			delay = time.After(forwardDelay) // the leader may be dead, or no longer lead
		}
		select {
		case <-changed:
		case <-delay:
		case <-timeout:
			return err
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// retryUntilLeader repeats a call on this server while the call fails because
// the datacenter has no leader.
func (e *Edge) retryUntilLeader(ctx context.Context, here func() error) error {
	for began := time.Now(); ; {
		changed := e.cfg.Leader.LeaderChanged()
		err := here()
		if err == nil || !notDone(err) || time.Since(began) >= leaderTimeout {
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
	why := "its servers must reach each other (see: wanfed members)"
	if err := e.cfg.WriteError(); err != nil {
		why = fmt.Sprintf("%s: %v", e.cfg.Node, err)
	}
	return resource.StatusError(noLeaderError(fmt.Sprintf("%s has no leader; %s", e.cfg.DC, why)))
}

// noLeaderError is a resource.ErrNotLeader with its own text.
type noLeaderError string

func (e noLeaderError) Error() string        { return string(e) }
func (e noLeaderError) Is(target error) bool { return target == resource.ErrNotLeader }

// notLeader returns the error of a call that was forwarded to this server even
// though node leads.
func (e *Edge) notLeader(node string) error {
	return resource.StatusError(fmt.Errorf("%s in %s: %w; %s is", e.cfg.Node, e.cfg.DC, resource.ErrNotLeader, node))
}

// notSent returns the error of a call that could not be sent to the leader. The
// call had no effect, so it may be repeated.
func (e *Edge) notSent(node string, err error) error {
	return resource.StatusError(fmt.Errorf("%s in %s: %w; %s is, and cannot be reached: %s",
		e.cfg.Node, e.cfg.DC, resource.ErrNotLeader, node, status.Convert(err).Message()))
}

// notDone reports whether a call failed without effect, because no leader
// accepted it.
func notDone(err error) bool { return errors.Is(resource.FromStatus(err), resource.ErrNotLeader) }

// unknownOutcome converts the error of a call that was sent to the leader and
// ended without a response. The leader may have executed the call.
func (e *Edge) unknownOutcome(node string, err error) error {
	if status.Code(err) != codes.Unavailable || resource.FromStatus(err) != err {
		return err
	}
	return resource.StatusError(fmt.Errorf("at the leader of %s, %s: %w: %s; read before you do it again",
		e.cfg.DC, node, resource.ErrUnknownOutcome, status.Convert(err).Message()))
}

// forward makes a call at the leader, for the same caller and with its
// deadline.
func (e *Edge) forward(ctx context.Context, c call, node, method string, req any) (any, error) {
	_, reply, err := messagesOf(method)
	if err != nil {
		return nil, err
	}
	cc, err := e.cfg.Connect(node)
	if err != nil {
		return nil, e.notSent(node, err)
	}
	md := metadata.Pairs(api.OnBehalfKey, c.caller.String())
	if v := metadata.ValueFromIncomingContext(ctx, consistencyKey); len(v) > 0 {
		md.Set(consistencyKey, v...)
	}
	var leader grpcpeer.Peer // stays empty if the call was not sent
	err = cc.Invoke(metadata.NewOutgoingContext(ctx, md), method, req, reply, grpc.Peer(&leader))
	switch {
	case err == nil:
		return reply, nil
	case leader.Addr == nil && status.Code(err) == codes.Unavailable:
		return nil, e.notSent(node, err)
	}
	return nil, err
}

// streamAtLeader serves a stream at the leader. If another server leads, the
// stream is relayed message by message. A stream that broke after the leader
// accepted it is not restarted.
func (e *Edge) streamAtLeader(
	ctx context.Context, c call, info *grpc.StreamServerInfo, ss grpc.ServerStream, serve func() error,
) error {
	here := func() error {
		if c.forwarded {
			if err := ss.SendHeader(metadata.Pairs(acceptedKey, e.cfg.Node)); err != nil {
				return err
			}
		}
		return serve()
	}
	return e.atLeader(ctx, c.forwarded, here, func(node string) (retry bool, err error) {
		err = e.relay(ctx, c, node, info, ss)
		return notDone(err), err
	})
}

// relay relays a one-way stream. It reads the first message after the leader
// has accepted the stream. The slower end limits the throughput.
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
	ctx = metadata.NewOutgoingContext(ctx, metadata.Pairs(api.OnBehalfKey, c.caller.String()))
	desc := &grpc.StreamDesc{ClientStreams: info.IsClientStream, ServerStreams: info.IsServerStream}
	leader, err := cc.NewStream(ctx, desc, info.FullMethod)
	switch {
	case status.Code(err) == codes.Unavailable:
		return e.notSent(node, err)
	case err != nil:
		return err
	case info.IsClientStream && info.IsServerStream:
		return status.Errorf(codes.Unimplemented, "%s goes both ways: call the leader, %s", info.FullMethod, node)
	}
	if header, err := leader.Header(); status.Code(err) == codes.Unavailable {
		return e.notSent(node, err)
	} else if err != nil {
		return err
	} else if len(header.Get(acceptedKey)) == 0 {
		if err := leader.RecvMsg(out); err != nil && !errors.Is(err, io.EOF) {
			return err // the reason why the leader refused the stream
		}
		return status.Errorf(codes.Internal, "%s answered %s without having accepted it", node, info.FullMethod)
	}
	if info.IsClientStream {
		return relayRequests(ss, leader, in, out)
	}
	return relayResponses(ss, leader, in, out)
}

// relayRequests relays many requests, and one response.
func relayRequests(ss grpc.ServerStream, leader grpc.ClientStream, in, out proto.Message) error {
	for {
		proto.Reset(in)
		err := ss.RecvMsg(in)
		if errors.Is(err, io.EOF) {
			if err := leader.CloseSend(); err != nil {
				return err
			}
			break
		}
		if err != nil {
			return err
		}
		if err := leader.SendMsg(in); err != nil {
			break // the response has the error
		}
	}
	if err := leader.RecvMsg(out); err != nil {
		return err
	}
	return ss.SendMsg(out)
}

// relayResponses relays one request, and many responses.
func relayResponses(ss grpc.ServerStream, leader grpc.ClientStream, in, out proto.Message) error {
	if err := ss.RecvMsg(in); err != nil {
		return err
	}
	if err := leader.SendMsg(in); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := leader.CloseSend(); err != nil {
		return err
	}
	for {
		proto.Reset(out)
		err := leader.RecvMsg(out)
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

// messagesOf returns an empty request and an empty response of a method,
// "/package.Service/Method".
func messagesOf(method string) (in, out proto.Message, err error) {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil, nil, fmt.Errorf("forward %s: %w", method, err)
	}
	var m protoreflect.MethodDescriptor
	if sd, ok := d.(protoreflect.ServiceDescriptor); ok {
		m = sd.Methods().ByName(protoreflect.Name(name))
	}
	if m == nil {
		return nil, nil, fmt.Errorf("forward %s: no such method", method)
	}
	request, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
	if err != nil {
		return nil, nil, fmt.Errorf("forward %s: %w", method, err)
	}
	response, err := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
	if err != nil {
		return nil, nil, fmt.Errorf("forward %s: %w", method, err)
	}
	return request.New().Interface(), response.New().Interface(), nil
}
