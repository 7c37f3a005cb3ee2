// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/profile"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// oneConn is a listener that accepts one connection.
type oneConn struct {
	c    chan net.Conn
	done chan struct{}
}

func (l oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.c:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l oneConn) Close() error   { close(l.done); return nil }
func (l oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// A body that never ends does not hold a request open, whether the handler
// reads the body or not. After a complete body, a slow handler may finish.
func TestLimitTime_Body(t *testing.T) {
	const half, whole = "Host: localhost\r\nContent-Length: 4\r\n\r\nab",
		"Host: localhost\r\nContent-Length: 2\r\n\r\nab"
	slow := func(w http.ResponseWriter, r *http.Request) {
		if _, err := readBody(w, r); err != nil {
			writeError(w, http.StatusBadRequest, err.Error())
			return
		}
		select {
		case <-time.After(2 * bodyTimeout):
		case <-r.Context().Done():
			writeError(w, http.StatusTeapot, "the request was cancelled")
			return
		}
		setWriteDeadline(w, writeTimeout)
		writeError(w, http.StatusOK, "done")
	}
	all := newHandler(t, newFakeCluster())
	for _, tt := range []struct {
		name, request, want string
		h                   http.Handler
		open                bool
	}{
		{"read request, body not read", "GET /v1/status/leader HTTP/1.1\r\n" + half, "200", all, false},
		{"refused, body not read", "PUT /v1/nothing HTTP/1.1\r\n" + half, "404", all, false},
		{"body read", "PUT /v1/kv/x HTTP/1.1\r\n" + half, "400", limitTime(http.HandlerFunc(slow)), false},
		{"complete body, slow handler", "PUT /v1/kv/x HTTP/1.1\r\n" + whole, "200",
			limitTime(http.HandlerFunc(slow)), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T) {
				client, conn := net.Pipe()
				defer client.Close()
				ln := oneConn{make(chan net.Conn, 1), make(chan struct{})}
				ln.c <- conn
				srv := &http.Server{Handler: tt.h}
				served := make(chan error, 1)
				go func() { served <- srv.Serve(ln) }()
				defer func() { srv.Close(); <-served }()
				go io.WriteString(client, tt.request)
				client.SetReadDeadline(time.Now().Add(3 * bodyTimeout))
				b, err := io.ReadAll(client)
				if !strings.HasPrefix(string(b), "HTTP/1.1 "+tt.want) || (err != nil) != tt.open {
					t.Errorf("response = %.100q, %v, want %s, connection open = %v", b, err, tt.want, tt.open)
				}
			})
		})
	}
}

// A gRPC client that calls the HTTP port gets an error that names the right
// port. Requests of HTTP clients are served.
func TestRejectGRPC(t *testing.T) {
	srv := httptest.NewUnstartedServer(rejectGRPC(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
	})))
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(srv.Close)
	resp, err := http.Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusTeapot {
		t.Errorf("HTTP request = %s, want %d", resp.Status, http.StatusTeapot)
	}
	cc, err := grpc.NewClient("passthrough:///server", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", srv.Listener.Addr().String())
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	err = cc.Invoke(t.Context(), "/wanfed.v1.OperatorService/ListPeers", &emptypb.Empty{}, &emptypb.Empty{})
	const want = "this is the HTTP API, not gRPC; call the server port (default 8300), or a gateway"
	if s := status.Convert(err); s.Code() != codes.Unimplemented || s.Message() != want {
		t.Errorf("gRPC call = %v, want %v: %s", err, codes.Unimplemented, want)
	}
}

