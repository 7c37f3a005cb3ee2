// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
	consulapi "github.com/wanfed/wanfed/api/consul"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/gateway/proxycfg/consultest"
	"github.com/wanfed/wanfed/internal/testutil"
)

// consulRig is a gateway of a fake Consul agent: package consultest. Consul's
// program cannot be part of the tests because of its licence.
type consulRig struct {
	*Client
	agent    *consultest.Agent
	lan, wan *gateway.Listener
	dir      string
	token    string
	// tokenFile is used if token is empty.
	tokenFile string
	ttl, wait time.Duration
	logs      <-chan string
}

func newConsulRig(t testing.TB) *consulRig {
	return &consulRig{agent: consultest.NewAgent(t, "dc1"), dir: t.TempDir(), ttl: consulTTL, wait: consulWait}
}

// start creates a gateway and runs it. stop ends and joins it.
func (r *consulRig) start(t testing.TB) (stop func()) {
	t.Helper()
	agent, err := api.NewClient(api.ClientConfig{Addr: r.agent.URL(), Token: r.token, TokenFile: r.tokenFile})
	if err != nil {
		t.Fatal(err)
	}
	r.lan, r.wan = gateway.NewListener("lan"), gateway.NewListener("wan")
	log, events := logEvents()
	r.logs = events
	c, err := New(Config{
		Consul: &Consul{Agent: agent, DC: "dc1", Node: "gw1", Domain: "wanfed"}, LAN: "10.1.0.101:8444",
		WAN: "gw1.example:8443", DataDir: r.dir, LANListener: r.lan, WANListener: r.wan, Logger: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	c.control.(*consul).ttl, c.control.(*consul).wait = r.ttl, r.wait
	r.Client = c
	ctx, cancel := context.WithCancel(context.Background())
	errc := make(chan error, 1)
	go func() { errc <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-errc; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// wantRoutes waits until the listeners have the routes of a message.
func (r *consulRig) wantRoutes(t testing.TB, m *pb.GatewaySnapshot) {
	t.Helper()
	s, _ := snapshotOf(m)
	lan, wan, err := Tables(s, UpstreamOptions{})
	if err != nil {
		t.Fatal(err)
	}
	testutil.Await(t, waitLimit, "routes", func(context.Context) error {
		if d := cmp.Diff(lan.Routes(), r.lan.Table().Routes()); d != "" {
			return fmt.Errorf("LAN routes (-want +got):\n%s", d)
		}
		if d := cmp.Diff(wan.Routes(), r.wan.Table().Routes()); d != "" {
			return fmt.Errorf("WAN routes (-want +got):\n%s", d)
		}
		return nil
	})
}

// wantRegistered waits until the agent has the registration, or does not have
// it.
func (r *consulRig) wantRegistered(t testing.TB, want bool) {
	t.Helper()
	testutil.Eventually(t, waitLimit, func() bool {
		body, _ := r.agent.Registration("gw1")
		return (body["Address"] == "10.1.0.101") == want
	}, "registration = %t", want)
}

func TestConsul_RegistersFollowsAndDeregisters(t *testing.T) {
	r := newConsulRig(t)
	r.ttl = 300 * time.Millisecond
	setAgent(r.agent, sample)
	stop := r.start(t)
	r.wantRoutes(t, sample)
	r.wantRegistered(t, true)
	wait(t, r.agent.Requests(), "PUT /v1/agent/service/register?replace-existing-checks=true")
	for range 3 {
		wait(t, r.agent.Requests(), "PUT /v1/agent/check/pass/service:gw1")
	}
	if _, status := r.agent.Registration("gw1"); status != "passing" {
		t.Errorf("status of the check = %s, want passing", status)
	}
	st, want := r.Status(), "consul "+r.agent.URL()
	if st.Server != r.agent.URL() || st.Origin != want || st.Source() != "consul" || st.FromDisk || time.Since(st.SnapshotAt) > waitLimit ||
		st.Registered.IsZero() {
		t.Errorf("Status() = %+v, want origin %s and both times", st, want)
	}
	report := r.Report()
	if !report.Complete || len(report.Parts) != 2 || report.Parts[1].Origin != want ||
		time.Since(report.Parts[1].Updated) > waitLimit {
		t.Errorf("Report() = %+v, want two parts with origin %s", report, want)
	}
	stop()
	r.wantRegistered(t, false)
	wait(t, r.logs, "level=INFO msg=deregistered")
	if snap, _, err := loadSnapshot(r.dir); err != nil || !proto.Equal(snap, sample) {
		t.Errorf("loadSnapshot() = %v, %v; want %v", snap, err, sample)
	}
}

// The registration has the fields and values of a registration that Consul
// accepted, except for its check. That one was a TCP check.
func TestConsul_RegistrationIsTheRecordedOne(t *testing.T) {
	body, _ := consultest.Recorded(t, "register_gateway.txt")
	var want map[string]any
	if err := json.Unmarshal(body, &want); err != nil {
		t.Fatal(err)
	}
	c := &consul{Client: &Client{cfg: Config{LAN: "10.2.0.101:8443", WAN: "172.30.0.21:8443"}},
		Consul: Consul{Node: "gw2a"}, ttl: consulTTL}
	b, err := json.Marshal(c.registration())
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	check := got["Check"]
	delete(want, "Check")
	delete(want, "Proxy") // an empty object
	delete(got, "Check")
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("registration (-recorded +got):\n%s", d)
	}
	if d := cmp.Diff(map[string]any{"Name": "wanfed gateway", "TTL": "10s", "Status": "passing",
		"DeregisterCriticalServiceAfter": "6h0m0s"}, check); d != "" {
		t.Errorf("check (-want +got):\n%s", d)
	}
}

// The recorded responses of Consul become routes.
func TestConsul_RecordedGateways(t *testing.T) {
	body, _ := consultest.Recorded(t, "mesh_gateways.txt")
	var byDC map[string][]api.MeshGateway
	if err := json.Unmarshal(body, &byDC); err != nil {
		t.Fatal(err)
	}
	got := datacentersOf(byDC, "dc1")
	want := []*pb.SnapshotDatacenter{datacenter("dc2", "172.30.0.21:8443"), datacenter("dc3", "172.30.0.31:8443")}
	if !slices.EqualFunc(got, want, func(a, b *pb.SnapshotDatacenter) bool { return proto.Equal(a, b) }) {
		t.Errorf("datacentersOf() = %v, want %v", got, want)
	}
}

func TestConsul_SelectsGateways(t *testing.T) {
	r := newConsulRig(t)
	r.agent.Set(map[string]string{"srv1": "10.0.0.1:8300"}, map[string][]consultest.Gateway{
		"dc2": {{Node: "a", WAN: "198.51.100.1:1", Critical: true}, {Node: "b", WAN: "198.51.100.2:1"},
			{Node: "c", WAN: "198.51.100.3:1", Meta: "-"}, {Node: "d", WAN: "198.51.100.4:1", Meta: "0"}},
		"dc3": {{Node: "a", WAN: "198.51.100.5:1", Meta: "-"}},
	})
	r.start(t)
	r.wantRoutes(t, &pb.GatewaySnapshot{Datacenter: "dc1", Domain: "wanfed",
		Servers:     []*pb.SnapshotServer{server("srv1", "10.0.0.1:8300")},
		Datacenters: []*pb.SnapshotDatacenter{datacenter("dc2", "198.51.100.2:1", "198.51.100.1:1")}})
}

func TestServersOf(t *testing.T) {
	entry := func(node, status string) api.ServiceEntry {
		return api.ServiceEntry{Node: api.Node{Node: node, Address: "10.0.0.1", Datacenter: "dc1"},
			Service: api.Service{Port: 8300}, Checks: []api.Check{{Status: status}}}
	}
	for _, tt := range []struct {
		name    string
		entries []api.ServiceEntry
		want    string
	}{
		{"critical ones are omitted", []api.ServiceEntry{entry("b", "passing"), entry("a", "warning"),
			entry("c", "critical")}, "a b"},
		{"all are critical", []api.ServiceEntry{entry("a", "critical")}, "a"},
		{"no entry", nil, "the catalog has no readable server: the token needs"},
		{"other datacenter", []api.ServiceEntry{{Node: api.Node{Datacenter: "dc9"}}},
			`the agent is of datacenter "dc9", and this gateway is of "dc1"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			servers, err := serversOf(tt.entries, "dc1")
			var got []string
			for _, s := range servers {
				got = append(got, s.Node)
			}
			if err != nil {
				got = []string{err.Error()}
			}
			if text := strings.Join(got, " "); !strings.HasPrefix(text, tt.want) {
				t.Errorf("serversOf() = %s, want %s", text, tt.want)
			}
		})
	}
}

// Failures of the agent leave the routes in place. The log has the reason and
// the remedy, and the gateway catches up.
func TestConsul_Failures(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault func(r *consulRig, w http.ResponseWriter)
		want  string
	}{
		{"no leader", func(r *consulRig, w http.ResponseWriter) { r.agent.Error500(w, "No cluster leader") },
			`answered 500: No cluster leader"`},
		{"recorded 500", func(r *consulRig, w http.ResponseWriter) { r.agent.Error500(w, "") },
			`answered 500: No path to datacenter"`},
		{"token lacks a permission", func(_ *consulRig, w http.ResponseWriter) {
			http.Error(w, "Permission denied: token with AccessorID 'x' lacks permission 'service:read'", http.StatusForbidden)
		}, `answered 403: Permission denied: token with AccessorID 'x' lacks permission 'service:read'; ` +
			`set CONSUL_HTTP_TOKEN or CONSUL_HTTP_TOKEN_FILE to a token with service:write on mesh-gateway`},
		{"not JSON", func(_ *consulRig, w http.ResponseWriter) { fmt.Fprint(w, "<html>") }, "is not a response of this API"},
		{"filtered", func(_ *consulRig, w http.ResponseWriter) {
			w.Header().Set(api.HeaderIndex, "9")
			w.Header().Set(api.HeaderFiltered, "true")
			fmt.Fprint(w, "{}")
		}, "the token may not read any gateway"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newConsulRig(t)
			setAgent(r.agent, sample)
			r.start(t)
			r.wantRoutes(t, sample)
			r.agent.SetFault(func(w http.ResponseWriter, q *http.Request) bool {
				if !strings.HasPrefix(q.URL.Path, "/v1/internal/") {
					return false
				}
				tt.fault(r, w)
				return true
			})
			line := waitLine(t, r.logs, `level=WARN msg="cannot read the federation states"`)
			if !strings.Contains(strings.ReplaceAll(line, `\"`, `"`), tt.want) {
				t.Errorf("log line = %s, want it to contain %s", line, tt.want)
			}
			r.wantRoutes(t, sample)
			next := proto.CloneOf(sample)
			next.Datacenters[0].Gateways = []string{"198.51.100.9:8443"}
			setAgent(r.agent, next)
			r.agent.SetFault(nil)
			r.wantRoutes(t, next)
		})
	}
}

// waitLine returns the first line that begins with prefix.
func waitLine(t testing.TB, lines <-chan string, prefix string) string {
	t.Helper()
	for timeout := time.After(waitLimit); ; {
		select {
		case line := <-lines:
			if strings.HasPrefix(line, prefix) {
				return line
			}
		case <-timeout:
			t.Fatalf("lines within %v = none with %s, want one", waitLimit, prefix)
		}
	}
}

// With the status 429, the gateway sends no request before Retry-After.
func TestConsul_RetryAfter(t *testing.T) {
	r := newConsulRig(t)
	setAgent(r.agent, sample)
	var first, second atomic.Int64
	r.agent.SetFault(func(w http.ResponseWriter, q *http.Request) bool {
		if q.URL.Path != "/v1/health/service/consul" {
			return false
		}
		if first.CompareAndSwap(0, time.Now().UnixNano()) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "rate limit exceeded, try again later or against a different server", http.StatusTooManyRequests)
			return true
		}
		second.CompareAndSwap(0, time.Now().UnixNano())
		return false
	})
	r.start(t)
	line := waitLine(t, r.logs, `level=WARN msg="cannot read the servers"`)
	if want := "answered 429: rate limit exceeded"; !strings.Contains(line, want) {
		t.Errorf("log line = %s, want it to contain %s", line, want)
	}
	r.wantRoutes(t, sample)
	if d := time.Duration(second.Load() - first.Load()); d < time.Second {
		t.Errorf("time between the requests = %v, want at least 1s", d)
	}
}

// Queries that return at once cannot exceed the minimum interval.
func TestConsul_QueryRate(t *testing.T) {
	r := newConsulRig(t)
	setAgent(r.agent, sample)
	var queries atomic.Int64
	r.agent.SetFault(func(w http.ResponseWriter, q *http.Request) bool {
		if strings.HasPrefix(q.URL.Path, "/v1/internal/") {
			n := queries.Add(1)
			w.Header().Set(api.HeaderIndex, fmt.Sprint(n))
			fmt.Fprint(w, "{}")
			return true
		}
		return false
	})
	began := time.Now()
	r.start(t)
	testutil.Eventually(t, waitLimit, func() bool { return queries.Load() >= 10 }, "10 queries")
	if d := time.Since(began); d < 9*consulapi.Interval {
		t.Errorf("10 queries took %v, want at least %v", d, 9*consulapi.Interval)
	}
}

// The agent restarts with its registrations, and then without them. The routes
// stay, and the gateway registers again.
func TestConsul_AgentRestarts(t *testing.T) {
	testutil.Cluster(t)
	r := newConsulRig(t)
	setAgent(r.agent, sample)
	r.start(t)
	r.wantRoutes(t, sample)
	r.wantRegistered(t, true)
	for i, keep := range []bool{true, false} {
		for len(r.logs) > 0 {
			<-r.logs
		}
		r.agent.Stop()
		waitLine(t, r.logs, `level=WARN msg="cannot read the federation states"`)
		if st := r.Status(); st.Server != "" || !st.HasSnapshot || st.FromDisk {
			t.Errorf("Status() without the agent = %+v, want no server and a snapshot", st)
		}
		r.wantRoutes(t, sample)
		next := proto.CloneOf(sample)
		next.Datacenters[0].Gateways = []string{fmt.Sprintf("198.51.100.%d:8443", 10+i)}
		setAgent(r.agent, next)
		r.agent.Start(keep)
		r.wantRoutes(t, next)
		r.wantRegistered(t, true)
		setAgent(r.agent, sample)
		r.wantRoutes(t, sample)
	}
}

func TestConsul_RestartsWithoutAgent(t *testing.T) {
	r := newConsulRig(t)
	setAgent(r.agent, sample)
	stop := r.start(t)
	r.wantRoutes(t, sample)
	stop()
	r.agent.Stop()
	stored := time.Now().Add(-time.Hour).Truncate(time.Second)
	if err := os.Chtimes(filepath.Join(r.dir, snapshotFile), stored, stored); err != nil {
		t.Fatal(err)
	}
	r.start(t)
	r.wantRoutes(t, sample)
	line := waitLine(t, r.logs, `level=WARN msg="cannot register"`)
	if want := "no Consul agent answers at " + r.agent.URL(); !strings.Contains(line, want) {
		t.Errorf("log line = %s, want it to contain %s", line, want)
	}
	if st := r.Status(); !st.FromDisk || st.Origin != originDisk || !st.SnapshotAt.Equal(stored) {
		t.Errorf("Status() = %+v, want a snapshot from disk of %v", st, stored)
	}
	if p := r.Report().Parts; len(p) != 2 || p[0].Origin != originDisk || !p[0].Updated.Equal(stored) {
		t.Errorf("Report().Parts = %+v, want origin disk of %v", p, stored)
	}
}

// The registration was removed, and then replaced by another program.
func TestConsul_RegistrationLost(t *testing.T) {
	testutil.Cluster(t)
	r := newConsulRig(t)
	r.ttl = time.Second
	setAgent(r.agent, sample)
	r.start(t)
	r.wantRegistered(t, true)
	waitLine(t, r.logs, `level=INFO msg=registered`)
	r.agent.Deregister("gw1")
	waitLine(t, r.logs, `level=WARN msg="the agent lost the registration, registering again"`)
	r.wantRegistered(t, true)

	r.agent.Register(consultest.Object{"ID": "gw1", "Name": "mesh-gateway", "Kind": "mesh-gateway",
		"Address": "10.1.0.102", "Port": 8443})
	line := waitLine(t, r.logs, `level=WARN msg="cannot read the registration"`)
	if want := `registered mesh-gateway \"10.1.0.102:8443\" as service gw1: use another --node`; !strings.Contains(line,
		want) {
		t.Errorf("log line = %s, want it to contain %s", line, want)
	}
	r.wantRegistered(t, true)
}

// A new secondary has no federation states before its gateway carries its first
// connections.
func TestConsul_StatesDisabled(t *testing.T) {
	r := newConsulRig(t)
	setAgent(r.agent, sample)
	r.agent.SetFault(func(w http.ResponseWriter, q *http.Request) bool {
		if !strings.HasPrefix(q.URL.Path, "/v1/internal/") {
			return false
		}
		r.agent.Error500(w, statesDisabled+" until all servers in the datacenter support the feature")
		return true
	})
	r.start(t)
	alone := proto.CloneOf(sample)
	alone.Datacenters = nil
	r.wantRoutes(t, alone)
	r.wantRegistered(t, true)
	r.agent.SetFault(nil)
	r.wantRoutes(t, sample)
}

func TestConsul_AgentOfAnotherDatacenter(t *testing.T) {
	r := newConsulRig(t)
	r.agent.DC = "dc9"
	setAgent(r.agent, sample)
	r.start(t)
	line := waitLine(t, r.logs, `level=WARN msg="cannot read the servers"`)
	if want := `the agent is of datacenter \"dc9\", and this gateway is of \"dc1\"`; !strings.Contains(line, want) {
		t.Errorf("log line = %s, want it to contain %s", line, want)
	}
	waitLine(t, r.logs, `level=WARN msg="cannot register"`)
	if body, _ := r.agent.Registration("gw1"); body != nil {
		t.Errorf("Registration() = %v, want none", body)
	}
}

// TestConsul_ChangeToRoute measures the time from a change of a gateway at the
// agent to the route in the table. Changes that follow each other at once wait
// for the minimum interval of queries.
func TestConsul_ChangeToRoute(t *testing.T) {
	testutil.Cluster(t)
	for name, single := range map[string]bool{"single": true, "back to back": false} {
		t.Run(name, func(t *testing.T) {
			r := newConsulRig(t)
			setAgent(r.agent, sample)
			r.start(t)
			r.wantRegistered(t, true)
			var took []time.Duration
			for i := range 40 {
				if single {
					wait(t, r.agent.Requests(), "blocked /v1/internal/")
				}
				took = append(took, r.changeGateway(t, fmt.Sprintf("198.51.100.2:%d", 1000+i)))
			}
			slices.Sort(took)
			median := took[len(took)/2]
			t.Logf("gateway change, seen to routed: median %v, maximum %v of %d", median, took[len(took)-1], len(took))
			if limit := 100 * time.Millisecond; median > limit {
				t.Errorf("median of %d changes = %v, want at most %v", len(took), median, limit)
			}
		})
	}
}

// changeGateway changes the gateway of dc2 and returns the time until it is
// routed.
func (r *consulRig) changeGateway(t testing.TB, addr string) time.Duration {
	t.Helper()
	next := proto.CloneOf(sample)
	next.Datacenters[0].Gateways = []string{addr}
	began := time.Now()
	setAgent(r.agent, next)
	for time.Since(began) < waitLimit {
		_, changed := r.manager.Snapshot("gw1")
		if to, _ := r.lan.Table().Lookup("server.dc2.wanfed"); len(to.To) == 1 && to.To[0] == addr {
			return time.Since(began)
		}
		select {
		case <-changed: // the table follows within microseconds
		case <-time.After(time.Millisecond):
		}
	}
	t.Fatalf("route after %v = none to %s, want one", waitLimit, addr)
	return 0
}

// FuzzConsulResponses checks that every JSON response gives a valid table.
func FuzzConsulResponses(f *testing.F) {
	body, _ := consultest.Recorded(f, "mesh_gateways.txt")
	f.Add(body, []byte(`[{"Node":{"Node":"s1","Address":"10.0.0.1"},"Service":{"Port":8300}}]`))
	f.Add([]byte(`{"dc2":null,"":[{"Service":{"Kind":"mesh-gateway","Meta":{"consul-wan-federation":"1"}}}]}`), []byte(`[]`))
	f.Fuzz(func(t *testing.T, gateways, entries []byte) {
		var byDC map[string][]api.MeshGateway
		var list []api.ServiceEntry
		if json.Unmarshal(gateways, &byDC) != nil || json.Unmarshal(entries, &list) != nil {
			return
		}
		servers, err := serversOf(list, "dc1")
		if err != nil {
			return
		}
		s, _ := snapshotOf(&pb.GatewaySnapshot{Datacenter: "dc1", Domain: "consul", Servers: servers,
			Datacenters: datacentersOf(byDC, "dc1")})
		if s == nil {
			return
		}
		if _, _, err := Tables(s, UpstreamOptions{}); err != nil {
			t.Errorf("Tables(%v) = %v, want nil", s, err)
		}
	})
}
