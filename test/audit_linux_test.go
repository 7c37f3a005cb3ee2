// SPDX-License-Identifier: MPL-2.0

package test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/kv"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/revocation"
	"github.com/wanfed/wanfed/server/audit"
	"github.com/wanfed/wanfed/tlsutil"
)

// auditDay is a scripted day of two datacenters with audit logs. The three
// servers of dc1 and the server of dc2 have a log each.
type auditDay struct {
	*trio
	dc2     *site
	disk    string // small file system of the audit log of dc2
	clients map[string]*http.Client
	conns   map[string]*grpc.ClientConn
	alive   []int // servers of dc1 that run

	writes  []auditWrite
	denials []string // method and caller, each once
	actions []auditAction
	killed  string // server of dc1
}

// auditAction is an action of an operator that succeeded.
type auditAction struct {
	at, method string
	target     string // in the line; or ""
	resource   string // verb, type and name in the line; or ""
	failed     int    // earlier attempts, which may have a line
}

// auditWrite is a write of a key that was acknowledged.
type auditWrite struct {
	key, dc string
	through string // the server of dc2 has forwarded it; or ""
	unknown int    // earlier attempts with an unknown outcome
}

// TestAudit runs a scripted day: 200 writes by HTTP, gRPC and ?dc=, 50 denials
// and 10 actions of operators in two datacenters. The leader of dc1 is killed,
// and the disk of the audit log of dc2 is full for a while. The audit logs have
// one line for each, with the caller, in order, and no value.
func TestAudit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	disk := filepath.Join(dir, "dc2")
	smallDisk(t, disk, 32)
	flag := func(name string) []string { return []string{"--audit-log", filepath.Join(dir, name, "audit.log")} }
	d := &auditDay{
		disk: disk, clients: map[string]*http.Client{}, conns: map[string]*grpc.ClientConn{}, alive: []int{0, 1, 2},
	}
	d.trio = newTrio(t, func(node string) []string {
		if err := os.MkdirAll(filepath.Join(dir, node), 0o700); err != nil {
			t.Fatal(err)
		}
		return append(flag(node), "--allow-remote-writes-from", "dc2")
	})
	gateway := d.startGateway(t)
	d.args = flag("dc2")
	d.dc2 = d.start("dc2", "dc1", gateway.WAN)
	testutil.Await(t, waitLimit, "federation", func(ctx context.Context) error {
		states, err := d.dc2.states(ctx)
		if err == nil && len(states) < 2 {
			err = errors.New("dc2 has no replica of both federation states")
		}
		return err
	})

	for i := range 200 {
		switch i {
		case 100:
			leader := d.leader()
			d.servers[leader].Process.Kill()
			d.killed = d.servers[leader].Node
			d.alive = slices.DeleteFunc(d.alive, func(s int) bool { return s == leader })
		case 150:
			d.fullDisk(t)
		}
		d.write(t, i)
		if i%4 == 0 {
			d.deny(t, i/4)
		}
		if i%20 == 10 {
			d.operate(t, i/20)
		}
	}
	var lines []audit.Line
	logs := []string{"srv1", "srv2", "srv3", "dc2"}
	testutil.Await(t, waitLimit, "all lines", func(context.Context) error {
		lines = nil
		for _, name := range logs {
			some, err := auditLines(filepath.Join(dir, name, "audit.log"))
			if err != nil {
				return err
			}
			lines = append(lines, some...)
		}
		return d.complete(lines)
	})
	d.ordered(t, lines)
}

// startGateway starts the gateway of dc1.
func (d *auditDay) startGateway(t *testing.T) *subprocess.Gateway {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	var servers []string
	for _, s := range d.servers {
		servers = append(servers, s.Addr)
	}
	g, err := subprocess.StartGateway(ctx, subprocess.GatewayConfig{
		Program: []string{d.bin}, Dir: filepath.Join(d.dir, "gw1"), DC: "dc1", Node: "gw1",
		TLS: d.files(tlsutil.RoleGateway, "gw1", "dc1"), Servers: servers, WAN: loopbackAddr(unusedPort(t)), LogLevel: "info",
	})
	if err != nil {
		t.Fatal(err)
	}
	d.keep(g.Process)
	return g
}

