// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/kv"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server/limit"
	"github.com/wanfed/wanfed/tlsutil"
)

// Config of the handlers.
type Config struct {
	// DC is this server's datacenter. Required.
	DC string
	// Source answers. Required.
	Cluster Cluster
	// Metrics serves /metrics. nil: there is none (404).
	Metrics http.Handler
	// Peer says who asks, by the certificate of the connection; a request without one comes from this machine. Its error refuses
	// the request. nil: nobody is known, and so nobody may write. What another datacenter hands on (Serve) has its peer already.
	Peer func(r *http.Request) (tlsutil.Peer, error)
	// Resources are the records, every call authorized by the peer of its context; Backend is what is under them. nil: the
	// endpoints that are made of records are not there.
	Resources *resource.Service
	Backend   resource.Backend
	// Node and Address are this server's name and IP address: the node of services that register here. Report has the leader take
	// what is said of a check; it fails with resource.ErrNotLeader while there is none. Required with Resources.
	Node, Address string
	Report        func(ctx context.Context, r catalog.CheckUpdate) error
	// API answers what is under /api/. It finds the peer in the context. nil: there is none (404).
	API http.Handler
	// Names are DNS names by which clients may ask, besides localhost and IP addresses; the names of the HTTP listener's
	// certificate, for example. Without port.
	Names []string
	// Logger gets a Debug line per request. Required.
	Logger *slog.Logger
}

func (c Config) validate() error {
	var errs []error
	if err := tlsutil.CheckLabel(c.DC); err != nil {
		errs = append(errs, fmt.Errorf("datacenter: %w", err))
	}
	if c.Cluster == nil {
		errs = append(errs, errors.New("no source"))
	}
	if c.Logger == nil {
		errs = append(errs, errors.New("no logger"))
	}
	for _, name := range c.Names {
		if name == "" {
			errs = append(errs, errors.New("one of the allowed host names is empty"))
		}
	}
	return errors.Join(errs...)
}

type handler struct {
	dc     string
	src    Cluster
	peer   func(r *http.Request) (tlsutil.Peer, error)
	logger *slog.Logger
	large  *limit.PerPeer // large responses that are being sent

	// Of Config.Resources; all nil without.
	resources     *resource.Service
	kv            *kv.Store
	view          *catalog.View
	writer        *catalog.Writer
	node, address string
	report        func(ctx context.Context, r catalog.CheckUpdate) error
}

// New makes the handler of all endpoints. It starts nothing.
func New(cfg Config) (http.Handler, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("HTTP API: %w", err)
	}
	h := &handler{dc: cfg.DC, src: cfg.Cluster, peer: cfg.Peer, logger: cfg.Logger, large: limit.New(func(tlsutil.Peer) int64 { return maxLarge })}
	mux := http.NewServeMux()
	for pattern, e := range map[string]endpoint{ // GET is HEAD too
		"GET /v1/internal/federation-states":               h.federationStates,
		"GET /v1/internal/federation-states/mesh-gateways": h.meshGateways,
		"GET /v1/internal/federation-state/{dc}":           h.federationState,
		"GET /v1/agent/members":                            h.members,
		"GET /v1/catalog/datacenters":                      h.datacenters,
		"GET /v1/status/leader":                            h.leader,
		"GET /v1/status/peers":                             h.peers,
		"GET " + api.StatusPath:                            h.status,
	} {
		mux.Handle(pattern, h.serve(e))
	}
	if cfg.Metrics != nil {
		mux.Handle("GET /metrics", cfg.Metrics)
	}
	if cfg.API != nil {
		mux.Handle("/api/", h.guarded(cfg.API))
	}
	mux.Handle("/", missing(mux))
	records, err := h.records(cfg, mux)
	if err != nil {
		return nil, fmt.Errorf("HTTP API: %w", err)
	}
	return bounded(notGRPC(checkHost(cfg.Names, h.logged(h.identified(records))))), nil
}

// afterWait is how long a request may take besides the wait it asks for: asking elsewhere, writing the answer.
const afterWait = 30 * time.Second

// bounded ends writes to a client that does not read, and reads of a body that does not come. net/http takes the deadlines back after
// each request.
func bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setDeadline(w, afterWait)
		if r.Body != nil && r.Body != http.NoBody {
			setDeadline(w, bodyTime+afterWait) // net/http may read the rest before it writes
			r.Body = boundBody(w, r.Body)
		}
		next.ServeHTTP(w, r)
	})
}

func setDeadline(w http.ResponseWriter, d time.Duration) {
	// Refused only where there is no connection: in tests.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d))
}

