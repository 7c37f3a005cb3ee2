// SPDX-License-Identifier: MPL-2.0

package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

const (
	opInstall = pb.ChangeKeyringRequest_OP_INSTALL
	opUse     = pb.ChangeKeyringRequest_OP_USE
	opRemove  = pb.ChangeKeyringRequest_OP_REMOVE
)

// keyFile writes a key to a new file.
func keyFile(t testing.TB, k gossip.Key) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gossip.key")
	if err := os.WriteFile(path, []byte(k.Base64()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// keyringAt returns a client of the server at addr, with a certificate of role.
func keyringAt(t testing.TB, ca *tlstest.CA, addr string, role tlsutil.Role, dc string) pb.KeyringServiceClient {
	t.Helper()
	id := ca.Identity(t, role, "op", dc)
	cc, err := api.NewGRPCClient(func(ctx context.Context) (net.Conn, error) {
		d := tls.Dialer{Config: id.ClientConfig(tlsutil.ServerName("", dc, "wanfed"), "h2")}
		return d.DialContext(ctx, "tcp", addr)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return pb.NewKeyringServiceClient(cc)
}

// keyChange is a change of the keyring.
type keyChange struct {
	op    pb.ChangeKeyringRequest_Op
	key   string // base64, or a fingerprint
	force bool
}

// changeKeys makes a change, and fails the test unless the change is accepted,
// or refused if wantRefused is true.
func changeKeys(t testing.TB, c pb.KeyringServiceClient, change keyChange, wantRefused bool) *pb.KeyringReport {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	r, err := c.Change(ctx, &pb.ChangeKeyringRequest{Op: change.op, Key: change.key, Force: change.force})
	if err != nil {
		t.Fatalf("Change(%v) = %v, want nil", change.op, err)
	}
	if (r.Refused != "") != wantRefused {
		t.Fatalf("Change(%v) = refused %q, want refused = %v; servers: %v", change.op, r.Refused,
			wantRefused, r.Servers)
	}
	return r
}

// awaitKeys waits until List returns n servers, and each has exactly keys. The
// first key is the primary key.
func awaitKeys(t testing.TB, c pb.KeyringServiceClient, n int, keys ...gossip.Key) {
	t.Helper()
	want := gossip.Keyring{Keys: keys}.Fingerprints()
	testutil.Eventually(t, startTimeout, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
		defer cancel()
		r, err := c.List(ctx, &pb.ListKeyringRequest{})
		return err == nil && len(r.Servers) == n && !slices.ContainsFunc(r.Servers, func(s *pb.ServerKeyring) bool {
			return !slices.Equal(s.Fingerprints, want)
		})
	}, "keys %v on %d servers", want, n)
}

// wantNoGoroutines fails the test if goroutines other than before remain.
// memberlist does not join its probes. The probe of a stopped member ends
// within 6 s.
func wantNoGoroutines(t *testing.T, before goleak.Option) {
	t.Helper()
	var err error
	for start := time.Now(); time.Since(start) < startTimeout; {
		if err = goleak.Find(before); err == nil { // Find retries for a while
			return
		}
	}
	t.Errorf("goroutines after the test: %v, want none", err)
}

// lockedBuffer stores a log that several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// encryptedFederation has two datacenters with encrypted gossip. Each has one
// server and one gateway.
type encryptedFederation struct {
	t        *testing.T
	ca       *tlstest.CA
	dir      string
	log      lockedBuffer      // of all servers
	parts    map[string]*part  // servers by datacenter, and gateways as gw-<datacenter>
	addrs    map[string]Addrs  // addresses of the servers, by datacenter
	wan      map[string]string // WAN addresses of the gateways, by datacenter
	operator pb.KeyringServiceClient
}

func newEncryptedFederation(t *testing.T, initial gossip.Key) *encryptedFederation {
	t.Helper()
	f := &encryptedFederation{
		t: t, ca: tlstest.NewCA(t), dir: t.TempDir(),
		parts: map[string]*part{}, addrs: map[string]Addrs{}, wan: map[string]string{},
	}
	t.Cleanup(func() {
		for _, p := range f.parts {
			p.stop()
		}
		for _, p := range f.parts {
			p.end(t)
		}
		if t.Failed() {
			t.Logf("logs:\n%s", f.log.String())
		}
	})
	f.startServer("dc1", initial)
	f.startGateway("dc1")
	f.startServer("dc2", initial)
	f.startGateway("dc2")
	untilFederated(t, f.addrs["dc1"].HTTP, f.addrs["dc2"].HTTP)
	f.operator = keyringAt(t, f.ca, f.addrs["dc1"].Server, tlsutil.RoleOperator, "dc1")
	return f
}

func (f *encryptedFederation) startServer(dc string, initial gossip.Key) {
	f.t.Helper()
	files := f.ca.Files(f.t, tlsutil.RoleServer, "srv1", dc)
	cfg := Config{
		DC: dc, Node: "srv1", PrimaryDC: "dc1", DataDir: filepath.Join(f.dir, dc),
		CAFile: files.CA, CertFile: files.Cert, KeyFile: files.Key,
		EncryptFile: keyFile(f.t, initial), Logger: slog.New(slog.NewTextHandler(&f.log, nil)),
	}
	if dc != "dc1" {
		cfg.PrimaryGateways = []string{f.wan["dc1"]}
	}
	f.parts[dc], f.addrs[dc] = startServer(f.t, cfg)
}

// startGateway starts the gateway of dc. A restarted gateway has its previous
// WAN address.
func (f *encryptedFederation) startGateway(dc string) {
	f.t.Helper()
	files := f.ca.Files(f.t, tlsutil.RoleGateway, "gw1", dc)
	var wan []string
	if f.wan[dc] != "" {
		wan = []string{f.wan[dc]}
	}
	f.parts["gw-"+dc], f.wan[dc] = startGateway(f.t, files, f.addrs[dc].Server, filepath.Join(f.dir, "gw-"+dc), wan...)
}

func (f *encryptedFederation) stop(part string) {
	f.t.Helper()
	f.parts[part].end(f.t)
	delete(f.parts, part)
}

// restartServer restarts the server of dc2 with another initial key. The server
// has a new address, so its gateway is restarted too.
func (f *encryptedFederation) restartServer(initial gossip.Key, prepare func()) {
	f.t.Helper()
	f.stop("dc2")
	prepare()
	f.startServer("dc2", initial)
	f.stop("gw-dc2")
	f.startGateway("dc2")
}

// awaitLog waits until one line of the log matches all patterns.
func (f *encryptedFederation) awaitLog(patterns ...string) {
	f.t.Helper()
	testutil.Eventually(f.t, startTimeout, func() bool {
		for line := range strings.Lines(f.log.String()) {
			matches := func(p string) bool { return regexp.MustCompile(p).MatchString(line) }
			if !slices.ContainsFunc(patterns, func(p string) bool { return !matches(p) }) {
				return true
			}
		}
		return false
	}, "a line of the log that matches all of %q", patterns)
}

// watchMembers checks until stop is called that each server reports two alive
// members.
func (f *encryptedFederation) watchMembers() (stop func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	var wg sync.WaitGroup
	notAlive := func(m api.Member) bool { return m.Status != api.MemberAlive }
	for dc, a := range f.addrs {
		c, err := api.NewClient(api.ClientConfig{Addr: a.HTTP})
		if err != nil {
			f.t.Fatal(err)
		}
		wg.Go(func() {
			defer c.Close()
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				members, err := c.Members(ctx, true, api.QueryOptions{})
				if err == nil && (len(members) != 2 || slices.ContainsFunc(members, notAlive)) {
					f.t.Errorf("Members() in %s = %v, want 2 alive members", dc, members)
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// TestKeyring_Rotation proves that keys can be changed without loss of gossip
// while both datacenters are connected, that a disconnected datacenter receives
// the change later, and that a datacenter without its keyring can return. The
// subtests share one federation and depend on their order.
func TestKeyring_Rotation(t *testing.T) {
	testutil.Cluster(t)
	leaks := goleak.IgnoreCurrent()
	t.Run("federation", testRotation)
	wantNoGoroutines(t, leaks)
}

func testRotation(t *testing.T) {
	k1, k2, k3 := gossip.NewKey(), gossip.NewKey(), gossip.NewKey()
	f := newEncryptedFederation(t, k1)
	awaitKeys(t, f.operator, 2, k1)
	for _, tt := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"connected", func(t *testing.T) { testRotationConnected(t, f, k1, k2) }},
		{"refused requests", func(t *testing.T) { testRefusedKeyRequests(t, f, k1, k2) }},
		{"dc2 disconnected", func(t *testing.T) { testRotationDisconnected(t, f, k2, k3) }},
		{"restart with an old initial key", func(t *testing.T) {
			f.restartServer(k1, func() {})
			untilFederated(t, f.addrs["dc1"].HTTP, f.addrs["dc2"].HTTP)
			awaitKeys(t, f.operator, 2, k3)
		}},
		{"keyring lost", func(t *testing.T) { testKeyringLost(t, f, k1, k3) }},
	} {
		if !t.Run(tt.name, tt.run) {
			return
		}
	}
	for _, k := range []gossip.Key{k1, k2, k3} {
		if strings.Contains(f.log.String(), k.Base64()) {
			t.Errorf("the log contains the key with fingerprint %s, want only fingerprints", k.Fingerprint())
		}
	}
}

// testRotationConnected proves that all members stay alive during the change.
func testRotationConnected(t *testing.T, f *encryptedFederation, k1, k2 gossip.Key) {
	stop := f.watchMembers()
	defer stop()
	r := changeKeys(t, f.operator, keyChange{op: opInstall, key: k2.Base64()}, false)
	if !r.Changed || r.Version != 1 {
		t.Errorf("Change(install) = %v, want a change to version 1", r)
	}
	awaitKeys(t, f.operator, 2, k1, k2)
	changeKeys(t, f.operator, keyChange{op: opUse, key: k2.Fingerprint()}, false)
	awaitKeys(t, f.operator, 2, k2, k1)
	changeKeys(t, f.operator, keyChange{op: opRemove, key: k1.Fingerprint()}, false)
	awaitKeys(t, f.operator, 2, k2)
}

// testRefusedKeyRequests sends invalid requests. The keyring has only the key
// current.
func testRefusedKeyRequests(t *testing.T, f *encryptedFederation, removed, current gossip.Key) {
	dc2 := keyringAt(t, f.ca, f.addrs["dc2"].Server, tlsutil.RoleOperator, "dc2")
	server := keyringAt(t, f.ca, f.addrs["dc1"].Server, tlsutil.RoleServer, "dc1")
	for _, tt := range []struct {
		c    pb.KeyringServiceClient
		op   pb.ChangeKeyringRequest_Op
		key  string
		code codes.Code
		want string
	}{
		{f.operator, opRemove, current.Base64(), codes.FailedPrecondition, "is the primary"},
		{f.operator, opUse, removed.Base64(), codes.FailedPrecondition, "not in the keyring"},
		{f.operator, opUse, "no base64!", codes.FailedPrecondition, "not base64"},
		{f.operator, opInstall, current.Fingerprint(), codes.FailedPrecondition, "12 bytes, not 32"},
		{f.operator, 0, current.Base64(), codes.FailedPrecondition, "must be install, use or remove"},
		{dc2, opInstall, removed.Base64(), codes.FailedPrecondition,
			"dc2 is not the primary: the keyring is changed in dc1"},
		{server, opInstall, removed.Base64(), codes.PermissionDenied, "role is server"},
	} {
		_, err := tt.c.Change(t.Context(), &pb.ChangeKeyringRequest{Op: tt.op, Key: tt.key})
		if status.Code(err) != tt.code || !strings.Contains(status.Convert(err).Message(), tt.want) {
			t.Errorf("Change(%v) = %v, want %v: %s", tt.op, err, tt.code, tt.want)
		}
	}
	r, err := dc2.List(t.Context(), &pb.ListKeyringRequest{ShowKeys: true})
	if err != nil || !slices.Equal(r.Keys, []string{current.Base64()}) {
		t.Errorf("List(ShowKeys) = %v, %v, want the current key", r, err)
	}
	if r, err := dc2.List(t.Context(), &pb.ListKeyringRequest{}); err != nil || len(r.Keys) != 0 {
		t.Errorf("List() = %v, %v, want no keys", r, err)
	}
}

// testRotationDisconnected proves that the report of a change names the servers
// that missed the change, and that these servers receive the change later.
func testRotationDisconnected(t *testing.T, f *encryptedFederation, k2, k3 gossip.Key) {
	f.stop("gw-dc1")
	f.stop("gw-dc2")
	r := changeKeys(t, f.operator, keyChange{op: opInstall, key: k3.Base64()}, false)
	missed := r.Servers[1]
	if missed.Datacenter != "dc2" || missed.Node != "srv1" || missed.Error == "" || r.Servers[0].Version != 4 {
		t.Errorf("Change(install) = %v, want an error of srv1.dc2 and version 4 in dc1", r)
	}
	const behind = "1 of 2 servers (srv1.dc2)"
	r = changeKeys(t, f.operator, keyChange{op: opUse, key: k3.Base64()}, true)
	if !strings.Contains(r.Refused, behind) {
		t.Errorf("Change(use) = refused %q, want %q", r.Refused, behind)
	}
	changeKeys(t, f.operator, keyChange{opUse, k3.Base64(), true}, false)
	r = changeKeys(t, f.operator, keyChange{op: opRemove, key: k2.Base64()}, true)
	if !strings.Contains(r.Refused, behind) {
		t.Errorf("Change(remove) = refused %q, want %q", r.Refused, behind)
	}
	f.startGateway("dc1")
	f.startGateway("dc2")
	awaitKeys(t, f.operator, 2, k3, k2) // dc2 has received the keyring
	changeKeys(t, f.operator, keyChange{op: opRemove, key: k2.Base64()}, false)
	awaitKeys(t, f.operator, 2, k3)
	untilFederated(t, f.addrs["dc1"].HTTP, f.addrs["dc2"].HTTP)
}

// testKeyringLost proves that both datacenters log the remedy if a server
// without its keyring has an outdated initial key, and that the server returns
// after it received one current key.
func testKeyringLost(t *testing.T, f *encryptedFederation, unused, current gossip.Key) {
	f.restartServer(unused, func() {
		if err := os.Remove(filepath.Join(f.dir, "dc2", "keyring.json")); err != nil {
			t.Fatal(err)
		}
	})
	for _, servers := range []string{"dc=dc1 node=srv1.*peer=srv1.dc2", "dc=dc2 node=srv1.*peer=srv1.dc1"} {
		f.awaitLog("no gossip with a server without a common key.*wanfed keyring install --node", servers)
	}
	c := keyringAt(t, f.ca, f.addrs["dc2"].Server, tlsutil.RoleOperator, "dc2")
	if _, err := c.Give(t.Context(), &pb.GiveKeyRequest{Key: current.Base64()}); err != nil {
		t.Fatal(err)
	}
	awaitKeys(t, f.operator, 2, current)
	untilFederated(t, f.addrs["dc1"].HTTP, f.addrs["dc2"].HTTP)
}

// TestKeyring_ServerDownDuringChange proves that a server that was down during
// a change of the key receives the new keyring when it returns. It contacts the
// other servers by their addresses, because it receives no gossip.
func TestKeyring_ServerDownDuringChange(t *testing.T) {
	testutil.Cluster(t)
	t.Parallel()
	ca, dir := tlstest.NewCA(t), t.TempDir()
	k1, k2 := gossip.NewKey(), gossip.NewKey()
	parts, addrs, join := map[string]*part{}, map[string]Addrs{}, []string{"127.0.0.1:1"} // join: no server
	t.Cleanup(func() {
		for _, p := range parts {
			p.stop()
		}
		for _, p := range parts {
			p.end(t)
		}
	})
	start := func(node string) {
		t.Helper()
		f := ca.Files(t, tlsutil.RoleServer, node, "dc1")
		parts[node], addrs[node] = startServer(t, Config{
			DC: "dc1", Node: node, DataDir: filepath.Join(dir, node), CAFile: f.CA, CertFile: f.Cert, KeyFile: f.Key,
			BootstrapExpect: 3, RetryJoin: join, heartbeat: longHeartbeat, EncryptFile: keyFile(t, k1),
		})
		if len(addrs) == 1 {
			join = []string{addrs[node].Server}
		}
	}
	for _, node := range []string{"srv1", "srv2", "srv3"} {
		start(node)
	}
	operator := keyringAt(t, ca, addrs["srv2"].Server, tlsutil.RoleOperator, "dc1")
	awaitKeys(t, operator, 3, k1)

	parts["srv3"].end(t)
	delete(parts, "srv3")
	r := changeKeys(t, operator, keyChange{op: opInstall, key: k2.Base64()}, false)
	if s := r.Servers[2]; s.Node != "srv3" || s.Error == "" || s.Member == "alive" {
		t.Errorf("Change(install) = %v, want an error of srv3, which is not alive", r.Servers)
	}
	changeKeys(t, operator, keyChange{op: opUse, key: k2.Base64()}, false)
	changeKeys(t, operator, keyChange{op: opRemove, key: k1.Base64()}, true)
	start("srv3")
	awaitKeys(t, operator, 3, k2, k1)
	changeKeys(t, operator, keyChange{op: opRemove, key: k1.Base64()}, false)
	awaitKeys(t, operator, 3, k2)
}
