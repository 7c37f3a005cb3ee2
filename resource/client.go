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

// Client returns a client that calls s in this process. ServiceConfig.Peer
// receives the caller's context. The service receives outgoing metadata, as
// over a connection. Call options are ignored. Results are shared: clone a
// message before changing it. A WatchList stream ends with its context, and
// only one goroutine may call its Recv.
func (s *Service) Client() pb.ResourceServiceClient { return localClient{s} }

type localClient struct{ s *Service }

// localCall calls method with the outgoing metadata as incoming metadata.
func localCall[In, Out any](ctx context.Context, method func(context.Context, In) (Out, error), in In) (Out, error) {
	return method(incoming(ctx), in)
}

func incoming(ctx context.Context) context.Context {
	md, _ := metadata.FromOutgoingContext(ctx)
	return metadata.NewIncomingContext(ctx, md)
}

func (l localClient) Read(ctx context.Context, in *pb.ReadRequest, _ ...grpc.CallOption) (*pb.ReadResponse, error) {
	return localCall(ctx, l.s.Read, in)
}

func (l localClient) Write(ctx context.Context, in *pb.WriteRequest, _ ...grpc.CallOption) (*pb.WriteResponse, error) {
	return localCall(ctx, l.s.Write, in)
}

func (l localClient) WriteStatus(
	ctx context.Context, in *pb.WriteStatusRequest, _ ...grpc.CallOption,
) (*pb.WriteStatusResponse, error) {
	return localCall(ctx, l.s.WriteStatus, in)
}

func (l localClient) List(ctx context.Context, in *pb.ListRequest, _ ...grpc.CallOption) (*pb.ListResponse, error) {
	return localCall(ctx, l.s.List, in)
}

func (l localClient) ListByOwner(
	ctx context.Context, in *pb.ListByOwnerRequest, _ ...grpc.CallOption,
) (*pb.ListByOwnerResponse, error) {
	return localCall(ctx, l.s.ListByOwner, in)
}

func (l localClient) Delete(ctx context.Context, in *pb.DeleteRequest,
	_ ...grpc.CallOption) (*pb.DeleteResponse, error) {
	return localCall(ctx, l.s.Delete, in)
}

func (l localClient) MutateAndValidate(
	ctx context.Context, in *pb.MutateAndValidateRequest, _ ...grpc.CallOption,
) (*pb.MutateAndValidateResponse, error) {
	return localCall(ctx, l.s.MutateAndValidate, in)
}

func (l localClient) WatchList(
	ctx context.Context, in *pb.WatchListRequest, _ ...grpc.CallOption,
) (grpc.ServerStreamingClient[pb.WatchEvent], error) {
	w := &localStream{ctx: ctx}
	var stop func()
	w.next, stop = iter.Pull2(func(yield func(*pb.WatchEvent, error) bool) {
		// After stop, yield has returned false and must not be called again.
		err := l.s.WatchList(in, localSender{ctx: incoming(ctx), yield: yield})
		if err != nil && !errors.Is(err, errStopped) {
			yield(nil, err)
		}
	})
	context.AfterFunc(ctx, func() {
		w.mu.Lock() // waits for a running Recv, which returns because ctx has ended
		defer w.mu.Unlock()
		stop()
	})
	return w, nil
}

// errStopped is the error of Send after the end of the stream.
var errStopped = errors.New("stream was stopped")

// localStream is the receiving end. The service runs only while Recv runs.
type localStream struct {
	grpc.ClientStream                 // nil: the other methods concern connections
	ctx               context.Context // of the stream, as grpc.ClientStream has it

	mu   sync.Mutex
	next func() (*pb.WatchEvent, error, bool)
}

func (w *localStream) Context() context.Context { return w.ctx }

// Recv blocks until the next event or the end of the stream.
func (w *localStream) Recv() (*pb.WatchEvent, error) {
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

// localSender is the sending end of WatchList.
type localSender struct {
	grpc.ServerStream
	ctx   context.Context // of the stream, as grpc.ServerStream has it
	yield func(*pb.WatchEvent, error) bool
}

func (s localSender) Context() context.Context { return s.ctx }

func (s localSender) Send(ev *pb.WatchEvent) error {
	if !s.yield(ev, nil) {
		return errStopped
	}
	return nil
}
