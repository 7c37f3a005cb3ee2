// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/wanfed/wanfed/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParseAddr(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", "http://127.0.0.1:8500"},
		{"127.0.0.1:8500", "http://127.0.0.1:8500"},
		{"localhost:80", "http://localhost:80"},
		{"[::1]:8500", "http://[::1]:8500"},
		{"http://10.0.0.1:8500/", "http://10.0.0.1:8500"},
		{"https://server.dc1.wanfed:8501", "https://server.dc1.wanfed:8501"},
		{"unix://run/wanfed",
			`HTTP address "unix://run/wanfed" is neither http nor https; write it like http://127.0.0.1:8500`},
		{"http://10.0.0.1", `HTTP address "http://10.0.0.1" has no port; write it like http://127.0.0.1:8500`},
		{":8500", `HTTP address ":8500" has no host; write it like http://127.0.0.1:8500`},
		{"a:99999", `HTTP address "a:99999" has no valid port; write it like http://127.0.0.1:8500`},
		{"http://a:1/v1",
			`HTTP address "http://a:1/v1" has more than host and port; write it like http://127.0.0.1:8500`},
		{"http://u:p@a:1",
			`HTTP address "http://u:p@a:1" has more than host and port; write it like http://127.0.0.1:8500`},
		{"http://a b:1", `HTTP address "http://a b:1" is not a URL; write it like http://127.0.0.1:8500`},
	} {
		got, err := parseAddr(tt.in)
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("parseAddr(%q) = %s, want %s", tt.in, got, tt.want)
		}
	}
}

// newTestClient returns a client of a test server with handler h.
func newTestClient(t testing.TB, h http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return clientOf(t, ClientConfig{Addr: srv.URL})
}

