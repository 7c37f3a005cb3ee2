// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/output"
)

func TestTables_Output(t *testing.T) {
	startFakeAPI(t, sampleResponses())
	for _, tt := range []struct{ args, want string }{
		{"members --wan", `
Node      Address              Status  Type    Build  Protocol  DC
srv1.dc1  10.1.0.11:8300       alive   server  0.1.0  2         dc1
srv1.dc2  [2001:db8::11]:8300  failed  server  0.1.0  2         dc2
`},
		{"members --wan --output wide", `
Node      Address              Status  Type    Build  Protocol  DC   Tags
srv1.dc1  10.1.0.11:8300       alive   server  0.1.0  2         dc1  build=0.1.0:abc,dc=dc1,role=consul
srv1.dc2  [2001:db8::11]:8300  failed  server  0.1.0  2         dc2  build=0.1.0:?[31mred,dc=dc2,role=consul
`},
		{"members", `
Node      Address         Status  Type    Build  Protocol  DC
srv1.dc1  10.1.0.11:8300  alive   server  0.1.0  2         dc1
`},
		{"members --datacenter dc2", `
Node      Address              Status  Type    Build  Protocol  DC
srv1.dc2  [2001:db8::11]:8300  failed  server  0.1.0  2         dc2
`},
		{"policy list", `
Policy     Type         Access  Prefix
anonymous  -            -       -
joe        kv/v1/Entry  write   app/
joe        catalog/*    read    -
`},
		{"policy list --output json", `
[
  {
    "name": "anonymous",
    "rules": []
  },
  {
    "name": "joe",
    "rules": [
      {
        "type": "kv/v1/Entry",
        "prefix": "app/",
        "access": "write"
      },
      {
        "type": "catalog/*",
        "prefix": "",
        "access": "read"
      }
    ]
  }
]
`},
		{"controllers", `
Name             Placement     Running  Queued  Rate   Errors  Last Error
owned-resources  leader        true     3       1.3/s  2       disk is full
other            every server  false    0       0.0/s  0       -
`},
		{"controllers --output wide", `
Name             Placement     Running  Queued  Rate   Errors  Last Error    At                    Managed                Watches
owned-resources  leader        true     3       1.3/s  2       disk is full  2026-11-21T01:05:00Z  internal/v1/Tombstone  -
other            every server  false    0       0.0/s  0       -             -                     a/v1/B                 a/v1/C,a/v1/D
`},
		{"federation list", `
Datacenter  Gateways     Updated               Primary Index  Index
dc1         1/1 healthy  -                     -              16
dc2         1/2 healthy  2026-11-21T01:05:00Z  20             9
dc3         none         -                     -              17
`},
		{"federation read dc2", `
Datacenter:     dc2
Gateways:       1/2 healthy
Updated:        2026-11-21T01:05:00Z
Primary index:  20
Index:          9

Gateway  Node  Health    LAN              WAN
gw2a     gw2a  passing   10.2.0.101:8443  172.30.0.21:443
gw2b     gw2b  critical  10.2.0.102:8443  [2001:db8::9]:443
`},
		{"federation read dc3", `
Datacenter:     dc3
Gateways:       none
Updated:        -
Primary index:  -
Index:          0
`},
		{"federation gateways", `
Datacenter  Gateway  Node  Health    LAN              WAN
dc1         gw1a     n1    warning   10.1.0.9:8443    10.1.0.9:8443
dc2         gw2a     gw2a  passing   10.2.0.101:8443  172.30.0.21:443
dc2         gw2b     gw2b  critical  10.2.0.102:8443  [2001:db8::9]:443
`},
		{"federation gateways --only dc1", `
Datacenter  Gateway  Node  Health   LAN            WAN
dc1         gw1a     n1    warning  10.1.0.9:8443  10.1.0.9:8443
`},
		{"status", `
dc3 is unreachable, and 1 more are not ok: no gateway of dc3 is known

Datacenter dc2 (primary dc1): 1 of 3 datacenters ok
Node srv1, version 0.1.0, leader 10.2.0.11:8300

Datacenter  Role              State        Servers    Gateways     Age    Lag
dc2         secondary, local  ok           3/3 alive  2/2 healthy  1m33s  -
dc1         primary           degraded     3/3 alive  1/2 healthy  1d2h   200ms
dc3         secondary         unreachable  0/1 alive  0/0 healthy  -      -

Mesh gateway mode local

Datacenter  Path                 Via                 Used  Health    RTT
dc1         10.2.0.101:8443      own gateway         yes   ok        41.2ms
dc1         gw.dc1.example:8443  configured address  -     untested  -

dc3:
  cause: no gateway of dc3 is known
  advice: start a gateway of dc3
  last error (2026-11-21T01:05:00Z): dial gateway 10.3.0.1:8443: connection
    refused?

Replicated Type     Replicas  Unknown  Primary Index  Lag
config/v1/Document  12        0        40             200ms
config/Later        0         3        0              -

Component    State          Detail
raft         ok             leader srv1, 3 voters
replication  not connected
`},
		{"status --datacenter dc3", `
Datacenter dc3 (primary dc1): 0 of 0 datacenters ok
Node srv1, version 0.1.0, no leader

Datacenter  Role  State  Servers  Gateways  Age  Lag
`},
		{"status --output wide", `
dc3 is unreachable, and 1 more are not ok: no gateway of dc3 is known

Datacenter dc2 (primary dc1): 1 of 3 datacenters ok
Node srv1, version 0.1.0, leader 10.2.0.11:8300

Datacenter  Role              State        Servers    Gateways     Age    Lag
dc2         secondary, local  ok           3/3 alive  2/2 healthy  1m33s  -
dc1         primary           degraded     3/3 alive  1/2 healthy  1d2h   200ms
dc3         secondary         unreachable  0/1 alive  0/0 healthy  -      -

Mesh gateway mode local

Datacenter  Path                 Via                 Used  Health    RTT     Last Success  Last Failure  Known
dc1         10.2.0.101:8443      own gateway         yes   ok        41.2ms  -             -             heartbeat
dc1         gw.dc1.example:8443  configured address  -     untested  -       -             -             configuration, federation state, 1m30s ago

dc3:
  cause: no gateway of dc3 is known
  advice: start a gateway of dc3
  last error (2026-11-21T01:05:00Z): dial gateway 10.3.0.1:8443: connection refused?

Replicated Type     Replicas  Unknown  Primary Index  Lag    Last Change  Changes  Bytes
config/v1/Document  12        0        40             200ms  -            14       2300
config/Later        0         3        0              -      -            0        0

Component    State          Detail
raft         ok             leader srv1, 3 voters
replication  not connected
`},
	} {
		t.Run(tt.args, func(t *testing.T) {
			got, _, err := call(t, strings.Fields(tt.args)...)
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for line := range strings.Lines(got) {
				lines = append(lines, strings.TrimRight(line, " \n"))
			}
			if d := cmp.Diff(strings.TrimPrefix(tt.want, "\n"), strings.Join(lines, "\n")+"\n"); d != "" {
				t.Errorf("wanfed %s: (-want +got)\n%s", tt.args, d)
			}
		})
	}
}

