// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// rivalTime is the time for which two datacenters with one name run.
// WANFED_RIVAL_TIME changes it.
func rivalTime(t *testing.T) time.Duration {
	if text := os.Getenv("WANFED_RIVAL_TIME"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	return 15 * time.Second
}

// valueReader reads one value in dc2 through the primary, again and again.
type valueReader struct {
	reads  int
	failed []string
	done   chan struct{}
}

// readIn starts a reader that runs until ctx ends.
func readIn(ctx context.Context, primary *site, want string) *valueReader {
	r := &valueReader{done: make(chan struct{})}
	go func() {
		defer close(r.done)
		for ctx.Err() == nil {
			got, err := get(primary.server.HTTP + "/v1/kv/name?raw&dc=dc2")
			r.reads++
			if err != nil || got != want {
				r.failed = append(r.failed, fmt.Sprintf("%s: %q, %v", time.Now().Format("15:04:05.000"), got, err))
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	return r
}

func get(url string) (string, error) {
	resp, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(b)))
	}
	return string(b), err
}

// component returns the state of a component, or "" if there is none.
func component(st api.Status, name string) api.ComponentStatus {
	i := slices.IndexFunc(st.Components, func(c api.ComponentStatus) bool { return c.Name == name })
	if i < 0 {
		return api.ComponentStatus{}
	}
	return st.Components[i]
}

// advice returns what s advises about dc.
func (s *site) advice(ctx context.Context, dc string) (string, error) {
	st, err := s.status(ctx)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(st.Datacenters, func(d api.DatacenterStatus) bool { return d.Name == dc })
	if i < 0 {
		return "", fmt.Errorf("%s does not list %s", s.dc, dc)
	}
	return st.Datacenters[i].Advice, nil
}

// TestSameName starts a second datacenter with the name of the first: from a
// copied configuration, and from a clone of the data directory. The first stays
// reachable, the log of the primary does not grow, and the status of both names
// the address of the other.
func TestSameName(t *testing.T) {
	t.Parallel()
	testutil.Cluster(t)
	for _, tt := range []struct {
		name   string
		cloned bool // the data directory was copied too
	}{
		{"copied configuration", false},
		{"cloned data directory", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLoopback(t)
			l.args = []string{"--reads-from", "dc1"}
			primary := l.start("dc1", "dc1")
			genuine := l.start("dc2", "dc1", primary.gateway.WAN)
			l.federated(primary, genuine)
			l.put(t, genuine, "name", "genuine")
			testutil.Await(t, waitLimit, "a read in dc2 through dc1", func(context.Context) error {
				_, err := get(primary.server.HTTP + "/v1/kv/name?raw&dc=dc2") // status may list dc2 before a path to it
				return err
			})
			if tt.cloned {
				copyDir(t, filepath.Join(l.dir, "dc2-srv1", "data"), filepath.Join(l.dir, "copy-srv1", "data"))
			}
			before := appliedEntries(t, primary)
			ctx, cancel := context.WithCancel(t.Context())
			reads := readIn(ctx, primary, "genuine")

			second := l.startIn("copy", "dc2", "dc1", primary.gateway.WAN)
			wantAdvice(t, primary, "dc2", second.gateway.WAN)
			wantAdvice(t, genuine, "dc2", second.gateway.WAN)
			wantAdvice(t, second, "dc2", genuine.gateway.WAN)
			time.Sleep(rivalTime(t)) // the measured time
			cancel()
			<-reads.done

			if n := appliedEntries(t, primary) - before; n >= 50 {
				t.Errorf("the log of the primary grew by %d entries, want fewer than 50", n)
			}
			if len(reads.failed) > 0 {
				t.Errorf("%d of %d reads in dc2 failed: %v", len(reads.failed), reads.reads, reads.failed)
			}
			if reads.reads < 100 {
				t.Errorf("reads = %d, want at least 100", reads.reads)
			}
			for _, path := range l.paths(t, primary, "dc2") {
				if path == second.gateway.WAN {
					t.Errorf("paths of dc1 to dc2 contain %s, the gateway of the refused datacenter", path)
				}
			}
			st, err := second.status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if c := component(st, "identity"); c.State != "refused" {
				t.Errorf("identity of the second datacenter = %+v, want it refused", c)
			}
			if !tt.cloned {
				l.replace(t, primary, st, genuine, second)
			}
		})
	}
}

