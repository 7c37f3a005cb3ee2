// SPDX-License-Identifier: MPL-2.0

package server

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

// A server of another datacenter speaks for its own operators alone, where it is believed, in what is theirs to do.
func TestVouched(t *testing.T) {
	dc2 := tlsutil.Peer{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc2"}
	joe := tlsutil.Peer{Role: tlsutil.RoleOperator, Node: "joe", DC: "dc2"}
	write, query := pb.ResourceService_Write_FullMethodName, pb.ServerService_Query_FullMethodName
	for _, tt := range []struct {
		name, method string
		who, want    tlsutil.Peer
		from         []string
		code         codes.Code
	}{
		{"its operator", write, joe, joe, []string{"dc3", "dc2"}, codes.OK},
		{"its operator, everybody believed", query, joe, joe, []string{"*"}, codes.OK},
		{"not believed", write, joe, dc2, []string{"dc3"}, codes.PermissionDenied},
		{"nobody believed", query, joe, dc2, nil, codes.PermissionDenied},
		{"another's operator", write, tlsutil.Peer{Role: tlsutil.RoleOperator, Node: "joe", DC: "dc1"}, dc2, []string{"*"}, codes.OK},
		{"a server", write, tlsutil.Peer{Role: tlsutil.RoleServer, Node: "srv2", DC: "dc2"}, dc2, []string{"*"}, codes.OK},
		{"keys", pb.KeyringService_Change_FullMethodName, joe, dc2, []string{"*"}, codes.OK},
		{"federation states", pb.FederationService_Apply_FullMethodName, joe, dc2, []string{"*"}, codes.OK},
		{"snapshots", pb.OperatorService_RestoreSnapshot_FullMethodName, joe, dc2, []string{"*"}, codes.OK},
		{"nonsense", write, tlsutil.Peer{}, dc2, []string{"*"}, codes.OK},
	} {
		c := &calls{dc: "dc1", remoteWrites: tt.from}
		got, err := c.vouched(dc2, tt.who, rules[tt.method])
		if status.Code(err) != tt.code || got != tt.want {
			t.Errorf("%s: %v, %v; want %v, %v", tt.name, got, err, tt.want, tt.code)
		}
		if err != nil && !strings.Contains(err.Error(), `remote_writes_from = ["dc2"]`) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
