// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// TestNotGRPC: a gRPC client that calls the HTTP port learns so, and others notice nothing.
func TestNotGRPC(t *testing.T) {
	srv := httptest.NewUnstartedServer(rejectGRPC(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })))
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
		t.Error("by HTTP:", resp.Status)
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
	const want = "this is the HTTP API, for people and tools; call the server port (8300 if not set otherwise), or a gateway"
	if s := status.Convert(err); s.Code() != codes.Unimplemented || s.Message() != want {
		t.Error("by gRPC:", err)
	}
}
