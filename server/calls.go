// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/dcrpc"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server/httpapi"
	"github.com/wanfed/wanfed/tlsutil"
)

// leaderHold is how long a call waits for the datacenter to have a leader.
const leaderHold = 7 * time.Second

// callPreface is how long a peer may take, after the TLS handshake, to begin to speak HTTP/2.
const callPreface = 10 * time.Second

// forwardPause is how long a call waits before it is forwarded again to a leader that could not be reached.
const forwardPause = 100 * time.Millisecond

var noPause <-chan time.Time

// leadership is what calls need to know of Raft.
type leadership interface {
	IsLeader() bool
	Leader() (node string, ok bool)
	LeaderChanged() <-chan struct{}
	WriteError() error
}

// calls checks and routes gRPC calls before services see them.
type calls struct {
	dc, node, domain string
	leader           leadership
	conns            *dcrpc.Client
	stopping         context.Context // ends when the server stops: long streams end then
	refused          *refusedCalls
	remoteWrites     []string // Config.RemoteWritesFrom
	turns            *turns
}

// peerFrom returns who calls: the effective peer that the interceptors found.
func peerFrom(ctx context.Context) (tlsutil.Peer, error) {
	if p, ok := tlsutil.PeerFromContext(ctx); ok {
		return p, nil
	}
	return tlsutil.Peer{}, status.Error(codes.Unauthenticated, "call without a verified certificate")
}

// identify reads the caller from its certificate, or, when the caller is a server, from what that says of the caller it
// forwards for: any, if it is of this datacenter; else an operator of its own, where r and the configuration allow it.
func (c *calls) identify(ctx context.Context, r rule) (p tlsutil.Peer, forwarded bool, err error) {
	gp, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return p, false, status.Error(codes.Unauthenticated, "call without a connection")
	}
	info, ok := gp.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return p, false, status.Error(codes.Unauthenticated, "call without a verified certificate")
	}
	p, err = tlsutil.PeerFromCert(info.State.PeerCertificates[0], c.domain)
	if err != nil {
		return p, false, status.Error(codes.Unauthenticated, err.Error())
	}
	md, _ := metadata.FromIncomingContext(ctx)
	behalf := md.Get(dcrpc.OnBehalfKey)
	if len(behalf) == 0 || p.Role != tlsutil.RoleServer {
		return p, false, nil
	}
	role, rest, _ := strings.Cut(behalf[0], "/")
	dc, node, ok := strings.Cut(rest, "/")
	who := tlsutil.Peer{Role: tlsutil.Role(role), DC: dc, Node: node}
	switch {
	case p.DC != c.dc:
		p, err = c.vouched(p, who, r)
		return p, false, err
	case !ok:
		return p, false, status.Errorf(codes.InvalidArgument, "metadata %s is not role/dc/node", dcrpc.OnBehalfKey)
	}
	return who, true, nil
}

// admit identifies the caller and checks the method's rule.
func (c *calls) admit(ctx context.Context, method string) (context.Context, rule, bool, error) {
	r, known := rules[resource.CanonicalMethod(method)]
	p, forwarded, err := c.identify(ctx, r)
	if err != nil {
		return ctx, rule{}, false, err
	}
	if !known {
		return ctx, r, false, status.Errorf(codes.Unimplemented, "no such method: %s", method)
	}
	if err := r.allow(p, method, c.dc); err != nil {
		err = status.Error(codes.PermissionDenied, err.Error())
		c.refused.note(p, method, err)
		return ctx, r, false, err
	}
	return tlsutil.WithPeer(ctx, p), r, forwarded, nil
}

