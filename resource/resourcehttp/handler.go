// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

const (
	// MaxBody bounds the body of a PUT, in bytes. MaxBody exceeds
	// resource.MaxSize because JSON is longer than protobuf, for binary data by
	// a third.
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
	// Registry has all types of resources. No type may be added later.
	// Required.
	Registry *resource.Registry
	// Client returns a client of the resource service of a datacenter. An empty
	// dc means the datacenter DC. The calls have the request's context, which
	// identifies the caller. Client must not block. Client fails with
	// ErrNoDatacenter if dc is unknown. Required.
	Client func(dc string) (pb.ResourceServiceClient, error)
}

type handler struct {
	Config
	documents map[string]any // by path; encoded as JSON
}

// New returns the handler of all paths under api.ResourcePath.
func New(cfg Config) (http.Handler, error) {
	switch {
	case cfg.DC == "":
		return nil, errors.New("resourcehttp: Config.DC is required")
	case cfg.Registry == nil:
		return nil, errors.New("resourcehttp: Config.Registry is required")
	case cfg.Client == nil:
		return nil, errors.New("resourcehttp: Config.Client is required")
	}
	types := []api.ResourceType{} // encoded as [], not null
	for _, reg := range cfg.Registry.Types() {
		types = append(types, describeType(reg))
	}
	openAPI, err := json.Marshal(describe(cfg.Registry.Types()))
	return &handler{cfg, map[string]any{
		api.ResourceTypesPath: types,
		api.OpenAPIPath:       json.RawMessage(openAPI),
	}}, err
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	extendWrite(w, callTimeout+clientTimeout)
	if err := h.serve(w, r); err != nil {
		failWith(w, r, err)
	}
}

// serve performs the operation that path and method select. If serve returns an
// error, it has written no response.
func (h *handler) serve(w http.ResponseWriter, r *http.Request) error {
	t, err := h.target(r.URL.Path)
	if err != nil {
		return err
	}
	op, allowed := t.operation(r.Method)
	if op == nil {
		w.Header().Set("Allow", allowed)
		fail(w, http.StatusMethodNotAllowed, "method "+r.Method+" is not allowed for this path; allowed are "+allowed)
		return nil
	}
	q, err := parse(r.URL.RawQuery, op.name, op.params)
	if err != nil {
		return err
	}
	if q.dc == h.DC {
		q.dc = ""
	}
	if t.document != nil {
		if q.dc != "" {
			return badRequest("dc %q: each server describes only itself: send the request to a server of %s",
				q.dc, q.dc)
		}
		return respond(w, t.document, q.pretty)
	}
	client, err := h.Client(q.dc)
	if err != nil {
		return err
	}
	return op.do(&request{h: h, w: w, r: r, target: t, params: q, client: client})
}

// extendWrite sets the write deadline to d from now.
func extendWrite(w http.ResponseWriter, d time.Duration) {
	// SetWriteDeadline fails only in tests, without a connection.
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

// fail responds with one line of text that does not end with a newline, like
// package httpapi.
func fail(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

// encode returns r in the form of the HTTP API. Data of a message type that
// this server does not know is encoded as {"@type": ..., "value": base64}.
func (h *handler) encode(r *pb.Resource) api.Resource {
	data, err := DataJSON(h.Registry, r)
	if err != nil {
		data, _ = json.Marshal(map[string]any{"@type": r.GetData().GetTypeUrl(), "value": r.GetData().GetValue()})
	}
	return api.FromResource(r, data)
}

// DataJSON returns the data of r in the form of the HTTP API. The type of r
// must be in the registry g.
func DataJSON(g *resource.Registry, r *pb.Resource) (json.RawMessage, error) {
	reg, err := g.Lookup(r.GetId().GetType())
	if err != nil {
		return nil, err
	}
	msg := reg.NewMessage()
	if err := r.GetData().UnmarshalTo(msg); err != nil {
		return nil, err
	}
	return protojson.MarshalOptions{UseProtoNames: true}.Marshal(msg) // marshal removes its random spaces
}

// marshal returns v as JSON on one line. If pretty, marshal returns several
// indented lines, with prefix before each line.
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