// TestSameName_Servers starts another server with the name of a running server
// of its datacenter: with an empty data directory, and with a clone of the data
// directory. The new server is refused. The datacenter does not change, not
// even when the first server restarts.
func TestSameName_Servers(t *testing.T) {
	t.Parallel()
	testutil.Cluster(t)
	for _, cloned := range []bool{false, true} {
		t.Run(fmt.Sprintf("cloned=%v", cloned), func(t *testing.T) {
			l := newLoopback(t)
			l.args = []string{"--reads-from", "dc1"}
			group := l.grow(t, 2)
			first, other := group.servers[0], group.servers[1]
			second := l.newDiskServer(t, "srv1", func(c *subprocess.ServerConfig) {
				c.Dir = filepath.Join(l.dir, "second")
				c.RetryJoin = []string{other.server.Addr}
			})
			if cloned {
				copyDir(t, first.data(), second.data())
			}
			second.start()
			awaitIdentity(t, second, "refused", first.server.Addr)
			awaitIdentity(t, first, "conflict", second.server.Addr)
			group.awaitWhole(t, waitLimit)
			wantMember(t, other, "srv1", first.server.Addr)

			first.stopClean()
			first.start()
			group.awaitWhole(t, waitLimit)
			wantMember(t, other, "srv1", first.server.Addr)
			awaitIdentity(t, second, "refused", first.server.Addr)
		})
	}
}

// TestSameName_Gateways starts another gateway with the name of a running
// gateway. The new gateway is refused, and status names both. When the first
// gateway stops or fails, another one takes the name without an operator.
func TestSameName_Gateways(t *testing.T) {
	t.Parallel()
	testutil.Cluster(t)
	l := newLoopback(t)
	l.args = []string{"--reads-from", "dc1"}
	dc1 := l.start("dc1", "dc1")
	dc2 := l.start("dc2", "dc1", dc1.gateway.WAN)
	l.federated(dc1, dc2)
	first := dc2.gateway
	second := l.secondGateway(t, dc2, "second")
	logOf(second.Process).await(t, `msg="cannot register".*`+first.WAN+`.*`+second.WAN+`.*stop one of the two`)
	wantAdvice(t, dc2, "dc2", second.WAN)
	wantAdvice(t, dc2, "dc2", first.WAN)
	if paths := l.paths(t, dc1, "dc2"); slices.Contains(paths, second.WAN) {
		t.Errorf("paths of dc1 to dc2 = %v, want none to the refused gateway %s", paths, second.WAN)
	}

	awaitWAN := func(event, want string, limit time.Duration) {
		t.Helper()
		took := testutil.Await(t, waitLimit, event, func(ctx context.Context) error {
			states, err := dc1.states(ctx)
			for _, st := range states {
				for _, g := range st.MeshGateways {
					if a := g.Service.TaggedAddresses["wan"]; st.Datacenter == "dc2" &&
						net.JoinHostPort(a.Address, strconv.Itoa(int(a.Port))) == want {
						return nil
					}
				}
			}
			return errors.Join(err, errors.New("dc1 has another address"))
		})
		if took > limit {
			t.Errorf("%s took %v, want at most %v", event, took, limit)
		}
		t.Logf("%s took %v", event, took.Round(time.Millisecond))
	}
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitWAN("the second gateway takes the name after the first has stopped", second.WAN, 5*time.Second)
	second.Kill()
	third := l.secondGateway(t, dc2, "third")
	awaitWAN("a third gateway takes the name after the second has failed", third.WAN, 6*time.Second)
	testutil.Await(t, waitLimit, "status without a conflict", func(ctx context.Context) error {
		advice, err := dc2.advice(ctx, "dc2")
		if err == nil && strings.Contains(advice, "another name") {
			err = fmt.Errorf("advice is %q", advice)
		}
		return err
	})
}

