// SPDX-License-Identifier: MPL-2.0

package diagnose

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/serverd"
	"github.com/wanfed/wanfed/tlsutil"
)

// machineFiles writes certificates and settings of a server and a gateway of
// dc2. more is added to the file of the server.
func machineFiles(t *testing.T, more string) (dir string, paths []string) {
	t.Helper()
	dir = t.TempDir()
	ca, err := tlsutil.CreateCA(tlsutil.CARequest{})
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("ca.pem", ca.Cert)
	for role, node := range map[tlsutil.Role]string{tlsutil.RoleServer: "srv1", tlsutil.RoleGateway: "gw1"} {
		p, err := tlsutil.CreateCert(tlsutil.CertRequest{Role: role, DC: "dc2", Node: node, CA: ca})
		if err != nil {
			t.Fatal(err)
		}
		write(role.String()+".pem", p.Cert)
		write(role.String()+"-key.pem", p.Key)
	}
	base := func(role, node string) string {
		return fmt.Sprintf("dc = \"dc2\"\nnode = %[3]q\ndata_dir = \"%[1]s/%[2]s\"\nca_file = \"%[1]s/ca.pem\"\n"+
			"cert_file = \"%[1]s/%[2]s.pem\"\nkey_file = \"%[1]s/%[2]s-key.pem\"\n", dir, role, node)
	}
	server := base("server", "srv1") + "primary_datacenter = \"dc1\"\nbind = \"127.0.0.1\"\nport = " + freePort(t) + "\n" +
		more
	gateway := base("gateway", "gw1") + "servers = [\"127.0.0.1:1\"]\nlan = \"127.0.0.1:" + freePort(t) +
		"\"\nwan = \"10.77.0.5:8443\"\nwan_bind = \"127.0.0.1:" + freePort(t) + "\"\n"
	return dir, []string{write("server.hcl", []byte(server)), write("gateway.hcl", []byte(gateway))}
}

func freePort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	return port
}

