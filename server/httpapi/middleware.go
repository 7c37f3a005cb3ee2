// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/internal/tracing"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

const (
	// writeTimeout bounds a request in addition to the wait of a blocking
	// query. The time includes the path to another datacenter and the response.
	writeTimeout = 30 * time.Second
	bodyTimeout  = 30 * time.Second // bounds the receipt of a request body
)

// limitTime sets the deadlines to write a response and to read a body. net/http
// clears them after each request.
func limitTime(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setWriteDeadline(w, writeTimeout)
		if r.Body != nil && r.Body != http.NoBody {
			setWriteDeadline(w, bodyTimeout+writeTimeout) // net/http may read the rest of the body first
			rc := http.NewResponseController(w)
			_ = rc.SetReadDeadline(time.Now().Add(bodyTimeout)) // fails only without a connection, in tests
			r.Body = &limitedBody{r.Body, rc}
		}
		next.ServeHTTP(w, r)
	})
}

func setWriteDeadline(w http.ResponseWriter, d time.Duration) {
	// SetWriteDeadline fails only without a connection, in tests.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d))
}

// limitedBody clears the read deadline at the end of the body. After the body,
// net/http reads on to detect a disconnected client, and a deadline would end
// the request.
type limitedBody struct {
	io.ReadCloser
	rc *http.ResponseController
}

func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		_ = b.rc.SetReadDeadline(time.Time{})
	}
	return n, err
}

// rejectGRPC rejects gRPC calls to the HTTP port with a gRPC error that names
// the right port.
func rejectGRPC(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			next.ServeHTTP(w, r)
			return
		}
		// A gRPC response without a body consists of these headers.
		h := w.Header()
		h.Set("Content-Type", "application/grpc")
		h.Set("Grpc-Status", "12") // UNIMPLEMENTED
		h.Set("Grpc-Message", "this is the HTTP API, not gRPC; call the server port (default 8300), or a gateway")
	})
}

// checkHost rejects requests whose Host is a DNS name other than localhost and
// names. Otherwise a web page whose name resolves to 127.0.0.1 could read the
// API through the browser of a visitor (DNS rebinding). The browser sends the
// name of the page as Host.
func checkHost(names []string, next http.Handler) http.Handler {
	names = append([]string{"localhost"}, names...)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !netaddr.AllowedHost(r.Host, names) {
			writeError(w, http.StatusForbidden, fmt.Sprintf(
				"host %.300q is not a name of this server; use an IP address or %s", r.Host, strings.Join(names, ", ")))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// logRequests logs a Debug line at the end of each request.
func (h *handler) logRequests(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !h.Logger.Enabled(r.Context(), slog.LevelDebug) {
			next.ServeHTTP(w, r)
			return
		}
		start := time.Now()
		rec := &statusRecorder{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(rec, r)
		h.Logger.DebugContext(context.WithoutCancel(r.Context()), "HTTP request served", "method", r.Method,
			"path", r.URL.Path, "query", redactToken(r.URL.RawQuery), "addr", r.RemoteAddr, "status", rec.status,
			"duration", time.Since(start))
	})
}

// measure counts the requests of a route, and measures those that do not wait
// for a change. It records a span of each request. The responses have the
// statusRecorder of record.
func (h *handler) measure(route string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		r, span := h.trace(r, route)
		next.ServeHTTP(w, r)
		status := http.StatusOK
		if rec, ok := w.(*statusRecorder); ok {
			status = rec.status
		}
		if h.Tracer != nil {
			span.Set(tracing.HTTPStatus, strconv.Itoa(status))
			span.End(status >= http.StatusInternalServerError)
		}
		class := classes[status/100%len(classes)]
		if mayWait(r) {
			h.Requests.Count(route, class)
			return
		}
		h.Requests.Observe(route, class, time.Since(start))
	})
}

// trace returns r with the span of the request in its context. A forwarded
// request has its parent in the context.
func (h *handler) trace(r *http.Request, route string) (*http.Request, tracing.Span) {
	if h.Tracer == nil {
		return r, tracing.Span{}
	}
	caller, _ := tlsutil.PeerFromContext(r.Context())
	ctx, span := h.Tracer.Request(r.Context(), route,
		tracing.Parent{Header: r.Header.Get(tracing.Header), Source: caller.DC})
	return r.WithContext(ctx), span
}

// classes are the classes of status codes. No handler sends a status below 100.
var classes = [...]string{"other", "1xx", "2xx", "3xx", "4xx", "5xx"}

// mayWait reports whether a request is a blocking query, a watch, or a profile.
func mayWait(r *http.Request) bool {
	q := r.URL.RawQuery
	return q != "" && (strings.Contains(q, "index=") || strings.Contains(q, "watch") || strings.Contains(q, "seconds="))
}

// statusRecorder records the status, and the first bytes of an error text.
type statusRecorder struct {
	http.ResponseWriter
	status int
	text   []byte
}

// maxErrorText bounds the recorded text of an error, in bytes.
const maxErrorText = 512

