// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// hiddenType is a type whose Authorize refuses reads by callers without the
// certificate of an operator or a server. Servers of the tests of this package
// have it.
var hiddenType = &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Hidden"}

func init() {
	types = append(types, func(g *resource.Registry) error {
		return g.Register(resource.Registration{
			Type: hiddenType, Message: &pb.Document{},
			Authorize: func(p tlsutil.Peer, _ resource.Verb, _ *pb.Resource) error {
				if p.Role == tlsutil.RoleOperator || p.Role == tlsutil.RoleServer {
					return nil
				}
				return errors.New("hidden")
			},
		})
	})
}

// TestTypeAuthorize_OtherDatacenter proves that the Authorize of a type refuses a
// read by its caller, also if another datacenter forwards the read. In the lab,
// package policy permits the callers of dc1 to read in dc2.
func TestTypeAuthorize_OtherDatacenter(t *testing.T) {
	lab := newConsulLab(t)
	for _, path := range []string{"/api/test/v1/hidden/x", "/api/test/v1/hidden"} {
		for _, dc := range []string{"dc1", "dc2"} {
			get := func(c *http.Client, base string) string {
				ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
				defer cancel()
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path+"?dc="+dc, nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := c.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				return resp.Status
			}
			if got := get(http.DefaultClient, lab.url); !strings.HasPrefix(got, "403") {
				t.Errorf("GET %s in %s without a certificate = %s, want 403", path, dc, got)
			}
			if got := get(lab.operator, strings.Replace(lab.url, "http:", "https:", 1)); strings.HasPrefix(got, "403") {
				t.Errorf("GET %s in %s by an operator = %s, want a result", path, dc, got)
			}
		}
	}
}