// clientOf returns a client that the test closes.
func clientOf(t testing.TB, cfg ClientConfig) *Client {
	t.Helper()
	c, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestClientReads(t *testing.T) {
	const members = `[{"Name":"srv1.dc2","Addr":"10.2.0.11","Port":8300,"Tags":{"dc":"dc2"},"Status":1}]`
	bodies := map[string]string{
		"/v1/internal/federation-states?":                         `[` + sampleJSON + `]`,
		"/v1/internal/federation-states?dc=dc3&index=4&wait=1m0s": `[]`,
		"/v1/internal/federation-states?index=4&wait=5m0s":        `[]`,
		"/v1/internal/federation-states?index=4&wait=10m0s":       `[]`,
		"/v1/internal/federation-states/mesh-gateways?":           `{"dc1":[],"dc2":[{"Node":{"Node":"gw1"}}]}`,
		"/v1/internal/federation-state/dc2?": `{"State":` + sampleJSON +
			`,"Index":22}`,
		"/v1/internal/federation-state/a%2Fb?": `{"State":null,"Index":22}`,
		"/v1/agent/members?":                   `[]`,
		"/v1/agent/members?dc=dc2&wan=1":       members,
		"/v1/catalog/datacenters?":             `["dc1","dc2"]`,
		"/v1/status/leader?dc=dc2":             `"10.2.0.11:8300"`,
		"/v1/agent/federation-status?":         `{"datacenter":"dc1","datacenters":[{"name":"dc1","record_age":2}]}`,
		"/v1/internal/federation-state/dc2?dc=dc9&index=18446744073709551615&wait=1s": `{"State":{"Datacenter":"dc2"}}`,
	}
	c := newTestClient(t, func(w http.ResponseWriter, r *http.Request) {
		body, ok := bodies[r.URL.EscapedPath()+"?"+r.URL.RawQuery]
		if !ok {
			t.Errorf("request = %s %s, want one of %v", r.Method, r.URL, slices.Sorted(maps.Keys(bodies)))
		}
		w.Header().Set(HeaderIndex, "22")
		w.Header().Set(HeaderKnownLeader, "true")
		w.Header().Set(HeaderLastContact, "17")
		fmt.Fprint(w, body)
	})
	ctx := t.Context()
	meta := QueryMeta{Index: 22, KnownLeader: true, LastContact: 17 * time.Millisecond}
	state := FromFederationState(sampleState())
	check := func(name string, want, got any, err error) {
		t.Helper()
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%s: error = %v, want nil; result differs (-want +got):\n%s", name, err, d)
		}
	}
	states, m, err := c.FederationStates(ctx, QueryOptions{})
	check("FederationStates", []FederationState{state}, states, err)
	check("QueryMeta of FederationStates", meta, m, err)
	for _, q := range []QueryOptions{{Datacenter: "dc3", Index: 4, Wait: time.Minute}, {Index: 4},
		{Index: 4, Wait: time.Hour}} {
		states, _, err = c.FederationStates(ctx, q)
		check(fmt.Sprintf("FederationStates(%+v)", q), []FederationState{}, states, err)
	}
	gateways, _, err := c.MeshGateways(ctx, QueryOptions{})
	check("MeshGateways", map[string][]MeshGateway{"dc1": {}, "dc2": {{Node: Node{Node: "gw1"}}}}, gateways, err)
	one, _, err := c.FederationState(ctx, "dc2", QueryOptions{})
	check("FederationState", state, one, err)
	one, _, err = c.FederationState(ctx, "dc2", QueryOptions{Datacenter: "dc9", Index: 1<<64 - 1, Wait: time.Second})
	check("FederationState, blocking", FederationState{Datacenter: "dc2"}, one, err)
	if _, _, err := c.FederationState(ctx, "a/b", QueryOptions{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("FederationState() without a state = %v, want %v", err, ErrNotFound)
	}
	lan, err := c.Members(ctx, false, QueryOptions{})
	check("Members of the LAN pool", []Member{}, lan, err)
	wan, err := c.Members(ctx, true, QueryOptions{Datacenter: "dc2"})
	check("Members of the WAN pool", []Member{
		{Name: "srv1.dc2", Addr: "10.2.0.11", Port: 8300, Status: MemberAlive, Tags: map[string]string{"dc": "dc2"}},
	}, wan, err)
	dcs, err := c.Datacenters(ctx, QueryOptions{})
	check("Datacenters", []string{"dc1", "dc2"}, dcs, err)
	leader, err := c.Leader(ctx, QueryOptions{Datacenter: "dc2"})
	check("Leader", "10.2.0.11:8300", leader, err)
	status, err := c.Status(ctx, QueryOptions{})
	check("Status", Status{Datacenter: "dc1", Datacenters: []DatacenterStatus{
		{Name: "dc1", RecordAge: SecondsPtr(2 * time.Second)},
	}}, status, err)
}

func TestClientErrors(t *testing.T) {
	for _, tt := range []struct {
		name    string
		handler http.HandlerFunc
		want    string
	}{
		{"refused with cause", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(HeaderCause, "dial gateway 10.0.0.1:8443: connection refused")
			w.WriteHeader(500)
			fmt.Fprint(w, "Remote DC has no server currently reachable")
		}, "ADDR answered 500: Remote DC has no server currently reachable: dial gateway 10.0.0.1:8443: " +
			"connection refused"},
		{"first line only", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "one\ntwo", 400) },
			"ADDR answered 400: one"},
		{"empty", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) },
			"ADDR answered 503 (Service Unavailable)"},
		{"redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/login", http.StatusFound) },
			"ADDR answered 302: redirect to /login, which is not a response of this API"},
		{"not JSON", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") },
			"response of ADDR to /v1/status/leader is not a response of this API: " +
				"invalid character '<' looking for beginning of value; check which program listens there"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newTestClient(t, tt.handler)
			_, err := c.Leader(t.Context(), QueryOptions{})
			if err == nil || strings.ReplaceAll(err.Error(), c.base, "ADDR") != tt.want {
				t.Errorf("Leader() = %v, want %s", err, tt.want)
			}
		})
	}
}

