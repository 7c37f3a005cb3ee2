// SPDX-License-Identifier: MPL-2.0

package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
)

// childEnv makes this test binary a program that is not wanfed: it rejects its
// arguments and exits.
const childEnv = "DEMO_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		fmt.Fprintln(os.Stderr, "this is not wanfed")
		os.Exit(3)
	}
	goleak.VerifyTestMain(m)
}

func TestValidate(t *testing.T) {
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		cfg  Config
		want []string // a part of each fault; nil: valid
	}{
		{"defaults", Config{}, nil},
		{"absent directory", Config{Keep: filepath.Join(full, "new")}, nil},
		{"empty directory", Config{Keep: t.TempDir()}, nil},
		{"all faults", Config{Datacenters: 1, Servers: 2, Timeout: -1, Keep: full},
			[]string{"1 datacenters", "2 servers", "negative", "not empty"}},
		{"too many", Config{Datacenters: 10, Servers: 7}, []string{"10 datacenters", "7 servers"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := test.cfg.Validate()
			if (err == nil) != (test.want == nil) {
				t.Fatalf("Validate() = %v, want faults %q", err, test.want)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Validate() = %v, want it to contain %q", err, want)
				}
			}
		})
	}
}

// A demo with a binary that is not wanfed fails with the output of the binary,
// and leaves no files.
func TestRun_AnotherProgram(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv(childEnv, "1")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	err = Run(t.Context(), Config{Program: program, Datacenters: 2, Once: true, Out: io.Discard, Err: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "dc1/srv1 ended before it was ready: exit status 3") ||
		!strings.Contains(err.Error(), "this is not wanfed") {
		t.Errorf("Run() = %v, want exit status 3 and the output of the binary", err)
	}
	if files, _ := os.ReadDir(os.TempDir()); len(files) > 0 {
		t.Errorf("files after Run() = %v, want none", files)
	}
}

// The settings of the user's commands do not concern the demo.
func TestRunCommands_Environment(t *testing.T) {
	t.Setenv("WANFED_CONTEXT", "nothing")
	var out strings.Builder
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nenv\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	f := &federation{cfg: Config{Program: program, Err: io.Discard}}
	if err := f.runCommands(t.Context(), &out, "127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "PATH=") || strings.Contains(out.String(), "WANFED_") {
		t.Errorf("environment = %s, want no settings of wanfed", &out)
	}
}

func TestFreePorts(t *testing.T) {
	free := func() (err error) {
		ports, err := freePorts(5)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(ports)
		if len(slices.Compact(ports)) != 5 {
			t.Errorf("ports = %v, want 5 different ones", ports)
		}
		for _, port := range ports {
			ln, lerr := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if lerr != nil {
				err = errors.Join(err, lerr)
				continue
			}
			ln.Close()
		}
		return err
	}
	err := free()
	for try := 1; err != nil && try < 3; try++ { // another program may have bound a port
		err = free()
	}
	if err != nil {
		t.Errorf("Listen() on the result of freePorts() = %v, want nil", err)
	}
	if got, want := others([]int{1, 2, 3}, 1), []string{"127.0.0.1:1", "127.0.0.1:3"}; !slices.Equal(got, want) {
		t.Errorf("others() = %v, want %v", got, want)
	}
	if got := others([]int{0}, 0); got != nil {
		t.Errorf("others() of one = %v, want none", got)
	}
}

func TestProgress(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		var out strings.Builder
		p := progress{w: &out}
		p.plain("hello")
		p.begin()
		time.Sleep(1500 * time.Millisecond) // fake time
		p.printf("%s listens", "dc1/srv1")
		p.reach(stepServers, 2)
		time.Sleep(time.Second)
		p.reach(stepServers, 2)
		want := "hello\n  1.500 s  dc1/srv1 listens\n  2.500 s  * all servers listen\n"
		if out.String() != want {
			t.Errorf("output = %q, want %q", out.String(), want)
		}
		if got := p.timings(); len(got) != 1 || got["servers"] != 2500 {
			t.Errorf("timings() = %v, want servers: 2500", got)
		}
		(&progress{}).printf("without a writer")
	})
}