// TestSameName_Primary replaces the primary by a datacenter of the same name that
// has no data, behind the same gateway address. The secondary keeps its replicas
// and names both groups, until the first primary returns, or an operator accepts
// the other one.
func TestSameName_Primary(t *testing.T) {
	t.Parallel()
	testutil.Cluster(t)
	l := newLoopback(t)
	l.args = []string{"--reads-from", "dc1"}
	first := l.start("dc1", "dc1")
	wan := first.gateway.WAN
	dc2 := l.start("dc2", "dc1", wan)
	l.federated(first, dc2)
	group := groupID(t, first)
	stop := func(s *site) { s.gateway.Kill(); s.server.Kill() }

	stop(first)
	other := l.startAt(t, "other", wan)
	otherGroup := groupID(t, other)
	if otherGroup == group {
		t.Fatalf("group id of the other datacenter = %s, want another one", group)
	}
	wantAdvice(t, dc2, "dc1", "replace dc1 --id "+otherGroup+" --datacenter dc2")
	wantAdvice(t, dc2, "dc1", group+" at "+wan)
	logOf(dc2.server.Process).await(t, `msg="cannot follow the primary".*`+group+`.*`+otherGroup)
	wantAdvice(t, other, "dc1", group)
	states, err := dc2.states(t.Context())
	if err != nil || len(states) != 2 {
		t.Errorf("federation states in dc2 = %+v, %v, want those of dc1 and dc2", states, err)
	}

	stop(other)
	first = l.startAt(t, "dc1", wan)
	took := testutil.Await(t, waitLimit, "the first primary is followed", notRefused(dc2))
	t.Logf("the first primary is followed after %v", took.Round(time.Millisecond))
	if got := groupID(t, first); got != group {
		t.Errorf("group id after the restart = %s, want %s", got, group)
	}

	stop(first)
	other = l.startAt(t, "other", wan)
	wantAdvice(t, dc2, "dc1", otherGroup)
	op := l.ca.Files(t, tlsutil.RoleOperator, "op", "dc2")
	out, err := exec.CommandContext(t.Context(), l.bin, "federation", "replace", "dc1", "--id", otherGroup,
		"--datacenter", "dc2", "--http-addr", dc2.server.HTTP,
		"--ca-file", op.CA, "--cert-file", op.Cert, "--key-file", op.Key).CombinedOutput()
	if err != nil || !strings.Contains(string(out), group) {
		t.Fatalf("federation replace = %v: %s, want the previous group", err, out)
	}
	testutil.Await(t, waitLimit, "the other primary is followed", notRefused(dc2))
	l.federated(other, dc2)
}

// notRefused checks that the secondary s follows its primary.
func notRefused(s *site) func(context.Context) error {
	return func(ctx context.Context) error {
		st, err := s.status(ctx)
		if c := component(st, "replication"); err == nil && c.State != "ok" {
			err = fmt.Errorf("replication is %s: %s", c.State, c.Detail)
		}
		return err
	}
}

// groupID waits for the id of the Raft group of s.
func groupID(t *testing.T, s *site) (id string) {
	t.Helper()
	testutil.Await(t, waitLimit, "a group id", func(ctx context.Context) error {
		st, err := s.status(ctx)
		var ok bool
		if id, ok = strings.CutPrefix(component(st, "identity").Detail, "group id "); err == nil &&
			(!ok || strings.Contains(id, " ")) {
			err = fmt.Errorf("identity is %+v", component(st, "identity"))
		}
		return err
	})
	return id
}

