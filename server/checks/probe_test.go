// SPDX-License-Identifier: MPL-2.0

package checks

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/wanfed/wanfed/api/pb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// target serves HTTP, with and without TLS, and gRPC health on loopback.
func target(t *testing.T) (plain, secure, grpcAddr string) {
	t.Helper()
	mux := http.NewServeMux()
	for path, code := range map[string]int{"/ok": 200, "/busy": 429, "/fail": 500, "/moved": 302} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "/ok")
			w.WriteHeader(code)
			_, _ = w.Write([]byte("BODY"))
		})
	}
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/header", func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodHead || r.Header.Get("X-Check") != "1" || r.Host != "web.example" {
			w.WriteHeader(500)
		}
	})
	a, b := httptest.NewServer(mux), httptest.NewTLSServer(mux)
	t.Cleanup(a.Close)
	t.Cleanup(b.Close)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, states := grpc.NewServer(), health.NewServer()
	states.SetServingStatus("up", healthpb.HealthCheckResponse_SERVING)
	states.SetServingStatus("down", healthpb.HealthCheckResponse_NOT_SERVING)
	healthpb.RegisterHealthServer(server, states)
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	t.Cleanup(func() { server.Stop(); <-served })
	return a.URL, b.URL, ln.Addr().String()
}

func TestProbe(t *testing.T) {
	plain, secure, grpcAddr := target(t)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := closed.Addr().String()
	closed.Close()
	for _, tt := range []struct {
		probe        *pb.Probe
		want, output string
	}{
		{&pb.Probe{Http: plain + "/ok"}, "passing", "HTTP GET " + plain + "/ok: 200 OK"},
		{&pb.Probe{Http: plain + "/busy"}, "warning", "429 Too Many Requests"},
		{&pb.Probe{Http: plain + "/fail"}, "critical", "500 Internal Server Error"},
		{&pb.Probe{Http: plain + "/moved"}, "critical", "302 Found: redirects are not followed"},
		{&pb.Probe{Http: plain + "/slow"}, "critical", "timeout"},
		{&pb.Probe{Http: plain + "/header", Method: "HEAD", Header: map[string]*pb.ProbeHeader{
			"x-check": {Values: []string{"1"}}, "host": {Values: []string{"web.example"}},
		}}, "passing", "HTTP HEAD "},
		{&pb.Probe{Http: "http://" + free + "/"}, "critical", "connection refused"},
		{&pb.Probe{Http: secure + "/ok"}, "critical", "certificate"},
		{&pb.Probe{Http: secure + "/ok", TlsSkipVerify: true}, "passing", "200 OK"},
		{&pb.Probe{Http: "http://169.254.169.254/latest/meta-data/"}, "critical", "refused: 169.254.169.254 may belong to"},
		{&pb.Probe{Http: "http://[fe80::1]/"}, "critical", "refused: fe80::1 may belong to"},
		{&pb.Probe{Tcp: strings.TrimPrefix(plain, "http://")}, "passing", "success"},
		{&pb.Probe{Tcp: free}, "critical", "connection refused"},
		{&pb.Probe{Tcp: "[64:ff9b::a9fe:a9fe]:80"}, "critical", "refused: 169.254.169.254"},
		{&pb.Probe{Grpc: grpcAddr}, "passing", "SERVING"},
		{&pb.Probe{Grpc: grpcAddr + "/up"}, "passing", "SERVING"},
		{&pb.Probe{Grpc: grpcAddr + "/down"}, "critical", "NOT_SERVING"},
		{&pb.Probe{Grpc: grpcAddr + "/none"}, "critical", "NotFound"},
		{&pb.Probe{Grpc: free}, "critical", "connection refused"},
		{&pb.Probe{Grpc: "169.254.169.254:80"}, "critical", "169.254.169.254 may belong to"},
	} {
		timeout := 10 * time.Second
		if strings.HasSuffix(tt.probe.Http, "/slow") {
			timeout = 50 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		got := prober{netip.MustParseAddr("192.0.2.1")}.probe(ctx, tt.probe)
		cancel()
		if got.status != tt.want || !strings.Contains(got.output, tt.output) || strings.Contains(got.output, "BODY") {
			t.Errorf("probe(%v) = %s %q, want %s with %q and without the body", tt.probe, got.status, got.output, tt.want, tt.output)
		}
	}
}

// A name that resolves to a loopback address must not reach it.
func TestDialer_NameOfLoopback(t *testing.T) {
	plain, _, _ := target(t)
	addr := strings.TrimPrefix(plain, "http://")
	conn, err := prober{netip.MustParseAddr("192.0.2.1")}.dialer(false).DialContext(t.Context(), "tcp", addr)
	if err == nil {
		conn.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "must be written in the check") {
		t.Errorf("DialContext(%s) = %v, want a refusal", addr, err)
	}
}
