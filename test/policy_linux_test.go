// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// policyLab is a federation of three datacenters. The servers of dc2 accept
// operators and users of dc1, and no others accept any.
type policyLab struct {
	*loopback
	sites   map[string]*site
	clients map[string]*http.Client // by caller; "" has no certificate
}

// do makes an HTTP request at a server of dc and returns the status and the
// body. by is role/dc/node, or "" for a request without a certificate.
func (p *policyLab) do(t *testing.T, by, dc, method, path, body string) (int, string) {
	t.Helper()
	base := p.sites[dc].server.HTTP
	c := http.DefaultClient
	if by != "" {
		base = strings.Replace(base, "http:", "https:", 1)
		if p.clients[by] == nil {
			role, rest, _ := strings.Cut(by, "/")
			home, node, _ := strings.Cut(rest, "/")
			p.clients[by] = &http.Client{Transport: &http.Transport{
				TLSClientConfig: p.client(p.t, tlsutil.Role(role), node, home, "localhost"),
			}}
			p.t.Cleanup(p.clients[by].CloseIdleConnections)
		}
		c = p.clients[by]
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatalf("%s %s by %q at %s = %v", method, path, by, dc, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(b))
}

// want makes a request and compares the status, and a part of the body.
func (p *policyLab) want(t *testing.T, status int, part, by, dc, method, path, body string) {
	t.Helper()
	got, text := p.do(t, by, dc, method, path, body)
	if got != status || !strings.Contains(text, part) {
		t.Errorf("%s %s by %q at %s = %d %s, want %d with %q", method, path, by, dc, got, text, status, part)
	}
}

// run calls the command wanfed with an operator's certificate of dc1, and
// returns its output.
func (p *policyLab) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	op := p.ca.Files(t, tlsutil.RoleOperator, "op", "dc1")
	args = append(args, "--http-addr", strings.Replace(p.sites["dc1"].server.HTTP, "http:", "https:", 1),
		"--ca-file", op.CA, "--cert-file", op.Cert, "--key-file", op.Key)
	out, err := exec.CommandContext(t.Context(), p.bin, args...).CombinedOutput()
	return string(out), err
}

// TestPolicy proves what a certificate, or a process without one, can do in a
// federation. Each subtest is an attack, or a row of the threat model in
// docs/security.md.
func TestPolicy(t *testing.T) {
	l := newLoopback(t)
	p := &policyLab{loopback: l, sites: map[string]*site{}, clients: map[string]*http.Client{}}
	p.sites["dc1"] = l.start("dc1", "dc1")
	wan := p.sites["dc1"].gateway.WAN
	p.sites["dc3"] = l.start("dc3", "dc1", wan)
	l.args = []string{"--operators-from", "dc1"}
	p.sites["dc2"] = l.start("dc2", "dc1", wan)
	l.federated(p.sites["dc1"], p.sites["dc2"], p.sites["dc3"])
	for n, dc := range []string{"dc1", "dc2", "dc3"} {
		l.put(t, p.sites[dc], fmt.Sprintf("s%d", n+1), dc+"-secret")
		l.put(t, p.sites[dc], "app/a", dc)
	}
	for name, f := range map[string]func(*testing.T, *policyLab){
		"gateways":            policyOfGateways,
		"clients":             policyOfClients,
		"operators elsewhere": policyOfOperators,
		"servers elsewhere":   policyOfServers,
		"no certificate":      policyOfAnonymous,
		"operators_from":      policyOfTrusted,
		"named policies":      policyOfUsers,
	} {
		t.Run(name, func(t *testing.T) { f(t, p) })
	}
	// Nothing was changed by the requests that were refused.
	p.want(t, 200, "dc1-secret", "cli/dc1/op", "dc1", "GET", "/v1/kv/s1?raw", "")
	p.want(t, 200, `"gw1"`, "cli/dc1/op", "dc1", "GET", "/v1/catalog/nodes", "")
	if state := stateOf(t, p.sites["dc1"], "dc2"); !strings.Contains(state, "gw1") {
		t.Errorf("federation state of dc2 = %s, want its gateway", state)
	}
}

