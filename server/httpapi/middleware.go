// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/wanfed/wanfed/internal/netaddr"
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

// identify puts the peer into the context of the request. The context of a
// forwarded request already has a peer.
func (h *handler) identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A page of another site must not embed a response.
		w.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
		ctx := r.Context()
		if _, ok := tlsutil.PeerFromContext(ctx); !ok && h.Peer != nil {
			p, err := h.Peer(r)
			if err != nil {
				writeError(w, http.StatusForbidden, err.Error())
				return
			}
			r = r.WithContext(tlsutil.WithPeer(ctx, p))
		}
		next.ServeHTTP(w, r)
	})
}

// authorizeWrites rejects writes of peers that may not write any resource. The
// resource service authorizes the writes of other peers by type.
func (h *handler) authorizeWrites(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isRead(r.Method) {
			next.ServeHTTP(w, r)
			return
		}
		const create = "wanfed tls cert create --operator --datacenter "
		switch p, _ := tlsutil.PeerFromContext(r.Context()); {
		case p.Role == tlsutil.RoleOperator || p.Role == tlsutil.RoleServer && p.DC == h.DC:
			next.ServeHTTP(w, r)
		case p.Role == tlsutil.RoleServer: // another datacenter's server may write only for its operators
			writeError(w, http.StatusForbidden, fmt.Sprintf("%v may not write in %s for itself", p, h.DC))
		case r.TLS == nil:
			writeError(w, http.StatusForbidden, fmt.Sprintf(
				"a write needs an operator's certificate: make one with %s%s, and use https://%s", create,
				h.DC, r.Host))
		default:
			writeError(w, http.StatusForbidden, fmt.Sprintf(
				"%v may not write: create an operator's certificate with: %s%s", p, create, h.DC))
		}
	})
}

func isRead(method string) bool { return method == http.MethodGet || method == http.MethodHead }