// endpoint answers a request for this datacenter. A badRequest error is the client's fault.
type endpoint func(r *http.Request, q query) (answer, error)

// answer is a 200 with JSON, unless it has another status; if body is nil, a 404 without any.
type answer struct {
	body   any
	index  uint64 // 0: the endpoint does not block
	status int    // 0: 200
}

type badRequest struct{ error }

// elsewhere is an endpoint's error that says which datacenter a request is for: its body names it.
type elsewhere string

func (e elsewhere) Error() string { return "this is for datacenter " + string(e) }

func (h *handler) serve(e endpoint) http.Handler {
	return h.guarded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"X-Consul-Namespace", "X-Consul-Partition"} {
			if one(r.Header, name) != "" {
				fail(w, http.StatusBadRequest, "header "+name+" is not supported: leave it out")
				return
			}
		}
		q, err := parseQuery(r.URL.RawQuery)
		if err != nil {
			fail(w, http.StatusBadRequest, err.Error())
			return
		}
		if q.body, err = body(w, r); err != nil {
			h.failed(w, r, err)
			return
		}
		if q.blocks() || q.body != nil { // else bounded has just set the same
			setDeadline(w, api.MaxBlockTime(q.wait)+afterWait)
		}
		if q.dc != "" && q.dc != h.dc {
			h.forward(w, r, q)
			return
		}
		a, err := e(r, q)
		if dc, ok := errors.AsType[elsewhere](err); ok {
			q.dc = string(dc)
			h.forward(w, r, q)
			return
		}
		if err != nil {
			h.failed(w, r, err)
			return
		}
		h.write(w, r, a, q.pretty)
	}))
}

func (h *handler) write(w http.ResponseWriter, r *http.Request, a answer, pretty bool) {
	_, lastContact, known := h.src.Leader()
	header := w.Header()
	putBrief(header, &pb.Brief{Index: a.index, KnownLeader: known, LastContact: uint64(lastContact.Milliseconds())})
	if a.body == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	e, ok := a.body.(encoded)
	if !ok {
		body, err := json.Marshal(a.body)
		if err != nil {
			fail(w, http.StatusInternalServerError, err.Error())
			return
		}
		e = encoded{typeJSON, body}
	}
	if pretty && e.contentType == typeJSON {
		e.body = indent(e.body)
	}
	end, err := h.sendLarge(r.Context(), len(e.body))
	if err != nil {
		h.failed(w, r, err)
		return
	}
	defer end()
	setType(header, e.contentType)
	if e.contentType == "" {
		header.Set("Content-Security-Policy", "sandbox")
	}
	if a.status != 0 {
		w.WriteHeader(a.status)
	}
	_, _ = w.Write(e.body) // the client has gone: nobody to tell
}

const typeJSON = "application/json"

// Values of headers that nobody changes: one for all answers.
var (
	headerJSON    = []string{typeJSON}
	headerText    = []string{"text/plain; charset=utf-8"}
	headerNosniff = []string{"nosniff"}
)

// setType sets the content type of an answer: typeJSON, or that of a text.
func setType(h http.Header, contentType string) {
	h["Content-Type"] = headerText
	if contentType == typeJSON {
		h["Content-Type"] = headerJSON
	}
	h["X-Content-Type-Options"] = headerNosniff
}

// encoded, as body of an answer, is what is sent: JSON, or, without a content type, bytes that clients have written and no browser
// may take for a page.
type encoded struct {
	contentType string
	body        []byte
}

func indent(body []byte) []byte {
	out := bytes.Buffer{}
	if json.Indent(&out, body, "", "    ") != nil {
		return body // as it is
	}
	out.WriteByte('\n')
	return out.Bytes()
}

// fail answers with one line of text, without an end of line: Consul's clients compare some of them.
func fail(w http.ResponseWriter, status int, text string) {
	setType(w.Header(), "")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

// logged writes a Debug line per request, when it is done.
func (h *handler) logged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !h.logger.Enabled(r.Context(), slog.LevelDebug) {
			next.ServeHTTP(w, r)
			return
		}
		start := time.Now()
		rec := &statusRecorder{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(rec, r)
		h.logger.DebugContext(context.WithoutCancel(r.Context()), "HTTP request answered", "method", r.Method,
			"path", r.URL.Path, "query", withoutToken(r.URL.RawQuery), "remote", r.RemoteAddr, "status", rec.status, "took", time.Since(start))
	})
}

type statusRecorder struct {
	http.ResponseWriter
	status int
}

func (r *statusRecorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the connection.
func (r *statusRecorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