// A gateway reads federation states of its datacenter, and nothing else, also by
// ?dc= and /api/.
func policyOfGateways(t *testing.T, p *policyLab) {
	for _, by := range []string{"gateway/dc1/gw1", "gateway/dc3/gw1"} {
		for _, path := range []string{"/v1/kv/s1?raw", "/v1/kv/?recurse", "/v1/kv/s2?raw&dc=dc2", "/v1/kv/?keys&dc=dc2",
			"/api/kv/v1/entry/s2?dc=dc2", "/api/kv/v1/entry/s1", "/v1/catalog/nodes", "/v1/catalog/nodes?dc=dc2",
			"/v1/session/list?dc=dc2"} {
			p.want(t, 403, "gateway", by, "dc1", "GET", path, "")
		}
	}
	p.want(t, 403, "not allowed", "gateway/dc3/gw1", "dc1", "GET", "/v1/internal/federation-states", "")
	p.want(t, 200, "gw1", "gateway/dc1/gw1", "dc1", "GET", "/v1/internal/federation-states", "")
}

// A client reads in its datacenter. HTTPS, gRPC and ?dc= decide alike. What is
// secret for clients is secret for clients of other datacenters too.
func policyOfClients(t *testing.T, p *policyLab) {
	p.want(t, 200, "dc1-secret", "client/dc1/app", "dc1", "GET", "/v1/kv/s1?raw", "")
	p.want(t, 200, "gw1", "client/dc1/app", "dc1", "GET", "/v1/catalog/nodes?dc=dc2", "")
	p.want(t, 200, "gw1", "client/dc3/app", "dc1", "GET", "/v1/catalog/nodes", "")
	for _, r := range []struct{ by, path string }{
		{"client/dc3/app", "/v1/kv/s1?raw"}, {"client/dc3/app", "/v1/kv/?recurse"}, {"client/dc3/app", "/api/kv/v1/entry/s1"},
		{"client/dc3/app", "/v1/session/list"}, {"client/dc3/app", "/v1/kv/s2?raw&dc=dc2"},
		{"client/dc3/app", "/v1/catalog/nodes?dc=dc2"}, // dc1 does not forward for callers of dc3
		{"client/dc1/app", "/v1/kv/s2?raw&dc=dc2"}, {"client/dc1/app", "/api/kv/v1/entry/s2?dc=dc2"},
		{"client/dc1/app", "/api/kv/v1/entry?dc=dc2"}, {"client/dc1/app", "/api/sync/v1/state?dc=dc2"},
		{"client/dc1/app", "/api/sync/v1/state"}, {"sync/dc1/s", "/v1/kv/s2?raw&dc=dc2"},
		{"sync/dc1/s", "/api/sync/v1/state?dc=dc2"}, {"cli/dc3/op", "/v1/kv/s1?raw"},
	} {
		p.want(t, 403, "not allowed", r.by, "dc1", "GET", r.path, "")
	}
	cc := p.call(t, p.sites["dc1"].server.Addr, "server.dc1.wanfed", tlsutil.RoleClient, "app", "dc3")
	if err := listRecords(keyType)(t.Context(), cc); status.Code(err) != codes.PermissionDenied {
		t.Errorf("List(keys) by a client of dc3 = %v, want %v", err, codes.PermissionDenied)
	}
	if err := listRecords(nodeType)(t.Context(), cc); err != nil {
		t.Errorf("List(nodes) by a client of dc3 = %v, want nil", err)
	}
}