// server returns the address and the HTTP URL of a server: "dc2", or the n-th
// running server of dc1.
func (d *auditDay) server(dc string, n int) *subprocess.Server {
	if dc == "dc2" {
		return d.dc2.server
	}
	return d.servers[d.alive[n%len(d.alive)]]
}

// http makes a request by role/dc/node, or "" without a certificate.
func (d *auditDay) http(ctx context.Context, t *testing.T, s *subprocess.Server, by, method, path, body string) (int, string) {
	t.Helper()
	client, base := http.DefaultClient, s.HTTP
	if by != "" {
		base = strings.Replace(base, "http:", "https:", 1)
		if d.clients[by] == nil {
			parts := strings.Split(by, "/")
			d.clients[by] = &http.Client{Transport: &http.Transport{
				TLSClientConfig: d.trio.loopback.client(t, tlsutil.Role(parts[0]), parts[2], parts[1], "localhost"),
			}}
			t.Cleanup(d.clients[by].CloseIdleConnections)
		}
		client = d.clients[by]
	}
	req, err := http.NewRequestWithContext(ctx, method, base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, strings.TrimSpace(string(b))
}

// grpc returns a connection to a server.
func (d *auditDay) grpc(t *testing.T, s *subprocess.Server, role tlsutil.Role, node, dc string) *grpc.ClientConn {
	t.Helper()
	key := fmt.Sprint(s.Addr, role, node, dc)
	if d.conns[key] == nil {
		d.conns[key] = d.call(t, s.Addr, "server."+s.DC+".wanfed", role, node, dc)
	}
	return d.conns[key]
}

// write writes a key until the write is acknowledged. The value is secret.
func (d *auditDay) write(t *testing.T, i int) {
	t.Helper()
	w := auditWrite{key: fmt.Sprintf("day/%03d", i), dc: "dc1"}
	var once func(ctx context.Context, n int) error
	byHTTP := func(at, by, query string) func(context.Context, int) error {
		return func(ctx context.Context, n int) error {
			code, text := d.http(ctx, t, d.server(at, n), by, "PUT", "/v1/kv/"+w.key+query, "secret-value")
			if code != 200 || text != "true" {
				return fmt.Errorf("%d %s", code, text)
			}
			return nil
		}
	}
	switch i % 4 {
	case 0:
		once = byHTTP("dc1", "cli/dc1/op", "")
	case 1:
		once = func(ctx context.Context, n int) error {
			r := &pb.Resource{Id: resource.ID(kv.EntryType, w.key)}
			if err := resource.SetData(r, &pb.KVEntry{Value: []byte("secret-value")}); err != nil {
				return err
			}
			cc := d.grpc(t, d.server("dc1", n), tlsutil.RoleOperator, "op", "dc1")
			_, err := pb.NewResourceServiceClient(cc).Write(ctx, &pb.WriteRequest{Resource: r})
			return err
		}
	case 2:
		w.dc = "dc2"
		refused, accepted := byHTTP("dc2", "cli/dc2/op", "?token=secret-token"), byHTTP("dc2", "cli/dc2/op", "")
		once = func(ctx context.Context, n int) error {
			if err := refused(ctx, n); err == nil {
				return errors.New("a write with an ACL token is accepted")
			}
			return accepted(ctx, n)
		}
	case 3:
		w.through = "dc2"
		once = byHTTP("dc2", "cli/dc2/op", "?dc=dc1")
	}
	n := i
	testutil.Await(t, waitLimit, "write of "+w.key, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		err := once(ctx, n)
		if n++; err != nil {
			w.unknown++
		}
		return err
	})
	d.writes = append(d.writes, w)
}

