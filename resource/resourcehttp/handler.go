// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

const (
	// MaxBody bounds the body of a PUT, in bytes. It exceeds resource.MaxSize
	// because JSON is longer than protobuf, for binary data by a third.
	MaxBody = resource.MaxSize + resource.MaxSize/2
	// callTimeout bounds one call of a service.
	callTimeout = 25 * time.Second
	// clientTimeout bounds one read from or write to a client.
	clientTimeout = 30 * time.Second
)

// Config configures the handler.
type Config struct {
	// DC is the datacenter of this server. Required.
	DC string
	// Registry has the types of resources. It must be complete. Required.
	Registry *resource.Registry
	// Client returns a client of the resource service of a datacenter. An empty
	// dc means this one. Client must not block. Calls get the request's
	// context, which identifies the caller. Client fails with ErrNoDatacenter
	// if dc is unknown. Required.
	Client func(dc string) (pb.ResourceServiceClient, error)
}

type handler struct {
	Config
	openAPI []byte // the document, in JSON
}

// New returns the handler of all paths under api.ResourcePath. It starts no
// goroutine.
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

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	extendWrite(w, callTimeout+clientTimeout)
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
	if err := h.serve(w, r, rest); err != nil {
		failWith(w, r, err)
	}
}

// serve responds to a request for a type or a resource.
func (h *handler) serve(w http.ResponseWriter, r *http.Request, path string) error {
	t, err := h.target(path)
	if err != nil {
		return err
	}
	op, allowed := t.operation(r)
	if op == nil {
		refuseMethod(w, r, allowed)
		return nil
	}
	q, err := parse(r.URL.RawQuery, op.name, op.params)
	if err != nil {
		return err
	}
	dc := q.dc
	if dc == h.DC {
		dc = ""
	}
	client, err := h.Client(dc)
	if err != nil {
		return err
	}
	return op.do(&request{h: h, w: w, r: r, t: t, q: q, client: client})
}

func refuseMethod(w http.ResponseWriter, r *http.Request, allowed string) {
	w.Header().Set("Allow", allowed)
	fail(w, http.StatusMethodNotAllowed, r.Method+" is not for this path, but "+allowed)
}

// get serves a document about this server.
func (h *handler) get(w http.ResponseWriter, r *http.Request, serve func(w http.ResponseWriter, q query) error) {
	if !isGet(r) {
		refuseMethod(w, r, "GET, HEAD")
		return
	}
	q, err := parse(r.URL.RawQuery, "this document", nil)
	if err == nil && q.dc != "" && q.dc != h.DC {
		err = badRequest("dc %q: each server describes itself: use a server of %s", q.dc, q.dc)
	}
	if err == nil {
		err = serve(w, q)
	}
	if err != nil {
		failWith(w, r, err)
	}
}

func (h *handler) types(w http.ResponseWriter, q query) error {
	all := []api.ResourceType{}
	for _, reg := range h.Registry.Types() {
		all = append(all, describeType(reg))
	}
	return respond(w, all, q.pretty)
}

func (h *handler) describe(w http.ResponseWriter, q query) error {
	return respond(w, json.RawMessage(h.openAPI), q.pretty)
}

func isGet(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// extendWrite sets the write deadline to d from now.
func extendWrite(w http.ResponseWriter, d time.Duration) {
	// This fails only without a connection, in tests.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d))
}

// respond writes v as JSON with status 200.
func respond(w http.ResponseWriter, v any, pretty bool) error {
	body, err := marshal(v, "", pretty)
	if err != nil {
		return err
	}
	jsonHeader(w)
	_, _ = w.Write(append(body, '\n')) // an error means that the client has disconnected
	return nil
}

func jsonHeader(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}

// fail responds with one line of text without a newline, as the rest of the HTTP
// API does.
func fail(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

// encode returns r in the form of the HTTP API. Data of a message type that this
// server does not know is encoded as {"@type": ..., "value": base64}.
func (h *handler) encode(r *pb.Resource) api.Resource {
	data, err := h.dataOf(r)
	if err != nil {
		data, _ = json.Marshal(map[string]any{"@type": r.GetData().GetTypeUrl(), "value": r.GetData().GetValue()})
	}
	return api.FromResource(r, data)
}

func (h *handler) dataOf(r *pb.Resource) (json.RawMessage, error) {
	reg, err := h.Registry.Lookup(r.GetId().GetType())
	if err != nil {
		return nil, err
	}
	msg := reg.NewMessage()
	if err := r.GetData().UnmarshalTo(msg); err != nil {
		return nil, err
	}
	return protojson.MarshalOptions{UseProtoNames: true}.Marshal(msg) // marshal removes its random spaces
}

// marshal returns v as JSON on one line, or, if pretty, indented, with prefix
// before each line.
func marshal(v any, prefix string, pretty bool) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if pretty {
		enc.SetIndent(prefix, "  ")
	}
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}
