// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
)

// target is the object that a path identifies: a document, a type, or a
// resource of a type.
type target struct {
	document any // nil: a type or a resource
	reg      resource.Registration
	name     string // empty: the type
}

// target parses /api/group/version/kind[/name], or the path of a document.
func (h *handler) target(path string) (target, error) {
	if document, ok := h.documents[path]; ok {
		return target{document: document}, nil
	}
	rest, ok := strings.CutPrefix(path, api.ResourcePath)
	if !ok {
		return target{}, fmt.Errorf("%w; resources are under %s", errNoPath, api.ResourcePath)
	}
	parts := strings.SplitN(rest, "/", 4)
	if len(parts) < 3 {
		return target{},
			badRequest("path %q: must be %[2]sGROUP/VERSION/KIND or %[2]sGROUP/VERSION/KIND/NAME; see %[3]s",
				path, api.ResourcePath, api.ResourceTypesPath)
	}
	typ := &pb.Type{Group: parts[0], GroupVersion: parts[1], Kind: parts[2]}
	for _, reg := range h.Registry.Types() { // the case of the kind does not matter
		if strings.EqualFold(reg.Type.Kind, typ.Kind) &&
			reg.Type.Group == typ.Group && reg.Type.GroupVersion == typ.GroupVersion {
			typ = reg.Type
		}
	}
	reg, err := h.Registry.Lookup(typ)
	t := target{reg: reg}
	if len(parts) == 4 {
		t.name = parts[3]
	}
	return t, err
}

// operation is an action on a target.
type operation struct {
	name   string   // in errors
	params []string // in addition to dc and pretty
	do     func(q *request) error
}

func withTenancy(params ...string) []string { return append(params, "partition", "namespace") }

var (
	opDocument = operation{name: "this document"}

	opList   = operation{"a list", withTenancy("prefix", "consistent", "watch"), (*request).list}
	opRead   = operation{"a read", withTenancy("uid", "consistent", "owned"), (*request).read}
	opWrite  = operation{"a write", withTenancy("version", "uid", "dry-run", "status"), (*request).write}
	opDelete = operation{"a deletion", withTenancy("version", "uid"), (*request).delete}
)

// operation returns the operation of a method, or nil and the allowed methods.
func (t target) operation(method string) (op *operation, allowed string) {
	get := method == http.MethodGet || method == http.MethodHead
	switch {
	case t.document != nil && get:
		return &opDocument, ""
	case t.name == "" && get:
		return &opList, ""
	case t.name == "": // a document or a type
		return nil, "GET, HEAD"
	case get:
		return &opRead, ""
	case method == http.MethodPut:
		return &opWrite, ""
	case method == http.MethodDelete:
		return &opDelete, ""
	}
	return nil, "GET, HEAD, PUT, DELETE"
}

// query holds the parameters of a request.
type query struct {
	dc, prefix, uid, version, status         string
	partition, namespace                     string
	consistent, watch, owned, dryRun, pretty bool
}

// parse parses a query string. The allowed parameters are dc, pretty and
// params.
func parse(raw, op string, params []string) (query, error) {
	var q query
	values, err := url.ParseQuery(raw)
	if err != nil {
		return q, badRequest("query string: %w", err)
	}
	texts := map[string]*string{
		"dc": &q.dc, "prefix": &q.prefix, "uid": &q.uid, "version": &q.version, "status": &q.status,
		"partition": &q.partition, "namespace": &q.namespace,
	}
	flags := map[string]*bool{
		"consistent": &q.consistent, "watch": &q.watch, "owned": &q.owned, "dry-run": &q.dryRun, "pretty": &q.pretty,
	}
	known := append([]string{"dc", "pretty"}, params...)
	for name, all := range values {
		switch text, flag := texts[name], flags[name]; {
		case !slices.Contains(known, name):
			return q, badRequest("parameter %.100q: %s has the parameters %s", name, op, strings.Join(known, ", "))
		case len(all) > 1:
			return q, badRequest("parameter %s: is given %d times", name, len(all))
		case text != nil:
			*text = all[0]
		case all[0] == "":
			*flag = true
		default:
			if *flag, err = strconv.ParseBool(all[0]); err != nil {
				return q, badRequest("parameter %s %.100q: must be 1 or 0", name, all[0])
			}
		}
	}
	if q.watch && q.consistent {
		return q, badRequest("parameters watch and consistent: a watch is never consistent; leave one of them out")
	}
	return q, nil
}

// request is one operation in progress.
type request struct {
	h      *handler
	w      http.ResponseWriter
	r      *http.Request
	target target
	params query
	client pb.ResourceServiceClient
}

func (q *request) tenancy() *pb.Tenancy {
	return &pb.Tenancy{Partition: q.params.partition, Namespace: q.params.namespace}
}

func (q *request) id() *pb.ID {
	return &pb.ID{Uid: q.params.uid, Name: q.target.name, Type: q.target.reg.Type, Tenancy: q.tenancy()}
}

// ctx returns the context of one call of a service.
func (q *request) ctx() (context.Context, context.CancelFunc) {
	ctx := q.r.Context()
	if q.params.consistent {
		ctx = resource.WithConsistency(ctx, resource.Strong)
	}
	return context.WithTimeout(ctx, callTimeout)
}

const (
	// leaderTimeout bounds the time that a call waits for a leader. It is
	// longer than an election. gRPC calls between servers have the same
	// timeout.
	leaderTimeout = 7 * time.Second
	// leaderInterval is the time between two attempts.
	leaderInterval = 100 * time.Millisecond
)

// withLeader makes a call, and retries the call while there is no leader. A
// call without a leader has no effect, so the retry is safe.
func withLeader[In, Out any](
	ctx context.Context, call func(context.Context, In, ...grpc.CallOption) (Out, error), in In,
	opts ...grpc.CallOption,
) (Out, error) {
	for end := time.Now().Add(leaderTimeout); ; {
		out, err := call(ctx, in, opts...)
		if err == nil || !errors.Is(resource.FromStatus(err), resource.ErrNotLeader) || !time.Now().Before(end) {
			return out, err
		}
		if backoff.Sleep(ctx, leaderInterval, nil); ctx.Err() != nil {
			return out, err
		}
	}
}