// startAt starts the primary dc1 with a gateway at a given WAN address.
func (l *loopback) startAt(t *testing.T, prefix, wan string) *site {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	s := &site{dc: "dc1"}
	var err error
	s.server, err = subprocess.StartServer(ctx, subprocess.ServerConfig{
		Program: []string{l.bin}, Dir: filepath.Join(l.dir, prefix+"-srv1"), DC: "dc1", Node: "srv1",
		TLS: l.ca.Files(t, tlsutil.RoleServer, "srv1", "dc1"), PrimaryDC: "dc1", LogLevel: l.log,
	})
	if err != nil {
		t.Fatal(err)
	}
	l.keep(s.server.Process)
	s.gateway, err = subprocess.StartGateway(ctx, subprocess.GatewayConfig{
		Program: []string{l.bin}, Dir: filepath.Join(l.dir, prefix+"-gw1"), DC: "dc1", Node: "gw1", WAN: wan,
		TLS: l.ca.Files(t, tlsutil.RoleGateway, "gw1", "dc1"), Servers: []string{s.server.Addr}, LogLevel: l.log,
	})
	if err != nil {
		t.Fatal(err)
	}
	l.keep(s.gateway.Process)
	return s
}

// secondGateway starts another gateway with the name of the gateway of s.
func (l *loopback) secondGateway(t *testing.T, s *site, dir string) *subprocess.Gateway {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	g, err := subprocess.StartGateway(ctx, subprocess.GatewayConfig{
		Program: []string{l.bin}, Dir: filepath.Join(l.dir, dir), DC: s.dc, Node: "gw1",
		TLS:     l.ca.Files(t, tlsutil.RoleGateway, "gw1", s.dc),
		Servers: []string{s.server.Addr}, LogLevel: l.log,
	})
	if err != nil {
		t.Fatal(err)
	}
	l.keep(g.Process)
	return g
}

// TestSameName_StolenCertificate calls a server with a copy of its certificate,
// and claims to be an older server that is in the group. The server stays in
// its pools.
func TestSameName_StolenCertificate(t *testing.T) {
	t.Parallel()
	testutil.Cluster(t)
	l := newLoopback(t)
	l.args = []string{"--reads-from", "dc1"}
	group := l.grow(t, 2)
	first, other := group.servers[0], group.servers[1]
	claim := func() {
		t.Helper()
		cc := l.call(t, first.server.Addr, "srv1.server.dc1.wanfed", tlsutil.RoleServer, "srv1", "dc1")
		got, err := pb.NewServerServiceClient(cc).Identify(t.Context(), &pb.ServerIdentity{
			Instance: "stolen", Uptime: durationpb.New(10000 * time.Hour), Address: "127.0.0.1:1", InGroup: true,
		})
		if err != nil || got.GetInstance() == "" {
			t.Fatalf("Identify() = %v, %v, want the identity of srv1", got, err)
		}
	}
	claim()
	awaitIdentity(t, first, "conflict", "127.0.0.1:1")
	first.server.Kill()
	first.start()
	claim() // while it has no contact with its group yet
	awaitIdentity(t, first, "conflict", "127.0.0.1:1")
	group.awaitWhole(t, waitLimit)
	wantMember(t, other, "srv1", first.server.Addr)
	awaitIdentity(t, first, "conflict", "127.0.0.1:1")
}

// awaitIdentity waits until the identity of d has a state and names an address.
func awaitIdentity(t *testing.T, d *diskServer, state, addr string) {
	t.Helper()
	testutil.Await(t, waitLimit, d.config.Node+" is "+state, func(ctx context.Context) error {
		st, err := (&site{dc: "dc1", server: d.server}).status(ctx)
		if c := component(st, "identity"); err == nil && (c.State != state || !strings.Contains(c.Detail, addr)) {
			err = fmt.Errorf("identity is %s: %s, want %s with %s", c.State, c.Detail, state, addr)
		}
		return err
	})
}