// deny makes one call that is refused.
func (d *auditDay) deny(t *testing.T, i int) {
	t.Helper()
	name := fmt.Sprintf("denied/%02d", i)
	type attempt struct{ at, by, method string }
	try := []attempt{
		{"dc1", "", "PUT"}, {"dc1", "gateway/dc1/gw1", "GET"}, {"dc2", "client/dc1/app", "GET"}, {"dc2", "cli/dc1/op", "DELETE"},
		{"dc1", "client/dc1/app", "gRPC"},
	}[i%5]
	if try.method != "gRPC" {
		method := try.method + " /v1/kv/" + name
		testutil.Await(t, waitLimit, "refusal", func(ctx context.Context) error {
			if code, text := d.http(ctx, t, d.server(try.at, i), try.by, try.method, "/v1/kv/"+name, "secret-value"); code != 403 {
				return fmt.Errorf("%s by %q at %s = %d %s, want 403", method, try.by, try.at, code, text)
			}
			return nil
		})
		d.denials = append(d.denials, method+" "+cmp.Or(try.by, "anonymous"))
		return
	}
	cc := d.grpc(t, d.server("dc1", i), tlsutil.RoleClient, fmt.Sprintf("app%d", i), "dc1")
	testutil.Await(t, waitLimit, "refusal", func(ctx context.Context) error {
		_, err := pb.NewOperatorServiceClient(cc).RemovePeer(ctx, &pb.RemovePeerRequest{Node: "srv1"})
		if status.Code(err) != codes.PermissionDenied {
			return fmt.Errorf("RemovePeer() by a client = %w, want %v", err, codes.PermissionDenied)
		}
		return nil
	})
	d.denials = append(d.denials, fmt.Sprintf("%s client/dc1/app%d", pb.OperatorService_RemovePeer_FullMethodName, i))
}

// operate does action i of an operator: snapshots in both datacenters, leadership
// transfers, the removal of the killed server, policies and a revocation.
func (d *auditDay) operate(t *testing.T, i int) {
	t.Helper()
	write := func(ctx context.Context, cc *grpc.ClientConn, id *pb.ID, data proto.Message) error {
		r := &pb.Resource{Id: id}
		err := resource.SetData(r, data)
		if err == nil {
			_, err = pb.NewResourceServiceClient(cc).Write(ctx, &pb.WriteRequest{Resource: r})
		}
		return err
	}
	a := auditAction{at: "dc1"}
	var do func(context.Context, *grpc.ClientConn) error
	switch i {
	case 0, 1, 4, 9:
		a.at, a.method = "dc1", pb.OperatorService_SaveSnapshot_FullMethodName
		save := pb.OperatorServiceClient.SaveSnapshot
		if i == 1 || i == 4 {
			a.at = "dc2"
		}
		if i == 4 {
			a.method, save = pb.OperatorService_SaveSnapshotHere_FullMethodName, pb.OperatorServiceClient.SaveSnapshotHere
		}
		do = func(ctx context.Context, cc *grpc.ClientConn) error {
			stream, err := save(pb.NewOperatorServiceClient(cc), ctx, &pb.SaveSnapshotRequest{})
			for err == nil {
				_, err = stream.Recv()
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	case 2, 6:
		leader := d.leader()
		a.method = pb.OperatorService_TransferLeader_FullMethodName
		a.target = d.servers[d.alive[(slices.Index(d.alive, leader)+1)%len(d.alive)]].Node
		do = func(ctx context.Context, cc *grpc.ClientConn) error {
			_, err := pb.NewOperatorServiceClient(cc).TransferLeader(ctx, &pb.TransferLeaderRequest{Node: a.target})
			return err
		}
	case 3, 7:
		id, data := resource.ID(policy.Type, fmt.Sprintf("joe%d", i)), &pb.Policy{}
		a.method, a.resource = pb.ResourceService_Write_FullMethodName, "write policy/v1/Policy "+id.Name
		do = func(ctx context.Context, cc *grpc.ClientConn) error { return write(ctx, cc, id, data) }
	case 5:
		a.method, a.target = pb.OperatorService_RemovePeer_FullMethodName, d.killed
		do = func(ctx context.Context, cc *grpc.ClientConn) error {
			_, err := pb.NewOperatorServiceClient(cc).RemovePeer(ctx, &pb.RemovePeerRequest{Node: a.target})
			return err
		}
	case 8:
		list, err := tlsutil.Revoke(tlsutil.RevokeRequest{CA: d.ca.Pair, Names: []string{"stolen.server.dc9.wanfed"}})
		if err != nil {
			t.Fatal(err)
		}
		id, data := resource.ID(revocation.Type, list.ID()), &pb.RevocationList{Pem: string(list.PEM())}
		a.method, a.resource = pb.ResourceService_Write_FullMethodName, "write tls/v1/RevocationList "+id.Name
		do = func(ctx context.Context, cc *grpc.ClientConn) error { return write(ctx, cc, id, data) }
	}
	testutil.Await(t, waitLimit, fmt.Sprintf("action %d of an operator", i), func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, waitLimit/2)
		defer cancel()
		err := do(ctx, d.grpc(t, d.server(a.at, i+a.failed), tlsutil.RoleOperator, "op", a.at))
		if err != nil {
			a.failed++
		}
		return err
	})
	d.actions = append(d.actions, a)
}

