// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
	"bytes"
	"context"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

const (
	// heartbeatInterval is the time between comments on a watch without events.
	// They let both sides detect a lost connection.
	heartbeatInterval = 15 * time.Second
	// watchTimeout is the maximum time that a client may take to read one piece
	// of a watch.
	watchTimeout = 10 * time.Second
	// maxBuffered is the number of events that are received while others are
	// written. Because of this buffer, a snapshot needs few writes.
	maxBuffered = 64
)

// received is an event of a stream, or its end.
type received struct {
	ev  *pb.WatchEvent
	err error
}

func (q *request) watchList(ctx context.Context) (grpc.ServerStreamingClient[pb.WatchEvent], error) {
	req := &pb.WatchListRequest{Type: q.t.reg.Type, Tenancy: q.tenancy(), NamePrefix: q.q.prefix}
	return q.client.WatchList(ctx, req)
}

// watch responds with server-sent events until one side ends the watch. It fails
// as other requests do if the first event is an error.
func (q *request) watch() error {
	if q.r.Method == http.MethodHead {
		return badRequest("parameter watch: is not for HEAD")
	}
	ctx, cancel := context.WithCancel(q.r.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	stream, err := q.watchList(ctx)
	if err != nil {
		return err
	}
	events := make(chan received, maxBuffered)
	wg.Go(func() {
		for {
			ev, err := stream.Recv()
			select {
			case events <- received{ev, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	})
	var first received
	select {
	case first = <-events:
	case <-ctx.Done():
		return ctx.Err()
	}
	if first.err != nil {
		return first.err
	}
	header := q.w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	s := &eventStream{w: q.w, rc: http.NewResponseController(q.w), h: q.h}
	s.add(ctx, first)
	s.follow(ctx, events)
	return nil
}

// eventStream writes server-sent events.
type eventStream struct {
	w   http.ResponseWriter
	rc  *http.ResponseController
	h   *handler
	buf bytes.Buffer
	end bool // buf has the last event
}

// follow writes events until the stream, the client or ctx ends.
func (s *eventStream) follow(ctx context.Context, events <-chan received) {
	tick := time.NewTicker(heartbeatInterval)
	defer tick.Stop()
	for {
		select {
		case e := <-events: // collect all available events first
			s.add(ctx, e)
			if !s.end && s.buf.Len() < piece {
				continue
			}
		default:
		}
		if s.flush() != nil || s.end {
			return
		}
		select {
		case e := <-events:
			s.add(ctx, e)
		case <-tick.C:
			s.buf.WriteString(": heartbeat\n\n")
		case <-ctx.Done(): // the server stops, or the client has disconnected
			s.add(ctx, received{err: ctx.Err()})
		}
	}
}

// add appends e to the buffer, unless the buffer already has the last event.
func (s *eventStream) add(ctx context.Context, e received) {
	switch {
	case s.end:
	case ctx.Err() != nil:
		s.finish("this server is stopping: watch again, or use another server")
	case e.err != nil:
		s.finish(textOf(resource.FromStatus(e.err)) + ": watch again")
	case e.ev.GetUpsert() != nil:
		s.event(api.EventUpsert, s.h.encode(e.ev.GetUpsert().GetResource()))
	case e.ev.GetDelete() != nil:
		s.event(api.EventDelete, s.h.encode(e.ev.GetDelete().GetResource()))
	case e.ev.GetEndOfSnapshot() != nil:
		s.event(api.EventEndOfSnapshot, struct{}{})
	}
}

func (s *eventStream) finish(why string) {
	s.event(api.EventEnd, map[string]string{"error": why})
	s.end = true
}

func (s *eventStream) event(name string, data any) {
	body, err := marshal(data, "", false)
	if err != nil {
		name, body, s.end = api.EventEnd, []byte(`{"error":"an event could not be written as JSON"}`), true
	}
	s.buf.WriteString("event: " + name + "\ndata: ")
	s.buf.Write(body)
	s.buf.WriteString("\n\n")
}

// flush sends the buffer. It fails if the client has disconnected or is too slow.
func (s *eventStream) flush() error {
	if s.buf.Len() == 0 {
		return nil
	}
	extendWrite(s.w, watchTimeout)
	_, err := s.w.Write(s.buf.Bytes())
	s.buf.Reset()
	if s.buf.Cap() > 4*piece {
		s.buf = bytes.Buffer{} // release the memory of a large event
	}
	if err != nil {
		return err
	}
	return s.rc.Flush()
}
