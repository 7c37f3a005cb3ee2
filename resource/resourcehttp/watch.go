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
	// heartbeatInterval is the time between the comments that a watch sends.
	// Comments let both sides detect a lost connection.
	heartbeatInterval = 15 * time.Second
	// watchTimeout bounds the time in which a client reads one piece of a
	// watch.
	watchTimeout = 10 * time.Second
	// maxBuffered is the number of received events that wait for a write. The
	// buffer reduces the number of writes for a snapshot.
	maxBuffered = 64
)

// received is an event of a stream, or the error that ended the stream.
type received struct {
	ev  *pb.WatchEvent
	err error
}

func (q *request) watchList(ctx context.Context) (grpc.ServerStreamingClient[pb.WatchEvent], error) {
	req := &pb.WatchListRequest{Type: q.target.reg.Type, Tenancy: q.tenancy(), NamePrefix: q.params.prefix}
	return q.client.WatchList(ctx, req)
}

// watch responds with server-sent events until one side ends the watch. If the
// service sends an error before the first event, watch returns the error.
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
	end bool // buf has the event "end", the last event
}

// follow writes events until the stream, the client or ctx ends.
func (s *eventStream) follow(ctx context.Context, events <-chan received) {
	tick := time.NewTicker(heartbeatInterval)
	defer tick.Stop()
	for {
		select {
		case e := <-events: // collect all available events, up to a piece
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
		case <-ctx.Done(): // the server is stopping, or the client has disconnected
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
		s.event(api.EventEndOfSnapshot, map[string]uint64{"index": e.ev.GetEndOfSnapshot().GetIndex()})
	}
}

// finish appends the event "end" with a reason.
func (s *eventStream) finish(reason string) {
	s.event(api.EventEnd, map[string]string{"error": reason})
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

// flush sends the buffer. It fails if the client has disconnected or is too
// slow.
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
	if err == nil {
		err = s.rc.Flush()
	}
	if err == nil {
		// In HTTP/2 a deadline ends the stream also if no write is blocked. As
		// extendWrite, this fails only in tests.
		_ = s.rc.SetWriteDeadline(time.Time{})
	}
	return err
}
