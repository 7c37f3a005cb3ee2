// SPDX-License-Identifier: MPL-2.0

package controller_test

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// watches is a client whose watches a test ends or holds.
type watches struct {
	pb.ResourceServiceClient
	mu      sync.Mutex
	cancels []context.CancelFunc
	held    map[string]chan struct{} // by type; an open channel holds the events
}

// end ends all watches.
func (w *watches) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, cancel := range w.cancels {
		cancel()
	}
	w.cancels = nil
}

// hold delays all events of a type until release is called.
func (w *watches) hold(t *pb.Type) (release func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := make(chan struct{})
	if w.held == nil {
		w.held = make(map[string]chan struct{})
	}
	w.held[resource.TypeString(t)] = c
	return func() { close(c) }
}

func (w *watches) WatchList(
	ctx context.Context, in *pb.WatchListRequest, opts ...grpc.CallOption,
) (grpc.ServerStreamingClient[pb.WatchEvent], error) {
	ctx, cancel := context.WithCancel(ctx)
	w.mu.Lock()
	w.cancels = append(w.cancels, cancel)
	w.mu.Unlock()
	stream, err := w.ResourceServiceClient.WatchList(ctx, in, opts...)
	return heldStream{stream, w, ctx, resource.TypeString(in.Type)}, err
}

type heldStream struct {
	grpc.ServerStreamingClient[pb.WatchEvent]
	w   *watches
	ctx context.Context
	typ string
}

func (s heldStream) Recv() (*pb.WatchEvent, error) {
	ev, err := s.ServerStreamingClient.Recv()
	s.w.mu.Lock()
	held := s.w.held[s.typ]
	s.w.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-s.ctx.Done():
			return nil, errors.New("the watch was ended")
		}
	}
	return ev, err
}