// isLine reports whether l is the line of a.
func (a auditAction) isLine(l audit.Line) bool {
	return l.Datacenter == a.at && auditCaller(l) == "cli/"+a.at+"/op" && l.Outcome == audit.OK && l.Method == a.method &&
		l.Target == a.target && (a.resource == "" || slices.ContainsFunc(l.Resources, func(r audit.Resource) bool {
		return r.Verb+" "+r.Type+" "+r.Name == a.resource
	}))
}

// fullDisk fills the disk of the audit log of dc2. Writes there are refused,
// reads and denials go on, and the metric and the status name the cause.
func (d *auditDay) fullDisk(t *testing.T) {
	t.Helper()
	filler := filepath.Join(d.disk, "filler")
	f, err := os.OpenFile(filler, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(f, zeros{}, 64<<20); err == nil {
		t.Fatal("the disk of the audit log has more than 64 MiB")
	}
	_ = f.Close()
	testutil.Await(t, waitLimit, "audit log not writable", func(context.Context) error {
		if metric(t, d.dc2.server.HTTP, "wanfed_audit_writable") != 0 {
			return errors.New("wanfed_audit_writable is 1")
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	code, text := d.http(ctx, t, d.dc2.server, "cli/dc2/op", "PUT", "/v1/kv/full", "secret-value")
	if code != 500 || !strings.Contains(text, "audit log of srv1") || !strings.Contains(text, "free space") {
		t.Errorf("write with a full audit log = %d %s, want 500 with the remedy", code, text)
	}
	if code, text := d.http(ctx, t, d.dc2.server, "cli/dc2/op", "GET", "/v1/kv/day/146?raw", ""); code != 200 || text != "secret-value" {
		t.Errorf("read with a full audit log = %d %s, want 200", code, text)
	}
	if code, _ := d.http(ctx, t, d.dc2.server, "cli/dc2/op", "GET", "/v1/kv/full", ""); code != 404 {
		t.Errorf("read of the refused write = %d, want 404", code)
	}
	st, err := d.dc2.status(ctx)
	if err != nil || !slices.ContainsFunc(st.Components, func(c api.ComponentStatus) bool {
		return c.Name == "audit log" && c.State == "cannot be written"
	}) {
		t.Errorf("status with a full audit log = %+v, %v, want the component", st.Components, err)
	}
	d.deny(t, 100+2) // its line follows
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// auditLines returns the lines of an audit log. They must be complete and in
// order, and must contain no value and no token.
func auditLines(path string) (out []audit.Line, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for text := range strings.Lines(string(b)) {
		var l audit.Line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			return nil, fmt.Errorf("line %q of %s: %w", text, path, err)
		}
		switch n := len(out); {
		case strings.Contains(text, "secret-"):
			return nil, fmt.Errorf("line %q of %s has a value or a token", text, path)
		case n > 0 && l.Time.Before(out[n-1].Time):
			return nil, fmt.Errorf("line %q of %s is older than the line before", text, path)
		case l.Outcome == audit.Dropped:
			return nil, fmt.Errorf("line %q of %s: lines were dropped", text, path)
		}
		out = append(out, l)
	}
	return out, nil
}

func auditCaller(l audit.Line) string {
	switch {
	case l.Caller == nil:
		return ""
	case l.Caller.Role == "anonymous":
		return l.Caller.Role
	case l.Caller.Role == "operator":
		return "cli/" + l.Caller.Datacenter + "/" + l.Caller.Name
	}
	return l.Caller.Role + "/" + l.Caller.Datacenter + "/" + l.Caller.Name
}

// stores reports whether l is the line of a write of key in the store of dc.
func stores(l audit.Line, w auditWrite) bool {
	return l.Datacenter == w.dc && l.Outcome == audit.OK && l.Index > 0 && slices.ContainsFunc(l.Resources, func(r audit.Resource) bool {
		return r.Verb == "write" && r.Type == "kv/v1/Entry" && r.Name == w.key
	})
}

// complete returns an error unless the lines have everything that was done.
func (d *auditDay) complete(lines []audit.Line) error {
	for _, w := range d.writes {
		stored, forwarded := 0, 0
		for _, l := range lines {
			switch {
			case stores(l, w):
				stored++
				if l.Address == "" && l.Via == nil {
					return fmt.Errorf("line %+v of %s has no address", l, w.key)
				}
				if w.through != "" && (l.Via == nil || l.Via.Datacenter != "dc2" || auditCaller(l) != "cli/dc2/op") {
					return fmt.Errorf("line %+v of %s, want the caller and the server of dc2", l, w.key)
				}
			case w.through != "" && l.Datacenter == "dc2" && l.Outcome == audit.OK && l.Method == "PUT /v1/kv/"+w.key+"?dc=dc1":
				forwarded++
			}
		}
		if stored < 1 || stored > 1+w.unknown {
			return fmt.Errorf("lines of the write of %s in %s = %d after %d unknown outcomes", w.key, w.dc, stored, w.unknown)
		}
		if w.through != "" && forwarded != 1 {
			return fmt.Errorf("lines of the write of %s in dc2, which forwarded it = %d, want 1", w.key, forwarded)
		}
	}
	denied := map[string]int{}
	for _, l := range lines {
		if l.Outcome == audit.Denied && l.Reason != "" {
			denied[l.Method+" "+auditCaller(l)]++
		}
	}
	for _, call := range d.denials {
		if denied[call] != 1 {
			return fmt.Errorf("lines of the denied %s = %d, want 1", call, denied[call])
		}
	}
	for _, a := range d.actions {
		same := 0
		for _, other := range d.actions {
			if other.at == a.at && other.method == a.method && other.target == a.target && other.resource == a.resource {
				same += 1 + other.failed
			}
		}
		n := 0
		for _, l := range lines {
			if a.isLine(l) {
				n++
			}
		}
		if n == 0 || n > same {
			return fmt.Errorf("lines of the action %+v = %d, want %d", a, n, same)
		}
	}
	return nil
}

// ordered proves that the indexes of each datacenter have the order of the
// writes, over all servers.
func (d *auditDay) ordered(t *testing.T, lines []audit.Line) {
	t.Helper()
	last := map[string]uint64{}
	for _, w := range d.writes {
		var index uint64
		for _, l := range lines {
			if stores(l, w) {
				index = max(index, l.Index)
			}
		}
		if index <= last[w.dc] {
			t.Errorf("index of the write of %s in %s = %d, want above %d", w.key, w.dc, index, last[w.dc])
		}
		last[w.dc] = index
	}
	t.Logf("%d lines of %d writes, %d denials and %d actions of operators", len(lines), len(d.writes), len(d.denials), len(d.actions))
}
