// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"errors"
	"io"
	"iter"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/wanfed/wanfed/api/pb"
)

// Client returns a client of s in this process: calls with the caller's context, so that who asks is whom Config.Peer finds in it,
// and with the outgoing metadata that a call over a connection would have. What it returns is shared: clone before changing it. Call
// options are ignored. A WatchList stream ends with its context, as any does; until then Recv is for one goroutine.
func (s *Service) Client() pb.ResourceServiceClient { return local{s} }

type local struct{ s *Service }

var _ pb.ResourceServiceClient = local{}

// arrived makes what a call sends what the service receives.
func arrived(ctx context.Context) context.Context {
	md, _ := metadata.FromOutgoingContext(ctx)
	return metadata.NewIncomingContext(ctx, md)
}

func (l local) Read(ctx context.Context, in *pb.ReadRequest, _ ...grpc.CallOption) (*pb.ReadResponse, error) {
	return l.s.Read(arrived(ctx), in)
}

func (l local) Write(ctx context.Context, in *pb.WriteRequest, _ ...grpc.CallOption) (*pb.WriteResponse, error) {
	return l.s.Write(arrived(ctx), in)
}

func (l local) WriteStatus(ctx context.Context, in *pb.WriteStatusRequest, _ ...grpc.CallOption) (*pb.WriteStatusResponse, error) {
	return l.s.WriteStatus(arrived(ctx), in)
}

func (l local) List(ctx context.Context, in *pb.ListRequest, _ ...grpc.CallOption) (*pb.ListResponse, error) {
	return l.s.List(arrived(ctx), in)
}

func (l local) ListByOwner(ctx context.Context, in *pb.ListByOwnerRequest, _ ...grpc.CallOption) (*pb.ListByOwnerResponse, error) {
	return l.s.ListByOwner(arrived(ctx), in)
}

func (l local) Delete(ctx context.Context, in *pb.DeleteRequest, _ ...grpc.CallOption) (*pb.DeleteResponse, error) {
	return l.s.Delete(arrived(ctx), in)
}

func (l local) MutateAndValidate(ctx context.Context, in *pb.MutateAndValidateRequest, _ ...grpc.CallOption) (*pb.MutateAndValidateResponse, error) {
	return l.s.MutateAndValidate(arrived(ctx), in)
}

func (l local) WatchList(ctx context.Context, in *pb.WatchListRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[pb.WatchEvent], error) {
	w := &localWatch{ctx: ctx}
	next, stop := iter.Pull2(func(yield func(*pb.WatchEvent, error) bool) {
		// After a Send that failed nobody receives any more, and yield must not be called again.
		if err := l.s.WatchList(in, sender{ctx: arrived(ctx), yield: yield}); err != nil && !errors.Is(err, errStopped) {
			yield(nil, err)
		}
	})
	w.next = next
	context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock() // after a Recv that runs: it ends with ctx too
		stop()
	})
	return w, nil
}

// errStopped is Send's where nobody receives any more.
var errStopped = errors.New("stream was stopped")

// localWatch is the receiving side of WatchList. The sending side runs only while Recv does.
type localWatch struct {
	grpc.ClientStream // nil: what it has besides is of connections
	ctx               context.Context

	mu   sync.Mutex
	next func() (*pb.WatchEvent, error, bool)
}

func (w *localWatch) Context() context.Context { return w.ctx }

// Recv blocks until the next event, or the stream's end, whose error it returns.
func (w *localWatch) Recv() (*pb.WatchEvent, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ev, err, ok := w.next()
	switch {
	case ok:
		return ev, err
	case w.ctx.Err() != nil:
		return nil, StatusError(w.ctx.Err())
	}
	return nil, io.EOF
}

// sender is the sending side.
type sender struct {
	grpc.ServerStream
	ctx   context.Context
	yield func(*pb.WatchEvent, error) bool
}

func (s sender) Context() context.Context { return s.ctx }

func (s sender) Send(ev *pb.WatchEvent) error {
	if !s.yield(ev, nil) {
		return errStopped
	}
	return nil
}