// An operator of another datacenter changes nothing in dc1.
func policyOfOperators(t *testing.T, p *policyLab) {
	const by = "cli/dc3/op"
	service := `{"Node": "evil", "Address": "192.0.2.66", "Service": {"Service": "postgres", "Port": 5432}}`
	for _, r := range []struct{ method, path, body string }{
		{"PUT", "/v1/kv/x", "1"}, {"DELETE", "/v1/kv/?recurse", ""}, {"PUT", "/v1/catalog/register", service},
		{"PUT", "/v1/catalog/deregister", `{"Node": "gw1"}`},
		{"PUT", "/v1/agent/service/register", `{"Name": "postgres", "Port": 5432}`},
		{"PUT", "/v1/txn", `[{"KV": {"Verb": "delete-tree", "Key": ""}}]`}, {"PUT", "/v1/session/create", "{}"},
		{"DELETE", "/api/catalog/v1/node/gw1", ""},
	} {
		p.want(t, 403, "operators of dc3 act only in dc3", by, "dc1", r.method, r.path, r.body)
		// Through its own server: dc1 cannot verify the certificate of the operator.
		if strings.HasPrefix(r.path, "/v1/agent") {
			continue
		}
		separator := "?"
		if strings.Contains(r.path, "?") {
			separator = "&"
		}
		p.want(t, 403, "dc1 does not accept writes through servers of dc3", by, "dc3", r.method, r.path+separator+"dc=dc1", r.body)
	}
	cc := p.call(t, p.sites["dc1"].server.Addr, "server.dc1.wanfed", tlsutil.RoleOperator, "op", "dc3")
	_, err := pb.NewFederationServiceClient(cc).Apply(t.Context(), &pb.ApplyFederationStateRequest{
		Op: pb.ApplyFederationStateRequest_OP_DELETE, Force: true, State: &pb.FederationState{Datacenter: "dc2"}})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("Apply(OP_DELETE, force) by an operator of dc3 = %v, want %v", err, codes.PermissionDenied)
	}
	_, err = pb.NewKeyringServiceClient(cc).Change(t.Context(), &pb.ChangeKeyringRequest{})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("Change(keyring) by an operator of dc3 = %v, want %v", err, codes.PermissionDenied)
	}
}

// A server of dc3 reads no keys of dc1 through the WAN gateway, whatever caller
// it names.
func policyOfServers(t *testing.T, p *policyLab) {
	cc := p.call(t, p.sites["dc1"].gateway.WAN, "server.dc1.wanfed", tlsutil.RoleServer, "srv1", "dc3")
	for _, caller := range []string{"", "cli/dc3/op", "client/dc3/app", "anonymous/dc3/srv1", "cli/dc1/op", "server/dc1/srv1",
		"client/dc1/app", "server/dc2/srv1", "root/dc3/x", "x"} {
		ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
		if caller != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, api.OnBehalfKey, caller)
		}
		stream, err := pb.NewResourceServiceClient(cc).WatchList(ctx, &pb.WatchListRequest{Type: keyType})
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("WatchList(keys) by a server of dc3 for %q = %v, want %v", caller, err, codes.PermissionDenied)
		}
		for _, method := range []string{"GET", "PUT", "DELETE"} {
			resp, err := pb.NewServerServiceClient(cc).Query(ctx, &pb.QueryRequest{Path: "/v1/kv/s1", Method: method, Caller: caller})
			if err != nil || resp.GetStatus() != 403 {
				t.Errorf("Query(%s key) by a server of dc3 for %q = %d %s, %v, want 403", method, caller, resp.GetStatus(), resp.GetBody(), err)
			}
		}
		cancel()
	}
}

