// SPDX-License-Identifier: MPL-2.0

package rpc

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

// TestDelegated proves that a server of another datacenter may name only
// operators of that datacenter as callers. The local datacenter must trust the
// other datacenter, and the method must be delegable.
func TestDelegated(t *testing.T) {
	dc2 := tlsutil.Peer{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc2"}
	joe := tlsutil.Peer{Role: tlsutil.RoleOperator, Node: "joe", DC: "dc2"}
	joeOfDC1 := tlsutil.Peer{Role: tlsutil.RoleOperator, Node: "joe", DC: "dc1"}
	srv2 := tlsutil.Peer{Role: tlsutil.RoleServer, Node: "srv2", DC: "dc2"}
	write, query := pb.ResourceService_Write_FullMethodName, pb.ServerService_Query_FullMethodName
	for _, tt := range []struct {
		name, method string
		caller, want tlsutil.Peer
		from         []string // AllowRemoteWritesFrom of dc1
		code         codes.Code
	}{
		{"its operator", write, joe, joe, []string{"dc3", "dc2"}, codes.OK},
		{"its operator, all datacenters trusted", query, joe, joe, []string{"*"}, codes.OK},
		{"datacenter not trusted", write, joe, dc2, []string{"dc3"}, codes.PermissionDenied},
		{"no datacenter trusted", query, joe, dc2, nil, codes.PermissionDenied},
		// In the remaining cases the server of dc2 itself is the caller.
		// delegated returns no error, because the rule of the method decides
		// afterwards.
		{"operator of another datacenter", write, joeOfDC1, dc2, []string{"*"}, codes.OK},
		{"a server", write, srv2, dc2, []string{"*"}, codes.OK},
		{"keys", pb.KeyringService_Change_FullMethodName, joe, dc2, []string{"*"}, codes.OK},
		{"federation states", pb.FederationService_Apply_FullMethodName, joe, dc2, []string{"*"}, codes.OK},
		{"snapshots", pb.OperatorService_RestoreSnapshot_FullMethodName, joe, dc2, []string{"*"}, codes.OK},
		{"no caller", write, tlsutil.Peer{}, dc2, []string{"*"}, codes.OK},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := &Edge{cfg: Config{DC: "dc1", AllowRemoteWritesFrom: func() []string { return tt.from }}}
			got, err := e.delegated(dc2, tt.caller, rules[tt.method])
			if status.Code(err) != tt.code || got != tt.want {
				t.Errorf("delegated() = %v, %v, want %v, %v", got, err, tt.want, tt.code)
			}
			if remedy := `allow_remote_writes_from = ["dc2"]`; err != nil && !strings.Contains(err.Error(), remedy) {
				t.Errorf("delegated() = %v, want an error with %s", err, remedy)
			}
		})
	}
}
