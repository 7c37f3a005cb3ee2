// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/wanfed/wanfed/internal/testutil"
)

// TestCatalogServices_Blocks checks which changes end a blocking query of the
// list of services. Consul 1.21 behaves in the same way.
func TestCatalogServices_Blocks(t *testing.T) {
	const service = `{"Node": "n1", "Address": "192.0.2.1", "Service": {"Service": "web", "Port": %d},
		"Checks": [{"Name": "up", "Status": %q, "ServiceID": "web"}]}`
	for _, tt := range []struct {
		name, method, path, body string
		ends                     bool
	}{
		{"check changed", "PUT", "/v1/catalog/register", fmt.Sprintf(service, 80, "critical"), false},
		{"port changed", "PUT", "/v1/catalog/register", fmt.Sprintf(service, 81, "passing"), true},
		{"second instance", "PUT", "/v1/catalog/register",
			`{"Node": "n2", "Address": "192.0.2.2", "Service": {"Service": "web"}}`, true},
		{"node without a service", "PUT", "/v1/catalog/register", `{"Node": "n3", "Address": "192.0.2.3"}`, false},
		{"instance removed", "PUT", "/v1/catalog/deregister", `{"Node": "n1", "ServiceID": "web"}`, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T) {
				r := newStoreHandler(t)
				if w := r.do(t, "PUT", "/v1/catalog/register", fmt.Sprintf(service, 80, "passing")); w.Code != 200 {
					t.Fatalf("register = %d %s, want 200", w.Code, w.Body)
				}
				index := r.do(t, "GET", "/v1/catalog/services", "").Header().Get("X-Consul-Index")
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					r.do(t, "GET", "/v1/catalog/services?wait=1m&index="+index, "")
				}()
				synctest.Wait()
				if w := r.do(t, tt.method, tt.path, tt.body); w.Code != 200 {
					t.Fatalf("%s %s = %d %s, want 200", tt.method, tt.path, w.Code, w.Body)
				}
				synctest.Wait()
				got := false
				select {
				case <-ended:
					got = true
				default:
				}
				if got != tt.ends {
					t.Errorf("query ended = %v, want %v", got, tt.ends)
				}
				<-ended // the wait of the query ends it
			})
		})
	}
}