// A process on the machine of a server, of any user, reads keys of its
// datacenter only, and the catalog, health and federation states everywhere.
func policyOfAnonymous(t *testing.T, p *policyLab) {
	for _, path := range []string{"/v1/kv/s1?raw", "/v1/catalog/nodes", "/v1/catalog/nodes?dc=dc2", "/v1/health/state/any?dc=dc2",
		"/v1/internal/federation-states?dc=dc2", "/v1/status/leader?dc=dc2", "/v1/agent/members?wan", "/metrics"} {
		p.want(t, 200, "", "", "dc1", "GET", path, "")
	}
	for _, path := range []string{"/v1/kv/s2?raw&dc=dc2", "/v1/kv/?recurse&dc=dc2", "/v1/kv/?keys&dc=dc2",
		"/api/kv/v1/entry/s2?dc=dc2", "/v1/session/list?dc=dc2", "/v1/kv/s2?raw&dc=dc2&index=1&wait=1s"} {
		p.want(t, 403, "anonymous/dc1/srv1 via server/dc1/srv1 may not", "", "dc1", "GET", path, "")
	}
	p.want(t, 403, "a write needs an operator's certificate", "", "dc1", "PUT", "/v1/kv/x", "1")
	p.want(t, 403, "a write needs an operator's certificate", "", "dc1", "PUT", "/v1/kv/x?dc=dc2", "1")
}

// dc2 accepts operators of dc1 by their certificates, and not by the word of a
// server of dc1.
func policyOfTrusted(t *testing.T, p *policyLab) {
	p.want(t, 200, "true", "cli/dc1/op", "dc2", "PUT", "/v1/kv/from-dc1", "1")
	p.want(t, 200, "dc2-secret", "cli/dc1/op", "dc2", "GET", "/v1/kv/s2?raw", "")
	p.want(t, 403, `allow_remote_writes_from = ["dc1"]`, "cli/dc1/op", "dc1", "PUT", "/v1/kv/x?dc=dc2", "1")
	p.want(t, 403, `reads_from = ["dc1"]`, "cli/dc1/op", "dc1", "GET", "/v1/kv/s2?raw&dc=dc2", "")
	p.want(t, 403, "not allowed", "client/dc1/app", "dc2", "GET", "/v1/kv/s2?raw", "")
	cc := p.call(t, p.sites["dc2"].server.Addr, "server.dc2.wanfed", tlsutil.RoleOperator, "op", "dc1")
	if _, err := pb.NewOperatorServiceClient(cc).ListPeers(t.Context(), &pb.ListPeersRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("ListPeers() by an operator of dc1 in dc2 = %v, want %v", err, codes.PermissionDenied)
	}
}

const policyFile = `policy "joe" {
  resource "kv/v1/Entry" {
    prefix = "app/"
    access = "write"
  }
  resource "catalog/*" {
    access = "read"
  }
}
`

