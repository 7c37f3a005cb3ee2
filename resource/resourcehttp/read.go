// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
	"bufio"
	"context"
	"errors"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
)

// read serves opRead.
func (q *request) read() error {
	ctx, cancel := q.ctx()
	defer cancel()
	if q.params.owned {
		out, err := withLeader(ctx, q.client.ListByOwner, &pb.ListByOwnerRequest{Owner: q.id()})
		if err != nil {
			return err
		}
		return q.writeList(out.GetResources())
	}
	out, err := withLeader(ctx, q.client.Read, &pb.ReadRequest{Id: q.id()})
	if err != nil {
		return err
	}
	return respond(q.w, q.h.encode(out.GetResource()), q.params.pretty)
}

// list serves opList.
func (q *request) list() error {
	if q.params.watch {
		return q.watch()
	}
	ctx, cancel := q.ctx()
	defer cancel()
	req := &pb.ListRequest{Type: q.target.reg.Type, Tenancy: q.tenancy(), NamePrefix: q.params.prefix}
	out, err := withLeader(ctx, q.client.List, req)
	if status.Code(err) == codes.ResourceExhausted && !q.params.consistent {
		return q.snapshot() // the list is too large for one gRPC message
	}
	if err != nil {
		return err
	}
	return q.writeList(out.GetResources())
}

func (q *request) writeList(all []*pb.Resource) error {
	l := q.newList()
	for _, r := range all {
		if err := l.add(r); err != nil {
			return err
		}
	}
	return l.end()
}

// snapshot responds to a list with the initial resources of a watch.
func (q *request) snapshot() error {
	ctx, cancel := context.WithCancel(q.r.Context())
	defer cancel()
	stream, err := q.watchList(ctx)
	if err != nil {
		return err
	}
	l := q.newList()
	for {
		ev, err := stream.Recv()
		switch {
		case err != nil && l.begun:
			return errors.Join(http.ErrAbortHandler, err)
		case err != nil:
			return err
		case ev.GetEndOfSnapshot() != nil:
			return l.end()
		case ev.GetUpsert() != nil:
			if err := l.add(ev.GetUpsert().GetResource()); err != nil {
				return err
			}
		}
	}
}

// listWriter writes {"resources": [...]} in pieces. Its methods fail with
// http.ErrAbortHandler if the client does not read or has disconnected.
type listWriter struct {
	q     *request
	out   *bufio.Writer
	begun bool // a part of the response was written
}

// piece is the size in bytes of the pieces in which lists and watches are
// written.
const piece = 64 << 10

func (q *request) newList() *listWriter {
	return &listWriter{q: q, out: bufio.NewWriterSize(q.w, piece)}
}

// separator returns the text before the next resource.
func (l *listWriter) separator() (text string) {
	switch {
	case l.begun:
		text = ",\n"
	case l.q.params.pretty:
		text = "{\n  \"resources\": [\n"
	default:
		text = `{"resources":[`
	}
	if l.q.params.pretty {
		text += "    "
	}
	return text
}

func (l *listWriter) add(r *pb.Resource) error {
	body, err := marshal(l.q.h.encode(r), "    ", l.q.params.pretty)
	if err != nil && !l.begun {
		return err
	}
	return l.write(l.separator(), body, err)
}

// write writes prefix and body. It also fails if err, the error of encoding the
// body, is not nil.
func (l *listWriter) write(prefix string, body []byte, err error) error {
	if !l.begun {
		jsonHeader(l.q.w)
		l.begun = true
	}
	if l.out.Available() < len(prefix)+len(body) {
		extendWrite(l.q.w, clientTimeout)
	}
	_, err1 := l.out.WriteString(prefix)
	_, err2 := l.out.Write(body)
	if errors.Join(err, err1, err2) != nil {
		return http.ErrAbortHandler
	}
	return nil
}

func (l *listWriter) end() error {
	text := "]}\n"
	switch {
	case !l.begun:
		text = `{"resources":[]}` + "\n"
	case l.q.params.pretty:
		text = "\n  ]\n}\n"
	}
	if err := l.write(text, nil, nil); err != nil {
		return err
	}
	if l.out.Flush() != nil {
		return http.ErrAbortHandler
	}
	return nil
}