// TestNotFound has responses with status 404: of a server, and of other programs
// that listen at the address, such as a proxy.
func TestNotFound(t *testing.T) {
	for _, tt := range []struct {
		name, index, body string
		want              string // error; empty: the object does not exist
	}{
		{"absent", "7", "", ""},
		{"other program", "", "404 page not found\n", "ADDR answered 404: 404 page not found"},
		{"other program without a body", "", "", "ADDR answered 404 (Not Found)"},
		{"body with an index", "7", "no such endpoint", "ADDR answered 404: no such endpoint"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newTestClient(t, func(w http.ResponseWriter, _ *http.Request) {
				if tt.index != "" {
					w.Header().Set(HeaderIndex, tt.index)
				}
				w.WriteHeader(404)
				fmt.Fprint(w, tt.body)
			})
			check := func(call, want string, err error) {
				t.Helper()
				got := ""
				if err != nil {
					got = strings.ReplaceAll(err.Error(), c.base, "ADDR")
				}
				if got != want {
					t.Errorf("%s = error %q, want %q", call, got, want)
				}
			}
			key, _, err := c.ReadKey(t.Context(), "k", QueryOptions{})
			check("ReadKey()", tt.want, err)
			keys, _, err := c.Keys(t.Context(), "k", QueryOptions{})
			check("Keys()", tt.want, err)
			if key != nil || len(keys) != 0 {
				t.Errorf("ReadKey(), Keys() = %v, %v, want none", key, keys)
			}
			_, _, err = c.FederationState(t.Context(), "dc9", QueryOptions{})
			want := tt.want
			if want == "" {
				want = `datacenter "dc9" has no federation state`
			}
			check("FederationState()", want, err)
			if got := errors.Is(err, ErrNotFound); got != (tt.want == "") {
				t.Errorf("FederationState() is ErrNotFound = %v, want %v", got, tt.want == "")
			}
		})
	}
}

func TestUnreachable(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close() // the port is closed now
	c := clientOf(t, ClientConfig{Addr: ln.Addr().String()})
	_, err = c.Datacenters(t.Context(), QueryOptions{})
	if want := "no server answers at http://" + ln.Addr().String() + ": connection refused"; err == nil ||
		err.Error() != want {
		t.Errorf("Datacenters() = %v, want %s", err, want)
	}
	if _, ok := errors.AsType[*UnreachableError](err); !ok {
		t.Errorf("Datacenters() = %T, want *UnreachableError", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Datacenters(ctx, QueryOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Datacenters() with a canceled context = %v, want %v", err, context.Canceled)
	}
}

func TestUnreachable_CertificateOfAnotherCA(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.NotFoundHandler())
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // the failed handshake
	srv.StartTLS()
	t.Cleanup(srv.Close)
	c := clientOf(t, ClientConfig{Addr: srv.URL, TLS: &tls.Config{RootCAs: x509.NewCertPool()}})
	_, err := c.Datacenters(t.Context(), QueryOptions{})
	if want := "its certificate is signed by another CA"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Datacenters() = %v, want %s", err, want)
	}
}

// A request without a response fails after the timeout of the client plus, for
// a blocking query, the wait of the query. The transport has no socket, because
// synctest cannot wait for sockets.
func TestTimeout(t *testing.T) {
	for _, tt := range []struct {
		q    QueryOptions
		want time.Duration
	}{
		{QueryOptions{}, 15 * time.Second},
		{QueryOptions{Index: 1, Wait: 16 * time.Second}, 32 * time.Second},
		{QueryOptions{Index: 1, Wait: time.Hour}, 15*time.Second + MaxBlockTime(MaxWait)},
	} {
		testutil.Bubble(t, func(t *testing.T) {
			c := clientOf(t, ClientConfig{})
			c.http.Transport = blockedTransport{}
			start := time.Now()
			_, _, err := c.FederationStates(t.Context(), tt.q)
			if took := time.Since(start); took != tt.want {
				t.Errorf("FederationStates(%+v) ended after %v, want %v", tt.q, took, tt.want)
			}
			want := "no response within " + tt.want.String()
			if !errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(err.Error(), want) {
				t.Errorf("FederationStates(%+v) = %v, want %s", tt.q, err, want)
			}
		})
	}
}

// blockedTransport never returns a response.
type blockedTransport struct{}

func (blockedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}
