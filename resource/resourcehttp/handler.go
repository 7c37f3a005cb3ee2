// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Bounds of a request.
const (
	// MaxBody bounds a PUT's body, in bytes: a resource of resource.MaxSize, which JSON makes longer: bytes by a third.
	MaxBody = resource.MaxSize + resource.MaxSize/2
	// callTimeout bounds one call of a service, patience a client's next read or write.
	callTimeout = 25 * time.Second
	patience    = 30 * time.Second
)

// Client is what the handler needs of a resource service: pb.ResourceServiceClient has it.
type Client interface {
	Read(ctx context.Context, in *pb.ReadRequest, opts ...grpc.CallOption) (*pb.ReadResponse, error)
	List(ctx context.Context, in *pb.ListRequest, opts ...grpc.CallOption) (*pb.ListResponse, error)
	ListByOwner(ctx context.Context, in *pb.ListByOwnerRequest, opts ...grpc.CallOption) (*pb.ListByOwnerResponse, error)
	Write(ctx context.Context, in *pb.WriteRequest, opts ...grpc.CallOption) (*pb.WriteResponse, error)
	WriteStatus(ctx context.Context, in *pb.WriteStatusRequest, opts ...grpc.CallOption) (*pb.WriteStatusResponse, error)
	Delete(ctx context.Context, in *pb.DeleteRequest, opts ...grpc.CallOption) (*pb.DeleteResponse, error)
	MutateAndValidate(ctx context.Context, in *pb.MutateAndValidateRequest, opts ...grpc.CallOption) (*pb.MutateAndValidateResponse, error)
	WatchList(ctx context.Context, in *pb.WatchListRequest, opts ...grpc.CallOption) (grpc.ServerStreamingClient[pb.WatchEvent], error)
}

// Config of the handler.
type Config struct {
	// DC is this server's datacenter. Required.
	DC string
	// Registry has the types. Required.
	Registry *resource.Registry
	// Client returns a client of the resource service of a datacenter, "" for this one. It does not block. Its calls get the
	// request's context, which says who asks. An error that is ErrNoDatacenter says that none of that name is known. Required.
	Client func(dc string) (pb.ResourceServiceClient, error)
}

type handler struct {
	Config
	openAPI []byte
}

// New returns the handler of everything under api.ResourcePath. The registry's types must be complete: the OpenAPI document is made
// now. It starts nothing.
func New(cfg Config) (http.Handler, error) {
	var errs []error
	for _, f := range []struct {
		name    string
		missing bool
	}{{"DC", cfg.DC == ""}, {"Registry", cfg.Registry == nil}, {"Client", cfg.Client == nil}} {
		if f.missing {
			errs = append(errs, fmt.Errorf("HTTP API of resources: %s is required", f.name))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	h := &handler{Config: cfg}
	var err error
	h.openAPI, err = json.Marshal(describe(cfg.Registry.Types()))
	return h, err
}

// ServeHTTP finds out what is asked for.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	extend(w, callTimeout+patience)
	rest, ok := strings.CutPrefix(r.URL.Path, api.ResourcePath)
	if !ok {
		fail(w, http.StatusNotFound, "no such path; resources are under "+api.ResourcePath)
		return
	}
	switch r.URL.Path {
	case api.ResourceTypesPath:
		h.get(w, r, h.types)
		return
	case api.OpenAPIPath:
		h.get(w, r, h.describe)
		return
	}
	t, err := h.target(rest)
	if err != nil {
		failed(w, r, err)
		return
	}
	op, allowed := t.operation(r)
	if op == nil {
		w.Header().Set("Allow", allowed)
		fail(w, http.StatusMethodNotAllowed, fmt.Sprintf("%s is not for this path, but %s", r.Method, allowed))
		return
	}
	q, err := parse(r.URL.RawQuery, op.name, op.params)
	if err != nil {
		failed(w, r, err)
		return
	}
	client, err := h.client(q.dc)
	if err != nil {
		failed(w, r, err)
		return
	}
	if err := op.do(&request{h: h, w: w, r: r, t: t, q: q, client: client}); err != nil {
		failed(w, r, err)
	}
}

func (h *handler) client(dc string) (Client, error) {
	if dc == h.DC {
		dc = ""
	}
	return h.Client(dc)
}

// get serves a document of this server.
func (h *handler) get(w http.ResponseWriter, r *http.Request, serve func(w http.ResponseWriter, q query) error) {
	if !isGet(r) {
		w.Header().Set("Allow", "GET, HEAD")
		fail(w, http.StatusMethodNotAllowed, r.Method+" is not for this path, but GET, HEAD")
		return
	}
	q, err := parse(r.URL.RawQuery, "this document", nil)
	if err == nil && q.dc != "" && q.dc != h.DC {
		err = badRequest("dc %q: each server describes itself: ask one of %s", q.dc, q.dc)
	}
	if err == nil {
		err = serve(w, q)
	}
	if err != nil {
		failed(w, r, err)
	}
}

func (h *handler) types(w http.ResponseWriter, q query) error {
	all := []api.ResourceType{}
	for _, reg := range h.Registry.Types() {
		all = append(all, describeType(reg))
	}
	return answer(w, all, q.pretty)
}

func (h *handler) describe(w http.ResponseWriter, q query) error {
	return answer(w, json.RawMessage(h.openAPI), q.pretty)
}

func isGet(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// extend gives a client until d from now to take what is written.
func extend(w http.ResponseWriter, d time.Duration) {
	// Refused only where there is no connection: by a recorder, which never blocks.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d))
}

// answer writes v as JSON with status 200.
func answer(w http.ResponseWriter, v any, pretty bool) error {
	body, err := marshal(v, "", pretty)
	if err != nil {
		return err
	}
	jsonHeader(w)
	_, _ = w.Write(append(body, '\n')) // the client has gone: nobody to tell
	return nil
}

func jsonHeader(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}

// fail answers with one line of text, without an end of line, as the rest of the HTTP API does.
func fail(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}