// wantMember checks the address of a member of the LAN pool of d.
func wantMember(t *testing.T, d *diskServer, name, addr string) {
	t.Helper()
	var members []api.Member
	body, err := get(d.server.HTTP + "/v1/agent/members")
	if err == nil {
		err = json.Unmarshal([]byte(body), &members)
	}
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(members, func(m api.Member) bool { return m.Name == name })
	if i < 0 || net.JoinHostPort(members[i].Addr, strconv.Itoa(int(members[i].Port))) != addr {
		t.Errorf("members of %s = %+v, want %s at %s", d.config.Node, members, name, addr)
	}
}

// replace makes the second datacenter the accepted one, and waits until the
// primary reads from it.
func (l *loopback) replace(t *testing.T, primary *site, st api.Status, genuine, second *site) {
	t.Helper()
	_, id, ok := strings.Cut(component(st, "identity").Detail, "--id ")
	if !ok {
		t.Fatalf("identity = %+v, want a command with the id", component(st, "identity"))
	}
	op := l.ca.Files(t, tlsutil.RoleOperator, "op", "dc1")
	out, err := exec.CommandContext(t.Context(), l.bin, "federation", "replace", "dc2", "--id", id, "--http-addr",
		primary.server.HTTP,
		"--ca-file", op.CA, "--cert-file", op.Cert, "--key-file", op.Key).CombinedOutput()
	if err != nil {
		t.Fatalf("federation replace = %v: %s", err, out)
	}
	l.put(t, second, "name", "rebuilt")
	wantAdvice(t, genuine, "dc2", second.gateway.WAN)
	testutil.Await(t, waitLimit, "reads from the new dc2", func(context.Context) error {
		got, err := get(primary.server.HTTP + "/v1/kv/name?raw&dc=dc2")
		if err == nil && got != "rebuilt" {
			err = fmt.Errorf("read %q", got)
		}
		return err
	})
}

func wantAdvice(t *testing.T, s *site, dc, want string) {
	t.Helper()
	took := testutil.Await(t, waitLimit, "advice about "+dc+" with "+want, func(ctx context.Context) error {
		got, err := s.advice(ctx, dc)
		if err == nil && !strings.Contains(got, want) {
			err = fmt.Errorf("advice is %q", got)
		}
		return err
	})
	t.Logf("%s at %s names %s after %v", s.dc, s.server.Addr, want, took.Round(time.Millisecond))
}

// paths returns the addresses of the paths of s to dc.
func (l *loopback) paths(t *testing.T, s *site, dc string) (addrs []string) {
	t.Helper()
	st, err := s.status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range st.Datacenters {
		for _, p := range d.Paths {
			if d.Name == dc {
				addrs = append(addrs, p.Address)
			}
		}
	}
	if len(addrs) == 0 {
		t.Errorf("%s has no path to %s", s.dc, dc)
	}
	return addrs
}

// put writes a value at s as an operator.
func (l *loopback) put(t *testing.T, s *site, key, value string) {
	t.Helper()
	d := &diskServer{loopback: l, server: s.server, client: &http.Client{Transport: &http.Transport{
		TLSClientConfig: l.client(t, tlsutil.RoleOperator, "op", s.dc, "server."+s.dc+".wanfed"),
	}}}
	testutil.Await(t, waitLimit, "a write of "+key, func(context.Context) error {
		if status, answer, _ := d.request(http.MethodPut, key, []byte(value)); status != http.StatusOK {
			return fmt.Errorf("%d %s", status, answer)
		}
		return nil
	})
}

// appliedEntries returns the number of entries of the Raft log that s has
// applied since it started.
func appliedEntries(t *testing.T, s *site) int {
	t.Helper()
	n := int(metric(t, s.server.HTTP, "wanfed_raft_fsm_apply_batch_num_sum"))
	if n == 0 {
		t.Fatal("the metric of applied entries is missing")
	}
	return n
}

// copyDir copies a directory with its files.
func copyDir(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(to, 0o700); err != nil {
		t.Fatal(err)
	}
}
