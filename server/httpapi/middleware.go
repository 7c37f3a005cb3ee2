// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

const (
	// writeTimeout is the maximum duration of a request in addition to the wait
	// of a blocking query. It includes the time to reach another datacenter and
	// to write the response.
	writeTimeout = 30 * time.Second
	// bodyTimeout is the time in which the body of a request must arrive.
	bodyTimeout = 30 * time.Second
)

// limitTime bounds the time to write to a client that does not read, and the
// time to read a body that does not arrive. net/http clears the deadlines after
// each request.
func limitTime(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setWriteDeadline(w, writeTimeout)
		if r.Body != nil && r.Body != http.NoBody {
			setWriteDeadline(w, bodyTimeout+writeTimeout) // net/http may read the rest before it writes
			rc := http.NewResponseController(w)
			_ = rc.SetReadDeadline(time.Now().Add(bodyTimeout)) // fails only without a connection: in tests
			r.Body = &limitedBody{r.Body, rc}
		}
		next.ServeHTTP(w, r)
	})
}

func setWriteDeadline(w http.ResponseWriter, d time.Duration) {
	// Fails only without a connection: in tests.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d))
}

// limitedBody clears the read deadline at the end of the body. net/http then
// continues to read, to detect that the client has disconnected. A deadline
// would end the request.
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

// rejectGRPC rejects gRPC calls to the HTTP port with an error that a gRPC
// client shows. The error reports that the client uses a wrong address.
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
		h.Set("Grpc-Message", "this is the HTTP API, for people and tools; "+
			"call the server port (8300 if not set otherwise), or a gateway")
	})
}

// checkHost rejects requests whose Host is a DNS name other than localhost and
// names. A web page could otherwise make its own name resolve to 127.0.0.1 and
// read the API with the browser of its visitor (DNS rebinding). The browser
// sends the name of the page as Host.
func checkHost(names []string, next http.Handler) http.Handler {
	names = append([]string{"localhost"}, names...)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !allowedHost(r.Host, names) {
			writeError(w, http.StatusForbidden, fmt.Sprintf(
				"host %.300q is not a name of this server; use an IP address or %s", r.Host, strings.Join(names, ", ")))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// allowedHost reports whether a request with this Host header is allowed. The
// header may have a port. A request without one (HTTP/1.0) is not from a
// browser.
func allowedHost(hostport string, names []string) bool {
	if hostport == "" || hostport == "localhost" {
		return true
	}
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Zone() == "" // a zone could hold any text, and clients do not send one
	}
	host = strings.TrimSuffix(host, ".")
	return slices.ContainsFunc(names, func(name string) bool {
		return strings.EqualFold(strings.TrimSuffix(name, "."), host)
	})
}

// logRequests logs a Debug line for each request, at its end.
func (h *handler) logRequests(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !h.logger.Enabled(r.Context(), slog.LevelDebug) {
			next.ServeHTTP(w, r)
			return
		}
		start := time.Now()
		rec := &statusRecorder{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(rec, r)
		h.logger.DebugContext(context.WithoutCancel(r.Context()), "HTTP request answered", "method", r.Method,
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
// request of Serve already has a peer.
func (h *handler) identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		if _, ok := tlsutil.PeerFromContext(ctx); !ok && h.peer != nil {
			p, err := h.peer(r)
			if err != nil {
				writeError(w, http.StatusForbidden, err.Error())
				return
			}
			r = r.WithContext(tlsutil.WithPeer(ctx, p))
		}
		next.ServeHTTP(w, r)
	})
}

// authorizeWrites rejects writes by peers that may not write at all. For other
// peers, the type of a resource decides who may write it.
func (h *handler) authorizeWrites(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isRead(r.Method) {
			next.ServeHTTP(w, r)
			return
		}
		const create = "wanfed tls cert create --operator --datacenter "
		switch p, _ := tlsutil.PeerFromContext(r.Context()); {
		case p.Role == tlsutil.RoleOperator || p.Role == tlsutil.RoleServer && p.DC == h.dc:
			next.ServeHTTP(w, r)
		case p.Role == tlsutil.RoleServer: // a server may read for any client, and write only for its operators
			writeError(w, http.StatusForbidden, fmt.Sprintf("%v may not write in %s for itself", p, h.dc))
		case r.TLS == nil:
			writeError(w, http.StatusForbidden, fmt.Sprintf(
				"a write needs an operator's certificate: make one with %s%s, and use https://%s", create, h.dc, r.Host))
		default:
			writeError(w, http.StatusForbidden, fmt.Sprintf(
				"%v may not write: create an operator's certificate with: %s%s", p, create, h.dc))
		}
	})
}

func isRead(method string) bool { return method == http.MethodGet || method == http.MethodHead }