// Tables with long names and addresses fit 80 columns, and no line is cut.
func TestTables_Fit80Columns(t *testing.T) {
	const node, dc, addr = "frankfurt-01", "frankfurt", "192.168.100.100:8300"
	var out bytes.Buffer
	p := output.Printer{W: &out, Format: output.Table}
	err := printStatus(p, api.Status{
		Node: node, Datacenter: dc, PrimaryDatacenter: dc, Leader: addr, Version: "10.10.10-dev",
		MeshGatewayMode: "remote",
		Headline:        strings.Repeat("frankfurt is one way: ", 6),
		Datacenters: []api.DatacenterStatus{
			{Name: dc, Own: true, Cause: strings.Repeat("cause ", 20), Advice: strings.Repeat("advice ", 20),
				LastError: strings.Repeat("error ", 20), ServersAlive: 3, ServersKnown: 3, RecordAge: new(3.0e6)},
			{Name: dc, ServersKnown: 5, GatewaysKnown: 5, RecordAge: new(754.0), ReplicationLag: new(12.3),
				Paths: []api.PathStatus{
					{Address: addr, Via: "configured address", Used: true, Health: "untested", RTT: new(0.1234),
						Sources: []string{"gossip", "federation state"}},
				}},
		},
		Replicated: []api.ReplicatedType{{
			Type: "federation/v1/FederationState", Records: 100,
			PrimaryIndex: 1795247458735544, Lag: new(754.0),
		}},
		Components: []api.ComponentStatus{{Name: "anti-entropy", State: "ok", Detail: "last written 12m34s ago"}},
	}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	peers := []raftPeer{
		{Node: node, Address: addr, State: "follower", Member: "leaving", LastContact: new(754.0),
			LastIndex: 1795247458735544, Trailing: 12345678},
	}
	if err := p.Table(peerRows(peers, false)); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if line = strings.TrimRight(line, " \n"); len(line) > 80 || strings.Contains(line, "…") {
			t.Errorf("line has %d columns, want at most 80, not cut: %s", len(line), line)
		}
	}
}

