// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

func TestParseAddrs(t *testing.T) {
	for _, test := range []struct {
		in, base string
		hosts    []string // nil: an error
	}{
		{"", DefaultHTTPAddr, []string{"127.0.0.1:8500"}},
		{"a:1, b:2", "http://a:1", []string{"a:1", "b:2"}},
		{"https://a:1,b:2,https://[::1]:3", "https://a:1", []string{"a:1", "b:2", "[::1]:3"}},
		{"a:1,https://b:2", "", nil},
		{"a:1,b", "", nil},
		{"a:1,b:2/x", "", nil},
	} {
		base, hosts, err := parseAddrs(test.in)
		if base != test.base || !slices.Equal(hosts, test.hosts) || (err == nil) != (test.hosts != nil) {
			t.Errorf("parseAddrs(%q) = %q, %q, %v, want %q, %q", test.in, base, hosts, err, test.base, test.hosts)
		}
	}
}

// TestClient_SeveralServers reads from the server that accepts connections.
func TestClient_SeveralServers(t *testing.T) {
	for _, scheme := range []string{"http", "https"} {
		t.Run(scheme, func(t *testing.T) {
			var servers []*httptest.Server
			var addrs []string
			roots := x509.NewCertPool()
			for i := range 2 {
				srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					fmt.Fprintf(w, "%q", fmt.Sprintf("%d over %s", i, r.Proto))
				}))
				if srv.EnableHTTP2 = true; scheme == "https" {
					srv.StartTLS()
					roots.AddCert(srv.Certificate())
				} else {
					srv.Start()
				}
				defer srv.Close()
				servers, addrs = append(servers, srv), append(addrs, srv.Listener.Addr().String())
			}
			c, err := NewClient(ClientConfig{Addr: scheme + "://" + strings.Join(addrs, ","), TLS: &tls.Config{RootCAs: roots}})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			read := func() string {
				t.Helper()
				leader, err := c.Leader(context.Background(), QueryOptions{})
				if err != nil {
					t.Fatalf("Leader() = %v, want nil", err)
				}
				return leader
			}
			proto := map[string]string{"http": "HTTP/1.1", "https": "HTTP/2.0"}[scheme]
			if got, want := read(), "0 over "+proto; got != want {
				t.Errorf("response = %s, want %s", got, want)
			}
			servers[0].Close()
			testutil.Await(t, 10*time.Second, "a response of the second server", func(ctx context.Context) error {
				_, err := c.Leader(ctx, QueryOptions{}) // may fail on the connection to the first one
				return err
			})
			if got, want := read(), "1 over "+proto; got != want {
				t.Errorf("response after the end of the first server = %s, want %s", got, want)
			}
			servers[1].Close()
			_, err = c.Leader(context.Background(), QueryOptions{})
			if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), addrs[0]) ||
				!strings.Contains(err.Error(), addrs[1]) {
				t.Errorf("Leader() without servers = %v, want one line with both addresses", err)
			}
		})
	}
}