// testFederation returns a federation of dc1 and dc2 without processes.
func testFederation() *federation {
	f := &federation{cfg: Config{Datacenters: 2, Servers: 1}, missing: make(map[string]string)}
	for _, name := range []string{"dc1", "dc2"} {
		f.dcs = append(f.dcs, &datacenter{
			name: name, nodes: []string{"srv1"},
			servers: []*subprocess.Server{{ServerReady: subprocess.ServerReady{
				DC: name, Node: "srv1", Addr: name + ":8300", HTTP: "http://" + name,
			}}},
			gateway: &subprocess.Gateway{GatewayReady: subprocess.GatewayReady{
				DC: name, Node: "gw1", LAN: name + ":1", WAN: name + ":2",
			}},
		})
	}
	return f
}

// fakeServer returns a client of an HTTP server with fixed responses. A real
// federation is in the states under test only for milliseconds.
func fakeServer(t testing.TB, responses map[string]any) *api.Client {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := responses[r.URL.RequestURI()]
		if !ok {
			http.Error(w, "No path to datacenter", http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(body)
	}))
	t.Cleanup(srv.Close)
	c, err := api.NewClient(api.ClientConfig{Addr: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func state(dc, status string) api.FederationState {
	return api.FederationState{Datacenter: dc, MeshGateways: []api.MeshGateway{{
		Node: api.Node{Node: "gw1"},
		Service: api.Service{TaggedAddresses: map[string]api.ServiceAddress{
			"lan": {Address: dc, Port: 1}, "wan": {Address: dc, Port: 2},
		}},
		Checks: []api.Check{{Status: status}},
	}}}
}

func member(name, dc string, status api.MemberStatus) api.Member {
	return api.Member{Name: name, Addr: "127.0.0.1", Port: 8300, Status: status, Tags: map[string]string{"dc": dc}}
}

func TestMissing(t *testing.T) {
	f := testFederation()
	ctx := t.Context()
	members := func(c *api.Client) string { return f.missingMembers(ctx, c) }
	states := func(c *api.Client) string { return f.missingStates(ctx, c) }
	responses := func(c *api.Client) string { return f.missingResponses(ctx, c, f.dcs[0]) }
	const (
		membersURI = "/v1/agent/members?wan=1"
		statesURI  = "/v1/internal/federation-states"
		leaderURI  = "/v1/status/leader?dc=dc2"
		lanURI     = "/v1/agent/members?dc=dc2"
	)
	type bodies = map[string]any // by request URI
	one := member("srv1.dc1", "dc1", api.MemberAlive)
	tests := []struct {
		name    string
		missing func(*api.Client) string
		bodies  bodies
		want    string // a part of the result; "": nothing is missing
	}{
		{"members: all", members, bodies{membersURI: []api.Member{one, member("srv1.dc2", "dc2", api.MemberAlive)}},
			""},
		{"members: one absent", members, bodies{membersURI: []api.Member{one}}, "srv1.dc2 is not in the WAN pool"},
		{"members: one failed", members,
			bodies{membersURI: []api.Member{one, member("srv1.dc2", "dc2", api.MemberFailed)}}, "srv1.dc2 is failed"},
		{"members: no response", members, nil, "No path"},
		{"states: all", states,
			bodies{statesURI: []api.FederationState{state("dc1", "passing"), state("dc2", "warning")}}, ""},
		{"states: one absent", states, bodies{statesURI: []api.FederationState{state("dc1", "passing")}},
			"no federation state of dc2"},
		{"states: critical", states, bodies{statesURI: []api.FederationState{
			state("dc1", "critical"), state("dc2", "passing"),
		}}, "dc1 has no healthy gateway at dc1:2"},
		{"states: other address", states, bodies{statesURI: []api.FederationState{
			state("dc1", "passing"), {Datacenter: "dc2", MeshGateways: state("dc1", "passing").MeshGateways},
		}}, "gateway at dc2:2"},
		{"responses: all", responses, bodies{leaderURI: "dc2:8300",
			lanURI: []api.Member{member("srv1", "dc2", api.MemberAlive)}}, ""},
		{"responses: wrong leader", responses, bodies{leaderURI: "dc1:8300"}, `leader is "dc1:8300"`},
		{"responses: no leader", responses, bodies{leaderURI: ""}, `leader is ""`},
		{"responses: wrong members", responses, bodies{
			leaderURI: "dc2:8300", lanURI: []api.Member{member("srv9", "dc2", api.MemberAlive)},
		}, `members are ["srv9"]`},
		{"responses: none", responses, nil, "No path"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := test.missing(fakeServer(t, test.bodies))
			if test.want == "" && got != "" || !strings.Contains(got, test.want) {
				t.Errorf("missing() = %q, want %q", got, test.want)
			}
		})
	}
	f.dcs[1].gateway = nil
	if got := states(fakeServer(t, bodies{
		statesURI: []api.FederationState{state("dc1", "passing")},
	})); !strings.Contains(got, "gateway of dc2 is not started") {
		t.Errorf("missing() without a gateway = %q, want the gateway of dc2", got)
	}
}

func TestAwait(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		f := &federation{missing: make(map[string]string)}
		calls := 0
		err := f.await(t.Context(), "dc1/srv1", func() string {
			if calls++; calls < 3 {
				return "a member"
			}
			return ""
		})
		if err != nil || calls != 3 || f.missing["dc1/srv1"] != "" {
			t.Errorf("await() = %v after %d calls, missing %v, want nil after 3 and none", err, calls, f.missing)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := f.await(ctx, "dc1/srv1", func() string { return "a member" }); err == nil {
			t.Errorf("await() at its deadline = %v, want an error", err)
		}
		if f.missing["dc1/srv1"] != "a member" {
			t.Errorf("missing = %v, want a member", f.missing)
		}
	})
}