// newEchoHandler returns a handler whose /api/ responds with the method, the
// peer and the body of the request.
func newEchoHandler(t testing.TB, cluster Cluster) http.Handler {
	t.Helper()
	h, err := New(Config{
		DC: "dc1", Node: "n", Policy: policyOf("dc1"), Cluster: cluster, Logger: slog.New(slog.DiscardHandler),
		Profiles: profile.Handler(slog.New(slog.DiscardHandler)),
		Peer: func(r *http.Request) (tlsutil.Peer, error) {
			name := r.Header.Get("X-Test-Peer") // replaces the certificate
			if name == "unknown" {
				return tlsutil.Peer{}, errors.New("certificate has no peer")
			}
			role, dc, _ := strings.Cut(name, "/")
			return tlsutil.Peer{Role: tlsutil.Role(role), DC: dc, Node: "n"}, nil
		},
		API: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p, _ := tlsutil.PeerFromContext(r.Context())
			b, _ := io.ReadAll(r.Body)
			io.WriteString(w, r.Method+" "+p.String()+" "+string(b))
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// Profiles are for operators of the datacenter, and for the holder of the
// server's certificate. A request with ?dc= is not forwarded.
func TestProfiles(t *testing.T) {
	h := newEchoHandler(t, newFakeCluster())
	for _, tt := range []struct {
		peer, query string
		status      int
	}{
		{"cli/dc1", "", 200},
		{"server/dc1", "", 200},
		{"cli/dc1", "?dc=dc2", 400},
		{"cli/dc2", "", 403},
		{"user/dc1", "", 403},
		{"gateway/dc1", "", 403},
		{"client/dc1", "", 403},
		{"anonymous/dc1", "", 403},
	} {
		r := httptest.NewRequest("GET", profile.Path+"goroutine"+tt.query, nil)
		r.Host = "127.0.0.1:8500"
		r.Header.Set("X-Test-Peer", tt.peer)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != tt.status {
			t.Errorf("profile for %s%s = %d %.200s, want %d", tt.peer, tt.query, w.Code, w.Body, tt.status)
		}
	}
	// A server of dc2 cannot forward a request.
	ctx := tlsutil.WithPeer(t.Context(), tlsutil.Peer{Role: tlsutil.RoleOperator, DC: "dc2", Node: "joe"})
	resp, err := Serve(ctx, h, &pb.QueryRequest{Method: "GET", Path: profile.Path + "goroutine"})
	if err != nil || resp.Status != http.StatusBadRequest {
		t.Errorf("forwarded request = %v, %v, want status %d", resp, err, http.StatusBadRequest)
	}
}

func TestAuthorizeWrites(t *testing.T) {
	h := newEchoHandler(t, newFakeCluster())
	for _, tt := range []struct {
		method, peer string
		tls          bool
		status       int
		body         string
	}{
		{"GET", "client/dc1", false, 200, "GET client/dc1/n x"},
		{"HEAD", "client/dc1", false, 200, ""},
		{"PUT", "cli/dc1", true, 200, "PUT cli/dc1/n x"},
		{"PUT", "user/dc1", true, 200, "PUT user/dc1/n x"},
		{"PUT", "cli/dc2", true, 403, "not allowed: cli/dc2/n may not write in dc1: operators of dc2 act only in dc2: use a " +
			`certificate of dc1, or set operators_from = ["dc2"] on the servers of dc1`},
		{"DELETE", "server/dc1", true, 200, "DELETE server/dc1/n x"},
		{"PUT", "anonymous/dc1", false, 403, "not allowed: a write needs an operator's certificate: make one with wanfed tls cert " +
			"create --operator --datacenter dc1, and use https://127.0.0.1:8500"},
		{"POST", "client/dc1", true, 403, "not allowed: client/dc1/n may not write: create an operator's certificate with: wanfed " +
			"tls cert create --operator --datacenter dc1"},
		{"PUT", "gateway/dc1", true, 403, "not allowed: gateway/dc1/n may not write: create an operator's certificate with: " +
			"wanfed tls cert create --operator --datacenter dc1"},
		{"GET", "unknown", true, 403, "certificate has no peer"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), tt.method, "http://127.0.0.1:8500/api/x",
			strings.NewReader("x"))
		r.Header.Set("X-Test-Peer", tt.peer)
		if tt.tls {
			r.TLS = &tls.ConnectionState{}
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != tt.status || tt.method != "HEAD" && w.Body.String() != tt.body {
			t.Errorf("%s by %s = %d %q, want %d %q", tt.method, tt.peer, w.Code, w.Body, tt.status, tt.body)
		}
	}
}

// A forwarded request has the peer of its context. Serve reads no certificate.
func TestIdentify_ForwardedRequest(t *testing.T) {
	h := newEchoHandler(t, newFakeCluster())
	ctx := tlsutil.WithPeer(context.Background(), tlsutil.Peer{Role: tlsutil.RoleOperator, DC: "dc2", Node: "joe"})
	// 405: the request was authorized, and the path has no PUT.
	for method, status := range map[string]int32{"PUT": 405, "PATCH": 400, "": 200} {
		resp, err := Serve(ctx, h, &pb.QueryRequest{Path: "/v1/status/leader", Method: method, Body: []byte("x")})
		if err != nil || resp.Status != status {
			t.Errorf("Serve() of method %q = %d %q, %v, want %d", method, resp.GetStatus(), resp.GetBody(), err, status)
		}
	}
}