// unary is the interceptor of calls that are one message each way.
func (c *calls) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx, r, forwarded, err := c.admit(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	here := func() (any, error) {
		turn, err := c.turn(ctx, r)
		if err != nil {
			return nil, status.FromContextError(err).Err()
		}
		ctx := resource.WithListLimit(ctx, api.MaxMessageSize)
		if turn != nil {
			ctx = httpapi.WithTurn(ctx, turn)
		}
		resp, err := next(ctx, req)
		if err == nil {
			err = resource.CheckListSize(resp, api.MaxMessageSize)
		}
		c.noteDenied(ctx, info.FullMethod, err)
		switch {
		case turn == nil:
		case err != nil:
			turn.End()
		default:
			return untilSent(ctx, resp, turn), nil
		}
		return resp, err
	}
	switch {
	case r.waits:
		return c.waiting(ctx, here)
	case !r.leader:
		return here()
	}
	hold := time.NewTimer(leaderHold)
	defer hold.Stop()
	for {
		changed, pause := c.leader.LeaderChanged(), noPause
		err := c.noLeader()
		if c.leader.IsLeader() {
			return here()
		}
		if node, ok := c.leader.Leader(); ok && node != c.node {
			if forwarded {
				return nil, c.notLeader(node)
			}
			var resp any
			resp, err = c.forward(ctx, node, info.FullMethod, req)
			if !notDone(err) && (status.Code(err) != codes.Unavailable || !r.again) {
				return resp, c.broken(node, err)
			}
			pause = time.After(forwardPause) // the leader may be dead, or no longer lead: wait for the next one, or for this one
		}
		select {
		case <-changed:
		case <-pause:
		case <-hold.C:
			return nil, err
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
}

// noteDenied counts a call that its service refused. The server that answers does, not the one that forwards.
func (c *calls) noteDenied(ctx context.Context, method string, err error) {
	if p, perr := peerFrom(ctx); perr == nil {
		c.refused.note(p, method, err)
	}
}

// forward repeats a call at the leader, for the same caller and with its deadline.
func (c *calls) forward(ctx context.Context, node, method string, req any) (any, error) {
	p, err := peerFrom(ctx)
	if err != nil {
		return nil, err
	}
	reply, err := replyOf(method)
	if err != nil {
		return nil, err
	}
	cc, err := c.conns.Server(node)
	if err != nil {
		return nil, c.notSent(node, err)
	}
	md := metadata.Pairs(dcrpc.OnBehalfKey, p.String())
	if in, ok := metadata.FromIncomingContext(ctx); ok {
		for _, k := range []string{"x-wanfed-consistency"} {
			if v := in.Get(k); len(v) > 0 {
				md.Set(k, v...)
			}
		}
	}
	var at grpcpeer.Peer // stays empty if the call was not sent
	err = cc.Invoke(metadata.NewOutgoingContext(ctx, md), method, req, reply, grpc.Peer(&at))
	switch {
	case err == nil:
		return reply, nil
	case at.Addr == nil && status.Code(err) == codes.Unavailable:
		return nil, c.notSent(node, err)
	}
	return nil, err
}

// replyOf makes an empty answer of a method, "/package.Service/Method".
func replyOf(method string) (proto.Message, error) {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil, fmt.Errorf("forward %s: %w", method, err)
	}
	sd, ok := d.(protoreflect.ServiceDescriptor)
	if !ok || sd.Methods().ByName(protoreflect.Name(name)) == nil {
		return nil, fmt.Errorf("forward %s: no such method", method)
	}
	mt, err := protoregistry.GlobalTypes.FindMessageByName(sd.Methods().ByName(protoreflect.Name(name)).Output().FullName())
	if err != nil {
		return nil, fmt.Errorf("forward %s: %w", method, err)
	}
	return mt.New().Interface(), nil
}

// stream is the interceptor of streams. They end when the server stops.
func (c *calls) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, r, forwarded, err := c.admit(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.stopping, cancel)()
	here := func() error { return next(srv, streamWith{ss, ctx}) }
	if r.leader {
		err = c.atLeader(ctx, forwarded, info, ss, here)
	} else {
		err = here()
	}
	c.noteDenied(ctx, info.FullMethod, err)
	if c.stopping.Err() != nil {
		return status.Error(codes.Unavailable, "server is stopping")
	}
	return err
}

type streamWith struct {
	grpc.ServerStream
	ctx context.Context
}

func (s streamWith) Context() context.Context { return s.ctx }
