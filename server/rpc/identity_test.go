// SPDX-License-Identifier: MPL-2.0

package rpc

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// TestIdentify proves who may name the caller of a call. A server of another
// datacenter names only callers of its datacenter, and only in methods whose
// rule is delegable. A server of this datacenter passes on the caller and the
// server that has named it.
func TestIdentify(t *testing.T) {
	peer := func(s string) tlsutil.Peer {
		p, ok := policy.Parse(s)
		if !ok {
			t.Fatalf("Parse(%s) = false, want true", s)
		}
		return p
	}
	const srv1, srvDC2 = "server/dc1/srv1", "server/dc2/srv1"
	read, write := pb.ResourceService_Read_FullMethodName, pb.ResourceService_Write_FullMethodName
	for _, tt := range []struct {
		name, method, holder string
		named                []string
		want                 string // of policy.Caller.String; "" means ErrDenied
	}{
		{"no name", read, srvDC2, nil, srvDC2},
		{"operator of its datacenter", write, srvDC2, []string{"cli/dc2/joe"}, "cli/dc2/joe via server/dc2/srv1"},
		{"client of its datacenter", read, srvDC2, []string{"client/dc2/app"}, "client/dc2/app via server/dc2/srv1"},
		{"anonymous at it", read, srvDC2, []string{"anonymous/dc2/srv1"}, "anonymous/dc2/srv1 via server/dc2/srv1"},
		{"itself", read, srvDC2, []string{srvDC2}, srvDC2},
		{"anonymous elsewhere", read, srvDC2, []string{"anonymous/dc2/srv2"}, ""},
		{"operator of another datacenter", write, srvDC2, []string{"cli/dc1/joe"}, ""},
		{"another server", write, srvDC2, []string{"server/dc2/srv2"}, ""},
		{"a server of this datacenter", write, srvDC2, []string{srv1}, ""},
		{"unknown role", read, srvDC2, []string{"root/dc2/joe"}, ""},
		{"not a name", read, srvDC2, []string{"joe"}, ""},
		{"a second name", read, srvDC2, []string{"client/dc2/app", "server/dc1/srv1"}, "client/dc2/app via server/dc2/srv1"},
		{"method that is not delegable", pb.KeyringService_Change_FullMethodName, srvDC2, []string{"cli/dc2/joe"}, srvDC2},
		{"an operator", write, "cli/dc2/joe", []string{"cli/dc1/joe"}, "cli/dc2/joe"},
		{"a gateway", write, "gateway/dc1/gw1", []string{"cli/dc1/joe"}, "gateway/dc1/gw1"},
		{"forwarded to the leader", write, srv1, []string{"cli/dc2/joe"}, "cli/dc2/joe"},
		{"forwarded with its server", write, srv1, []string{"cli/dc2/joe", srvDC2}, "cli/dc2/joe via server/dc2/srv1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{AuthInfo: &connInfo{holder: peer(tt.holder)}})
			ctx = metadata.NewIncomingContext(ctx, metadata.MD{api.OnBehalfKey: tt.named})
			e := &Edge{cfg: Config{DC: "dc1"}}
			c, forwarded, err := e.identify(ctx, rules[tt.method])
			if denied := errors.Is(resource.FromStatus(err), resource.ErrDenied); denied != (tt.want == "") {
				t.Fatalf("identify() = %v, %v, want %q", c, err, tt.want)
			}
			if tt.want == "" {
				return
			}
			if wantForwarded := tt.holder == srv1; c.String() != tt.want || forwarded != wantForwarded {
				t.Errorf("identify() = %v, %v, want %s, %v", c, forwarded, tt.want, wantForwarded)
			}
			if !forwarded {
				return
			}
			// The leader identifies the same caller.
			out, err := OnBehalf(policy.WithCaller(context.Background(), c))
			md, _ := metadata.FromOutgoingContext(out)
			if got := md.Get(api.OnBehalfKey); err != nil || len(got) != len(tt.named) {
				t.Errorf("OnBehalf() = %v, %v, want %v", got, err, tt.named)
			}
		})
	}
}
