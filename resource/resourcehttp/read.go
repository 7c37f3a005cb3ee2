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
	"github.com/wanfed/wanfed/resource"
)

// request is one operation under way.
type request struct {
	h      *handler
	w      http.ResponseWriter
	r      *http.Request
	t      target
	q      query
	client Client
}

func (q *request) tenancy() *pb.Tenancy {
	return &pb.Tenancy{Partition: q.q.partition, Namespace: q.q.namespace}
}

func (q *request) id() *pb.ID {
	return &pb.ID{Uid: q.q.uid, Name: q.t.name, Type: q.t.reg.Type, Tenancy: q.tenancy()}
}

// ctx is of one call of a service.
func (q *request) ctx() (context.Context, context.CancelFunc) {
	ctx := q.r.Context()
	if q.q.consistent {
		ctx = resource.WithConsistency(ctx, resource.Strong)
	}
	return context.WithTimeout(ctx, callTimeout)
}

func (q *request) read() error {
	ctx, cancel := q.ctx()
	defer cancel()
	if q.q.owned {
		out, err := hold(ctx, q.client.ListByOwner, &pb.ListByOwnerRequest{Owner: q.id()})
		if err != nil {
			return err
		}
		return q.writeList(out.GetResources())
	}
	out, err := hold(ctx, q.client.Read, &pb.ReadRequest{Id: q.id()})
	if err != nil {
		return err
	}
	return answer(q.w, q.h.encode(out.GetResource()), q.q.pretty)
}

func (q *request) list() error {
	if q.q.watch {
		return q.watch()
	}
	ctx, cancel := q.ctx()
	defer cancel()
	out, err := hold(ctx, q.client.List, &pb.ListRequest{Type: q.t.reg.Type, Tenancy: q.tenancy(), NamePrefix: q.q.prefix})
	if status.Code(err) == codes.ResourceExhausted && !q.q.consistent {
		return q.snapshot() // of another datacenter, and larger than one message
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

// snapshot answers a list with the beginning of a watch.
func (q *request) snapshot() error {
	ctx, cancel := context.WithCancel(q.r.Context())
	defer cancel()
	stream, err := q.client.WatchList(ctx, &pb.WatchListRequest{Type: q.t.reg.Type, Tenancy: q.tenancy(), NamePrefix: q.q.prefix})
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

// list writes {"resources": [...]} piece by piece. Its errors are http.ErrAbortHandler: the client does not read, or has gone.
type list struct {
	q     *request
	out   *bufio.Writer
	begun bool
}

// piece is how many bytes of a list are written at once.
const piece = 64 << 10

func (q *request) newList() *list { return &list{q: q, out: bufio.NewWriterSize(q.w, piece)} }

// before returns what stands before the next element.
func (l *list) before() (text string) {
	switch {
	case l.begun:
		text = ",\n"
	case l.q.q.pretty:
		text = "{\n  \"resources\": [\n"
	default:
		text = `{"resources":[`
	}
	if l.q.q.pretty {
		text += "    "
	}
	return text
}

func (l *list) add(r *pb.Resource) error {
	body, err := marshal(l.q.h.encode(r), "    ", l.q.q.pretty)
	if err != nil && !l.begun {
		return err
	}
	return l.write(l.before(), body, err)
}

func (l *list) write(before string, body []byte, err error) error {
	if !l.begun {
		jsonHeader(l.q.w)
		l.begun = true
	}
	if l.out.Available() < len(before)+len(body) {
		extend(l.q.w, patience)
	}
	_, err1 := l.out.WriteString(before)
	_, err2 := l.out.Write(body)
	if errors.Join(err, err1, err2) != nil {
		return http.ErrAbortHandler
	}
	return nil
}

func (l *list) end() error {
	text := "]}\n"
	switch {
	case !l.begun:
		text = `{"resources":[]}` + "\n"
	case l.q.q.pretty:
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