// noServer returns a client of an address at which nothing listens.
func noServer(t *testing.T) *api.Client {
	t.Helper()
	c, err := api.NewClient(api.ClientConfig{Addr: "127.0.0.1:" + freePort(t)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// find returns the finding of a check.
func find(t *testing.T, r Report, check string) Finding {
	t.Helper()
	i := slices.IndexFunc(r.Findings, func(f Finding) bool { return strings.HasPrefix(f.Check, check) })
	if i < 0 {
		t.Fatalf("no finding of %q in %+v", check, r.Findings)
	}
	return r.Findings[i]
}

// Before it joins, a machine has no server. Files, ports, addresses and paths
// are checked.
func TestRun_BeforeJoin(t *testing.T) {
	closed := "127.0.0.1:" + freePort(t)
	other := listenPlain(t)
	dir, paths := machineFiles(t, fmt.Sprintf("primary_gateways = [%q, \"10.77.0.5:8443\"]\n", closed))
	m := ReadMachine(paths)
	m.Gateway.LAN = other
	r := Run(t.Context(), Config{Machine: m, Client: noServer(t)})
	for _, want := range []struct {
		result               Result
		check, cause, remedy string
	}{
		{OK, "settings server.hcl", dir + "/server.hcl is valid", ""},
		{OK, "certificate of the server", "server/dc2/srv1", ""},
		{OK, "disk", "not created yet", ""},
		{OK, "port 127.0.0.1:" + strconv.Itoa(m.Server.Port), "free", ""},
		{Warn, "server", "no server runs at http://127.0.0.1", "start it"},
		{Fail, "port " + other, "used by another program", "ss -ltnp"},
		{Warn, "WAN address 10.77.0.5:8443", "a private address", "wan_bind"},
		{Fail, "primary gateway 10.77.0.5:8443", "the address of the gateway of this machine", "primary_gateways"},
		{Fail, "paths to dc1", "", ""},
		{Fail, "path to dc1 via " + closed, "connection refused", ""},
	} {
		f := find(t, r, want.check)
		if f.Result != want.result || !strings.Contains(f.Cause, want.cause) || !strings.Contains(f.Remedy, want.remedy) {
			t.Errorf("finding of %q = %+v, want %s, %q, %q", want.check, f, want.result, want.cause, want.remedy)
		}
	}
	if !r.Failed() {
		t.Error("Failed() = false, want true")
	}
}

// listenPlain listens like a program that is not of wanfed.
func listenPlain(t *testing.T) (addr string) {
	t.Helper()
	srv := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

func TestRun_WrongFiles(t *testing.T) {
	_, paths := machineFiles(t, "")
	m := ReadMachine(append(paths, filepath.Join(t.TempDir(), "missing.hcl")))
	m.Server.KeyFile = m.Gateway.KeyFile
	if err := os.WriteFile(paths[1], []byte("dc = dc2\nwan = \"x\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.findings = append(m.findings, ReadMachine(paths[1:]).findings...)
	r := Run(t.Context(), Config{Machine: m, Client: noServer(t)})
	if f := r.Findings[0]; f.Result != Fail || !strings.HasPrefix(f.Check, "settings") {
		t.Errorf("first finding = %+v, want a failure of the settings", f)
	}
	if f := find(t, r, "files of the server"); f.Result != Fail || !strings.Contains(f.Cause, "key") {
		t.Errorf("finding of the key of another certificate = %+v", f)
	}
	if f := find(t, r, "settings missing.hcl"); f.Result != Fail {
		t.Errorf("finding of a missing file = %+v", f)
	}
}

// startServer starts an HTTP API that responds with a status.
func startServer(t *testing.T, status func(dc string) any) *api.Client {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != api.StatusPath {
			http.NotFound(w, r)
			return
		}
		if err := json.NewEncoder(w).Encode(status(r.URL.Query().Get("dc"))); err != nil {
			t.Errorf("Encode = %v", err)
		}
	}))
	t.Cleanup(srv.Close)
	c, err := api.NewClient(api.ClientConfig{Addr: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Causes of the status are findings. The cause of the headline is the first.
func TestRun_Status(t *testing.T) {
	now := time.Now()
	list := func(clock time.Duration) []api.DatacenterStatus {
		age := (clock + time.Hour).Seconds()
		return []api.DatacenterStatus{
			{Name: "dc1", Own: true, State: api.HealthDegraded, GatewaysHealthy: 1, GatewaysKnown: 1,
				Cause: "2 of 3 servers of dc1 are alive", Advice: "a", UpdatedAt: now.Add(-time.Hour), RecordAge: &age},
			{Name: "dc2", State: api.HealthOneWay, Cause: "dc2 cannot connect to gw1", Advice: "open this port"},
			{Name: "dc3", State: api.HealthOneWay, Cause: "dc3 and dc2 cannot connect to gw1", Advice: "open this port"},
			{Name: "dc4", State: api.HealthOK},
		}
	}
	c := startServer(t, func(dc string) any {
		switch dc {
		case "dc2":
			return api.Status{Datacenter: "dc2", Node: "srv1", Datacenters: list(-10 * time.Minute)}
		case "dc3":
			return api.Status{Datacenter: "dc3", Node: "srv1", Datacenters: list(20 * time.Second)[1:]}
		case "dc4":
			dcs := list(0)
			dcs[0].Outbound, dcs[0].Cause = api.DirectionFailing, "timeout"
			return api.Status{Datacenter: "dc4", Node: "srv1", Datacenters: dcs}
		}
		return api.Status{Datacenter: "dc1", Node: "srv1", Datacenters: list(0),
			Headline:   "dc3 is one way, and 2 more are not ok: dc3 and dc2 cannot connect to gw1",
			Components: []api.ComponentStatus{{Name: "raft", State: "ok"}, {Name: "log", State: "full", Detail: "free space"}}}
	})
	r := Run(t.Context(), Config{Client: c})
	if f := r.Findings[0]; f.Check != "status of dc3" || f.Result != Fail || f.Remedy != "open this port" {
		t.Errorf("first finding = %+v, want that of the headline", f)
	}
	for _, want := range []struct {
		check  string
		result Result
		cause  string
	}{
		{"status of dc1", Warn, "degraded: 2 of 3 servers"}, {"status of dc2", Fail, "one way"}, {"status of dc4", OK, ""},
		{"clock of srv1 in dc1", OK, ""}, {"clock of srv1 in dc2", Fail, "10m0s slow"},
		{"path from dc3", Fail, "dc3 does not know the datacenter dc1"},
		{"path from dc4", Fail, "dc4 does not reach dc1: timeout"},
		{"log of srv1", Warn, "full"}, {"paths", Warn, "not checked without a certificate"},
	} {
		if f := find(t, r, want.check); f.Result != want.result || !strings.Contains(f.Cause, want.cause) {
			t.Errorf("finding of %q = %+v, want %s %q", want.check, f, want.result, want.cause)
		}
	}
	if r := Run(t.Context(), Config{Client: c, Datacenters: []string{"dc4", "dc9"}}); slices.ContainsFunc(r.Findings,
		func(f Finding) bool { return strings.Contains(f.Check, "dc3") }) {
		t.Errorf("findings of dc4 and dc9 = %+v, want none of dc3", r.Findings)
	}
}

// The clock of another datacenter is compared with the time of its response, not
// with that of the report.
func TestReportViews_FastClock(t *testing.T) {
	const fast = 8 * time.Second
	received := time.Now().Add(-fast)
	dc1 := api.DatacenterStatus{
		Name: "dc1", Outbound: api.DirectionOK, UpdatedAt: received.Add(fast - time.Hour), RecordAge: new(time.Hour.Seconds()),
	}
	v := view{dc: "dc2", sent: received.Add(-time.Millisecond), received: received,
		status: api.Status{Datacenter: "dc2", Node: "srv1", Datacenters: []api.DatacenterStatus{dc1}}}
	r := &run{}
	r.reportViews(api.Status{Datacenter: "dc1"}, []view{v}, nil)
	f := find(t, Report{Findings: r.findings}, "clock of srv1 in dc2")
	if f.Result != Warn || !strings.HasPrefix(f.Cause, "8s fast") {
		t.Errorf("finding = %+v, want a clock that is 8s fast", f)
	}
}

// A slow disk is a warning. Only a disk without any response is a failure.
func TestDiskFinding(t *testing.T) {
	times := func(d ...time.Duration) []time.Duration { return d }
	const ms = time.Millisecond
	for _, tt := range []struct {
		times  []time.Duration
		err    error
		result Result
		cause  string
	}{
		{times(ms, 500*ms, ms, 500*ms, ms), nil, OK, "a write to data with fsync takes 1ms"},
		{times(500*ms, ms, 500*ms, ms, 500*ms), nil, Warn, "slow: a write to data with fsync takes 500ms, more than 100ms"},
		{times(3900 * ms), context.DeadlineExceeded, Warn, "slow: only 1 of 5 small writes to data completed within 4s"},
		{nil, context.DeadlineExceeded, Fail, "no small write to data completed within 4s"},
		{times(ms), syscall.ENOSPC, Fail, "cannot write to data: no space left on device"},
		{nil, syscall.ENOENT, OK, "data is not created yet"},
		{nil, syscall.EACCES, Warn, "not checked: this user may not write to data"},
	} {
		if result, cause, _ := diskFinding("data", tt.times, tt.err); result != tt.result || cause != tt.cause {
			t.Errorf("diskFinding(%v, %v) = %s, %q, want %s, %q", tt.times, tt.err, result, cause, tt.result, tt.cause)
		}
	}
}

// A port of an outgoing connection is used by no other listener. It may be free
// at the next start of the server.
func TestRun_PortOfOutgoingConnection(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if listenable(c.LocalAddr().String()) == nil {
		t.Skip("this system permits to listen on the port of an outgoing connection")
	}
	_, paths := machineFiles(t, "")
	m := ReadMachine(paths[:1])
	m.Server.Port = c.LocalAddr().(*net.TCPAddr).Port
	f := find(t, Run(t.Context(), Config{Machine: m, Client: noServer(t)}), "port "+c.LocalAddr().String())
	if f.Result != Warn || !strings.Contains(f.Cause, "nothing listens there") {
		t.Errorf("finding = %+v, want a warning", f)
	}
}

// A server that accepts connections and does not respond is the first cause.
func TestRun_ServerStuck(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := api.NewClient(api.ClientConfig{Addr: ln.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	r := Run(t.Context(), Config{Client: c, Machine: Machine{Server: new(serverd.DefaultSettings())}})
	if f := find(t, r, "server"); f.Result != Fail || !strings.Contains(f.Cause, "does not respond") {
		t.Errorf("finding = %+v, want a stuck server", f)
	}
	if limit := Limit.Seconds(); r.Duration > limit {
		t.Errorf("Run took %.1f s, want at most %.1f s", r.Duration, limit)
	}
}

func TestQuantile(t *testing.T) {
	var all []time.Duration
	for i := range 100 {
		all = append(all, time.Duration(i+1))
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 50, 0.9: 90, 0.99: 99, 1: 100} {
		if got := quantile(all, q); got != want {
			t.Errorf("quantile(%v) = %d, want %d", q, got, want)
		}
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("quantile of nothing = %d, want 0", got)
	}
}