// Program echo prints the arguments of the commands.
func TestRunCommands(t *testing.T) {
	var out strings.Builder
	f := &federation{cfg: Config{Program: "echo", Err: io.Discard}}
	if err := f.runCommands(t.Context(), &out, "http://dc2"); err != nil {
		t.Fatalf("runCommands() = %v, want nil", err)
	}
	want := "\n$ echo members --wan --http-addr http://dc2\nmembers --wan --http-addr http://dc2\n" +
		"\n$ echo federation gateways --http-addr http://dc2\nfederation gateways --http-addr http://dc2\n"
	if out.String() != want {
		t.Errorf("output of runCommands() = %q, want %q", out.String(), want)
	}
	f.cfg.Program = "false"
	err := f.runCommands(t.Context(), io.Discard, "http://dc2")
	if want := "run wanfed members --wan: exit status 1"; err == nil || err.Error() != want {
		t.Errorf("runCommands() of a failing program = %v, want %s", err, want)
	}
}

func TestReport_JSON(t *testing.T) {
	// The JSON is a contract with scripts.
	b, err := json.Marshal(Report{
		Datacenters: []DatacenterReport{{Name: "dc1", HTTP: "h",
			Servers:  []ServerReport{{Node: "srv1", RPC: "r", HTTP: "h", PID: 1}},
			Gateways: []GatewayReport{{Node: "gw1", LAN: "l", WAN: "w", PID: 2}},
			Operator: OperatorReport{CAFile: "ca", CertFile: "c", KeyFile: "k"}}},
		Dir: "d", TimingsMS: map[string]int64{"members": 3},
	})
	want := `{"datacenters":[{"name":"dc1","http":"h","servers":[{"node":"srv1","rpc":"r","http":"h","pid":1}],` +
		`"gateways":[{"node":"gw1","lan":"l","wan":"w","pid":2}],` +
		`"operator":{"ca_file":"ca","cert_file":"c","key_file":"k"}}],"dir":"d","timings_ms":{"members":3}}`
	if err != nil || string(b) != want {
		t.Errorf("Marshal() = %s, %v, want %s", b, err, want)
	}
}