func (r *statusRecorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

func (r *statusRecorder) Write(b []byte) (int, error) {
	if r.status >= http.StatusBadRequest {
		r.text = append(r.text, b[:min(len(b), maxErrorText-len(r.text))]...)
	}
	return r.ResponseWriter.Write(b)
}

// err returns the error of the response, or nil.
func (r *statusRecorder) err() error {
	switch {
	case r.status == http.StatusForbidden:
		text := strings.TrimPrefix(string(bytes.TrimSpace(r.text)), resource.ErrDenied.Error()+": ")
		return fmt.Errorf("%w: %s", resource.ErrDenied, text)
	case r.status >= http.StatusBadRequest:
		return httpStatus(r.status)
	}
	return nil
}

// httpStatus is the error of a response with an error status. It does not have
// the text of the response, which may contain a value.
type httpStatus int

func (s httpStatus) Error() string { return s.Kind() }

// Kind is the text of the error in the audit log.
func (s httpStatus) Kind() string { return fmt.Sprintf("status %d", int(s)) }

// Unwrap lets http.ResponseController reach the connection.
func (r *statusRecorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// identify puts the caller into the context of the request. The context of a
// forwarded request already has a caller.
func (h *handler) identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A page of another site must not embed a response.
		w.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
		ctx := r.Context()
		if _, ok := tlsutil.PeerFromContext(ctx); !ok {
			p := tlsutil.Peer{Role: tlsutil.RoleAnonymous, DC: h.DC, Node: h.Node}
			if h.Peer != nil {
				var err error
				if p, err = h.Peer(r); err != nil {
					writeError(w, http.StatusForbidden, err.Error())
					return
				}
			}
			r = r.WithContext(tlsutil.WithPeer(ctx, p))
		}
		next.ServeHTTP(w, r)
	})
}

// record reports each write, and each refused request, to the policy engine. The
// response to a write is sent when its record is kept.
func (h *handler) record(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call := newCall(r)
		r = r.WithContext(policy.WithCall(r.Context(), call))
		if isRead(r.Method) {
			rec := &statusRecorder{ResponseWriter: w, status: http.StatusOK}
			next.ServeHTTP(rec, r)
			if rec.status == http.StatusForbidden {
				_ = h.Policy.Record(r.Context(), call, rec.err()) // a refused request does not wait for its record
			}
			return
		}
		held := &heldResponse{header: w.Header(), deadlines: http.NewResponseController(w)}
		rec := &statusRecorder{ResponseWriter: held, status: http.StatusOK}
		ended := false
		defer func() {
			if !ended && call.Reserved() { // next has panicked
				_ = h.Policy.Record(r.Context(), call, httpStatus(http.StatusInternalServerError))
			}
		}()
		next.ServeHTTP(rec, r)
		ended = true
		if err := rec.err(); call.Reserved() || rec.status == http.StatusForbidden {
			if recordErr := h.Policy.Record(r.Context(), call, err); err == nil && recordErr != nil {
				writeError(w, http.StatusInternalServerError, recordErr.Error())
				return
			}
		}
		held.send(w)
	})
}

// newCall describes a request. It leaves out the query, except for the
// datacenter: clients of Consul may send a token in the query.
func newCall(r *http.Request) *policy.Call {
	c := &policy.Call{Method: r.Method + " " + r.URL.Path, Addr: r.RemoteAddr}
	if c.Addr == "@" {
		c.Addr = "unix" // the other end of a Unix socket has no address
	}
	c.Caller, _ = policy.FromContext(r.Context())
	if dc := r.URL.Query().Get("dc"); dc != "" {
		c.Method += "?dc=" + dc
	}
	return c
}

// heldResponse holds the body of a response until send. Its header is that of
// the client's response.
type heldResponse struct {
	header    http.Header
	deadlines *http.ResponseController
	status    int
	body      bytes.Buffer
}

func (r *heldResponse) Header() http.Header { return r.header }

func (r *heldResponse) WriteHeader(status int) { r.status = cmp.Or(r.status, status) }

func (r *heldResponse) Write(b []byte) (int, error) { return r.body.Write(b) }

// SetWriteDeadline sets the deadline of the client's connection.
func (r *heldResponse) SetWriteDeadline(t time.Time) error { return r.deadlines.SetWriteDeadline(t) }

// SetReadDeadline sets the deadline of the client's connection.
func (r *heldResponse) SetReadDeadline(t time.Time) error { return r.deadlines.SetReadDeadline(t) }

func (r *heldResponse) send(w http.ResponseWriter) {
	if r.status != 0 {
		w.WriteHeader(r.status)
	}
	_, _ = w.Write(r.body.Bytes()) // an error means that the client has disconnected
}

// heartbeats are paths of requests that usually write nothing. Their record is
// reserved when they commit.
var heartbeats = []string{"/v1/agent/check/pass/", "/v1/agent/check/warn/", "/v1/agent/check/fail/", "/v1/agent/check/update/",
	"/v1/session/renew/"}

func isHeartbeat(path string) bool {
	return slices.ContainsFunc(heartbeats, func(prefix string) bool { return strings.HasPrefix(path, prefix) })
}

// authorizeWrites rejects writes of callers that may not write any resource,
// before it reads the body, and reserves the record of a write. The resource
// service decides for each resource.
func (h *handler) authorizeWrites(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isRead(r.Method) {
			c, _ := policy.FromContext(r.Context())
			if err := h.Policy.MayWrite(c, "https://"+r.Host); err != nil {
				writeError(w, http.StatusForbidden, err.Error())
				return
			}
			if !isHeartbeat(r.URL.Path) {
				if err := h.Policy.Reserve(r.Context()); err != nil {
					writeFailure(w, r, err)
					return
				}
			}
		}
		next.ServeHTTP(w, r)
	})
}

// authorizeRead returns an ErrDenied unless the caller may list all resources of
// a type. The resource service decides about other reads.
func (h *handler) authorizeRead(r *http.Request, typ *pb.Type) error {
	if typ == nil || !isRead(r.Method) {
		return nil
	}
	return h.Policy.Decide(r.Context(), resource.Access{Verb: resource.VerbList, Type: typ})
}

func isRead(method string) bool { return method == http.MethodGet || method == http.MethodHead }