// A user does what the policy of its name permits, in its datacenter.
func policyOfUsers(t *testing.T, p *policyLab) {
	const joe = "user/dc1/joe"
	p.want(t, 403, "no rule of policy joe permits it", joe, "dc1", "GET", "/v1/kv/app/a", "")
	file := filepath.Join(p.dir, "joe.hcl")
	if err := os.WriteFile(file, []byte(policyFile), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := p.run(t, "resource", "apply", "-f", file); err != nil {
		t.Fatalf("wanfed resource apply = %v: %s", err, out)
	}
	for _, dc := range []string{"dc1", "dc2"} {
		user := "user/" + dc + "/joe"
		testutil.Await(t, waitLimit, "policy in "+dc, func(context.Context) error {
			if status, text := p.do(t, user, dc, "GET", "/v1/kv/app/a?raw", ""); status != 200 {
				return errors.New(text)
			}
			return nil
		})
		p.want(t, 200, dc, user, dc, "GET", "/v1/kv/app/a?raw", "")
		p.want(t, 200, "true", user, dc, "PUT", "/v1/kv/app/b", "1")
		p.want(t, 200, "app/b", user, dc, "GET", "/v1/kv/app/?keys", "")
		p.want(t, 200, "app/b", user, dc, "PUT", "/v1/txn", `[{"KV": {"Verb": "get-tree", "Key": "app/"}}, {"KV": {"Verb": "set", "Key": "app/c"}}]`)
		p.want(t, 200, "true", user, dc, "DELETE", "/v1/kv/app/b", "")
		p.want(t, 200, "app/c", user, dc, "GET", "/api/kv/v1/entry?prefix=app/", "")
		p.want(t, 200, "gw1", user, dc, "GET", "/v1/catalog/nodes", "")
		for _, r := range []struct{ method, path, body string }{
			{"GET", "/v1/kv/s1", ""}, {"GET", "/v1/kv/?recurse", ""}, {"GET", "/v1/kv/app?keys", ""}, {"GET", "/api/kv/v1/entry", ""},
			{"PUT", "/v1/kv/s1", "1"}, {"DELETE", "/v1/kv/app?recurse", ""}, {"PUT", "/v1/session/create", "{}"},
			{"PUT", "/v1/txn", `[{"KV": {"Verb": "set", "Key": "app/d"}}, {"KV": {"Verb": "get", "Key": "s1"}}]`},
			{"PUT", "/v1/catalog/deregister", `{"Node": "gw1"}`}, {"GET", "/v1/status/leader", ""}, {"GET", "/metrics", ""},
		} {
			p.want(t, 403, "no rule of policy joe permits it", user, dc, r.method, r.path, r.body)
		}
	}
	cc := p.call(t, p.sites["dc1"].server.Addr, "server.dc1.wanfed", tlsutil.RoleUser, "joe", "dc1")
	for prefix, want := range map[string]codes.Code{"app/": codes.OK, "app": codes.PermissionDenied, "": codes.PermissionDenied} {
		_, err := pb.NewResourceServiceClient(cc).List(t.Context(), &pb.ListRequest{Type: keyType, NamePrefix: prefix})
		if status.Code(err) != want {
			t.Errorf("List(keys %q) by joe = %v, want %v", prefix, err, want)
		}
	}
	// The rights of joe of dc3 do not hold in dc1, those of dc1 hold in dc2.
	p.want(t, 403, "not allowed", "user/dc3/joe", "dc1", "PUT", "/v1/kv/app/x", "1")
	p.want(t, 200, "true", joe, "dc2", "PUT", "/v1/kv/app/x", "1")
	p.want(t, 403, "not allowed", joe, "dc1", "PUT", "/v1/kv/app/x?dc=dc3", "1")
	p.want(t, 403, "not allowed", joe, "dc1", "GET", "/v1/kv/app/a?dc=dc3", "")
	// No policy permits a user to change policies.
	p.want(t, 403, "not allowed", joe, "dc1", "DELETE", "/api/policy/v1/policy/joe", "")

	for _, c := range []struct{ as, verb, typ, name, want string }{
		{"joe", "write", "kv/v1/Entry", "app/x", "permitted"}, {"joe", "list", "kv/v1/Entry", "", "refused"},
		{"app.client.dc1", "read", "kv/v1/Entry", "x", "permitted"}, {"app.client.dc3", "read", "kv/v1/Entry", "x", "refused"},
		{"anonymous", "read", "kv/v1/Entry", "x", "permitted"}, {"op.operator.dc3", "write", "kv/v1/Entry", "x", "refused"},
	} {
		args := []string{"policy", "check", "--as", c.as, c.verb, c.typ}
		if c.name != "" {
			args = append(args, c.name)
		}
		if out, err := p.run(t, args...); !strings.HasPrefix(out, c.want) || (err == nil) != (c.want == "permitted") {
			t.Errorf("wanfed %s = %v: %s, want %s", strings.Join(args, " "), err, out, c.want)
		}
	}
	if out, err := p.run(t, "resource", "delete", "policy/v1/Policy", "joe"); err != nil {
		t.Fatalf("wanfed resource delete = %v: %s", err, out)
	}
	testutil.Await(t, waitLimit, "the end of the policy", func(context.Context) error {
		if status, text := p.do(t, joe, "dc1", "GET", "/v1/kv/app/a", ""); status != 403 {
			return fmt.Errorf("status %d %s", status, text)
		}
		return nil
	})
}