func TestStatus_ExitCode(t *testing.T) {
	ok := sampleResponses()
	ok["/v1/agent/federation-status"] = api.Status{Headline: "dc1 is ok",
		Datacenters: []api.DatacenterStatus{{Name: "dc1", State: api.HealthOK}}}
	for _, tt := range []struct {
		name      string
		responses map[string]any
		args      string
		code      int
		want      string
	}{
		{"not ok", sampleResponses(), "status", exitSuccess, ""},
		{"not ok with exit code", sampleResponses(), "status --exit-code", exitFailure,
			"the federation is not ok: dc3 is unreachable"},
		{"not ok after the wait", sampleResponses(), "status --wait 1ms --output json", exitFailure,
			"the federation is not ok: dc3 is unreachable"},
		{"ok", ok, "status --exit-code --wait 1m", exitSuccess, ""},
		{"watch and wait", ok, "status --watch --wait 1m", exitUsage, "--watch cannot be combined"},
		{"negative wait", ok, "status --wait -1s", exitUsage, "--wait -1s: must not be negative"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			startFakeAPI(t, tt.responses)
			_, code, err := call(t, strings.Fields(tt.args)...)
			if code != tt.code || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("wanfed %s = %d, %v, want %d, %q", tt.args, code, err, tt.code, tt.want)
			}
		})
	}
}

// SIGINT during a request of --watch is not a failure.
func TestStatus_WatchInterrupted(t *testing.T) {
	startFakeAPI(t, sampleResponses())
	c, err := api.NewClient(api.ClientConfig{Addr: os.Getenv("WANFED_HTTP_ADDR")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	interrupted, stop := context.WithCancel(t.Context())
	stop()
	if err := (statusOptions{watch: true}).run(interrupted, client{Client: c}, output.Printer{W: io.Discard}); err != nil {
		t.Errorf("run() = %v, want nil", err)
	}
}

// The JSON of commands is the JSON of the API.
func TestJSON_IsResponse(t *testing.T) {
	responses := sampleResponses()
	startFakeAPI(t, responses)
	state := responses["/v1/internal/federation-state/dc2"].(api.FederationStateResponse).State
	gateways := responses["/v1/internal/federation-states/mesh-gateways"].(map[string][]api.MeshGateway)
	for args, want := range map[string]any{
		"members --wan":                  responses["/v1/agent/members?wan=1"],
		"federation list":                responses["/v1/internal/federation-states"],
		"federation read dc2":            state,
		"federation gateways":            gateways,
		"federation gateways --only dc2": map[string]any{"dc2": gateways["dc2"]},
		"status":                         responses["/v1/agent/federation-status"],
	} {
		out, _, err := call(t, append(strings.Fields(args), "--output", "json")...)
		if err != nil {
			t.Errorf("wanfed %s = %v, want nil", args, err)
			continue
		}
		wantJSON, err := json.MarshalIndent(want, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(wantJSON)+"\n", out); d != "" {
			t.Errorf("wanfed %s: (-want +got)\n%s", args, d)
		}
	}
}

func TestReadCommands_Errors(t *testing.T) {
	startFakeAPI(t, sampleResponses())
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close() // the address now refuses connections
	dead := ln.Addr().String()
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"members --http-addr " + dead, exitFailure, "no server answers at http://" + dead +
			" (--http-addr): connection refused; check that a server runs there, or set --http-addr, " +
			"WANFED_HTTP_ADDR or --context"},
		{"members --datacenter dc9", exitFailure, `datacenter "dc9" is not known; known are dc1, dc2, dc3; did you mean dc1?`},
		{"federation read dc9", exitFailure, `datacenter "dc9" is not known; known are dc1, dc2, dc3`},
		{"federation gateways --only dc9", exitFailure,
			`datacenter "dc9" has no known gateway; see: wanfed federation list`},
		{"members --output yaml", exitUsage,
			`invalid argument "yaml" for "-o, --output" flag: must be table, wide or json; see: wanfed members --help`},
		{"version --output yaml", exitUsage, `must be table, wide or json; see: wanfed version --help`},
		{"members dc2", exitUsage, `unexpected argument "dc2"; see: wanfed members --help`},
		{"members --http-addr nonsense", exitUsage,
			`HTTP address "nonsense" has no port; write it like http://127.0.0.1:8500`},
		{"status --http-addr https://127.0.0.1:1", exitUsage,
			"https://127.0.0.1:1 (--http-addr) needs --ca-file, --cert-file, --key-file; " +
				"create a certificate with: wanfed tls cert create --operator --datacenter DC"},
		{"status --http-addr https://127.0.0.1:1 --ca-file a --cert-file b --key-file c", exitFailure, "a"},
		{"federation", exitUsage, "a subcommand is required; see: wanfed federation --help"},
		{"federation write dc2", exitUsage, `unknown command "write"; see: wanfed federation --help`},
		{"federation read", exitUsage, "DC is required: wanfed federation read DC"},
		{"federation read dc1 dc2", exitUsage, `unexpected argument "dc2"; see: wanfed federation read --help`},
		{"federation read DC/2", exitUsage, `datacenter: "DC/2" is not a DNS label`},
		{"federation replace dc2", exitUsage, "the id of the new Raft group is missing: set --id"},
		{"federation replace dc2 --id x", exitUsage,
			"federation replace needs --ca-file, --cert-file, --key-file; create"},
		{"federation delete dc2", exitUsage, "federation delete needs --ca-file, --cert-file, --key-file; create"},
		{"federation delete dc2 --server 10.0.0.5:1", exitUsage, "--datacenter is required with --server"},
		{"federation delete dc2 --datacenter dc1 --server 10.0.0.5", exitUsage,
			"--server: address 10.0.0.5: missing port in address; write host:port"},
		{"federation delete dc2 --datacenter Dc1 --server 10.0.0.5:1", exitUsage,
			`--datacenter: "Dc1" is not a DNS label`},
		{"federation delete dc2 --datacenter dc1 --server 10.0.0.5:1 --ca-file a", exitUsage,
			"federation delete needs --cert-file, --key-file"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			out, code, err := call(t, strings.Fields(tt.args)...)
			if err == nil || code != tt.code || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("exit status = %d, error %v, want %d, %s", code, err, tt.code, tt.want)
			}
			if out != "" {
				t.Errorf("stdout = %q, want nothing", out)
			}
		})
	}
}

func TestVersion_Output(t *testing.T) {
	out, _, err := call(t, "version")
	if err != nil || !strings.HasPrefix(out, "wanfed ") || strings.Count(out, "\n") != 1 {
		t.Errorf("wanfed version = %q, %v, want one line with wanfed", out, err)
	}
	out, _, err = call(t, "version", "--output", "json")
	var info struct{ Version, Go string }
	if err != nil || json.Unmarshal([]byte(out), &info) != nil || info.Version == "" || info.Go == "" {
		t.Errorf("wanfed version --output json = %q, %v, want both versions", out, err)
	}
}

func TestCompletion_Words(t *testing.T) {
	startFakeAPI(t, sampleResponses())
	const dcs = "dc1\ndc2\ndc3\n:4\n" // 4: no file names
	for _, tt := range []struct {
		words []string
		want  string
	}{
		{[]string{"federation", "read", ""}, dcs},
		{[]string{"federation", "read", "dc1", ""}, ":4\n"},
		{[]string{"federation", "gateways", "--only", ""}, dcs},
		{[]string{"members", "--datacenter", ""}, dcs},
		{[]string{"status", "--output", ""}, "table\nwide\njson\n:4\n"},
		// Without a server the completion is empty, and no error.
		{[]string{"members", "--http-addr", "127.0.0.1:1", "--datacenter", ""}, ":4\n"},
		{[]string{"completion", "bash", ""}, ":4\n"},
	} {
		out, _, err := call(t, append([]string{"__complete"}, tt.words...)...)
		if err != nil || out != tt.want {
			t.Errorf("completion of %q = %q, %v, want %q", tt.words, out, err, tt.want)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out, _, err := call(t, "completion", shell); err != nil || !strings.Contains(out, "__complete") {
			t.Errorf("completion %s = %d bytes, %v, want a script", shell, len(out), err)
		}
	}
}

func TestReadCommands_HaveExamples(t *testing.T) {
	for _, name := range []string{"members", "federation", "resource", "status", "version"} {
		c, _, err := newRoot().Find([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range append(c.Commands(), c) {
			if c.Example == "" || c.Short == "" {
				t.Errorf("%s: example %q, short text %q, want both", c.CommandPath(), c.Example, c.Short)
			}
		}
	}
}
