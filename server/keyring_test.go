// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

const (
	opInstall = pb.ChangeKeyringRequest_OP_INSTALL
	opUse     = pb.ChangeKeyringRequest_OP_USE
	opRemove  = pb.ChangeKeyringRequest_OP_REMOVE
)

// keyFile writes a key to a file of its own.
func keyFile(t testing.TB, k gossip.Key) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gossip.key")
	if err := os.WriteFile(path, []byte(k.Base64()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// keyringAt is a client of the server at addr, with a certificate of that role.
func keyringAt(t testing.TB, ca *tlstest.CA, addr string, role tlsutil.Role, dc string) pb.KeyringServiceClient {
	t.Helper()
	id := ca.Identity(t, role, "op", dc)
	cc, err := api.NewGRPCClient(func(ctx context.Context) (net.Conn, error) {
		return (&tls.Dialer{Config: id.ClientConfig(tlsutil.ServerName("", dc, "wanfed"), "h2")}).DialContext(ctx, "tcp", addr)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return pb.NewKeyringServiceClient(cc)
}

// changeKeys makes a change that must be answered; refused says whether the answer must be no.
func changeKeys(t testing.TB, c pb.KeyringServiceClient, op pb.ChangeKeyringRequest_Op, key string, force, refused bool) *pb.KeyringReport {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), starting)
	defer cancel()
	r, err := c.Change(ctx, &pb.ChangeKeyringRequest{Op: op, Key: key, Force: force})
	if err != nil {
		t.Fatalf("%v: %v", op, err)
	}
	if (r.Refused != "") != refused {
		t.Fatalf("%v: refused: %q; %v", op, r.Refused, r.Servers)
	}
	return r
}

// untilRings waits until every server that is listed has exactly these keys, the primary first, and n are listed.
func untilRings(t testing.TB, c pb.KeyringServiceClient, n int, keys ...gossip.Key) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), starting)
	defer cancel()
	want := gossip.Keyring{Keys: keys}.Fingerprints()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		r, err := c.List(ctx, &pb.ListKeyringRequest{})
		bad := len(r.GetServers()) != n || slices.ContainsFunc(r.GetServers(), func(s *pb.ServerKeyring) bool { return !slices.Equal(s.Fingerprints, want) })
		if err == nil && !bad {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("want %v on %d servers, have %v, %v", want, n, r, err)
		}
	}
}

// TestKeyRotation changes the key of two datacenters while both are there, while one is cut off, and gives one that has
// missed all of it a key by hand.
func TestKeyRotation(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	t.Run("federation", rotateKeys)
	noneLeft(t, leaks)
}

// noneLeft fails the test when goroutines are left. memberlist does not join its probes: one of a member that has gone ends by its timer,
// six seconds after it began at the latest.
func noneLeft(t *testing.T, before goleak.Option) {
	t.Helper()
	var err error
	for began := time.Now(); time.Since(began) < starting; {
		if err = goleak.Find(before); err == nil { // it tries for a while
			return
		}
	}
	t.Error(err)
}

func rotateKeys(t *testing.T) {
	k1, k2, k3 := gossip.NewKey(), gossip.NewKey(), gossip.NewKey()
	f := newTwoKeyed(t, k1)
	untilRings(t, f.operator, 2, k1)

	// Both are there: no member is lost at any step.
	stopWatch := f.watchAlive()
	if r := changeKeys(t, f.operator, opInstall, k2.Base64(), false, false); !r.Changed || r.Version != 1 {
		t.Errorf("install: %v", r)
	}
	untilRings(t, f.operator, 2, k1, k2)
	changeKeys(t, f.operator, opUse, k2.Fingerprint(), false, false)
	untilRings(t, f.operator, 2, k2, k1)
	changeKeys(t, f.operator, opRemove, k1.Fingerprint(), false, false)
	untilRings(t, f.operator, 2, k2)
	stopWatch()
	f.refusesNonsense(k1, k2)

	// dc2 is cut off: who misses the change is told, and no step cuts it off for good.
	f.end("gw-dc1")
	f.end("gw-dc2")
	r := changeKeys(t, f.operator, opInstall, k3.Base64(), false, false)
	if far := r.Servers[1]; far.Datacenter != "dc2" || far.Node != "srv1" || far.Error == "" || r.Servers[0].Version != 4 {
		t.Errorf("install while dc2 is cut off: %v", r)
	}
	if r := changeKeys(t, f.operator, opUse, k3.Base64(), false, true); !strings.Contains(r.Refused, "1 of 2 servers (srv1.dc2)") {
		t.Errorf("use while dc2 has not got the key: %v", r.Refused)
	}
	changeKeys(t, f.operator, opUse, k3.Base64(), true, false)
	if r := changeKeys(t, f.operator, opRemove, k2.Base64(), false, true); !strings.Contains(r.Refused, "1 of 2 servers (srv1.dc2)") {
		t.Errorf("remove while dc2 needs the key: %v", r.Refused)
	}
	f.gateway("dc1")
	f.gateway("dc2")
	untilRings(t, f.operator, 2, k3, k2) // dc2 was taught
	changeKeys(t, f.operator, opRemove, k2.Base64(), false, false)
	untilRings(t, f.operator, 2, k3)
	untilFederated(t, f.addrs["dc1"].HTTP, f.addrs["dc2"].HTTP)

	// A server comes back with its ring, whatever key it is configured with.
	f.end("dc2")
	f.server("dc2", k1)
	f.gatewayAnew("dc2")
	untilFederated(t, f.addrs["dc1"].HTTP, f.addrs["dc2"].HTTP)
	untilRings(t, f.operator, 2, k3)

	// One that has lost it has a key that nobody uses any more: it stays outside, and says what to do.
	f.end("dc2")
	if err := os.Remove(filepath.Join(f.dir, "dc2", "keyring.json")); err != nil {
		t.Fatal(err)
	}
	f.server("dc2", k1)
	f.gatewayAnew("dc2")
	for _, who := range []string{"dc=dc1 node=srv1.*peer=srv1.dc2", "dc=dc2 node=srv1.*peer=srv1.dc1"} {
		f.untilLog("no gossip with a server that has none of the keys of this one.*wanfed keyring install --only", who)
	}
	if _, err := keyringAt(t, f.ca, f.addrs["dc2"].Server, tlsutil.RoleOperator, "dc2").Give(t.Context(), &pb.GiveKeyRequest{Key: k3.Base64()}); err != nil {
		t.Fatal(err)
	}
	untilRings(t, f.operator, 2, k3)
	untilFederated(t, f.addrs["dc1"].HTTP, f.addrs["dc2"].HTTP)
	for _, k := range []gossip.Key{k1, k2, k3} {
		if strings.Contains(f.log.String(), k.Base64()) {
			t.Error("a key is in a log")
		}
	}
}

// TestKeysOfServersThatWereDown: of three servers one is down while the key changes; with the others' addresses it finds
// them when it comes back, though it hears no gossip.
func TestKeysOfServersThatWereDown(t *testing.T) {
	t.Parallel()
	ca, dir := tlstest.NewCA(t), t.TempDir()
	k1, k2 := gossip.NewKey(), gossip.NewKey()
	parts, addrs, join := map[string]*part{}, map[string]Addrs{}, []string{"127.0.0.1:1"}
	t.Cleanup(func() {
		for _, p := range parts {
			p.stop()
		}
		for _, p := range parts {
			p.end(t)
		}
	})
	begin := func(node string) {
		t.Helper()
		f := ca.Files(t, tlsutil.RoleServer, node, "dc1")
		parts[node], addrs[node] = startServer(t, Config{
			DC: "dc1", Node: node, DataDir: filepath.Join(dir, node), CAFile: f.CA, CertFile: f.Cert, KeyFile: f.Key,
			BootstrapExpect: 3, RetryJoin: join, heartbeat: steady, EncryptFile: keyFile(t, k1),
		})
		if len(addrs) == 1 {
			join = []string{addrs[node].Server}
		}
	}
	for _, node := range []string{"srv1", "srv2", "srv3"} {
		begin(node)
	}
	operator := keyringAt(t, ca, addrs["srv2"].Server, tlsutil.RoleOperator, "dc1")
	untilRings(t, operator, 3, k1)

	parts["srv3"].end(t)
	delete(parts, "srv3")
	r := changeKeys(t, operator, opInstall, k2.Base64(), false, false)
	if s := r.Servers[2]; s.Node != "srv3" || s.Error == "" || s.Member == "alive" {
		t.Errorf("install while srv3 is down: %v", r.Servers)
	}
	changeKeys(t, operator, opUse, k2.Base64(), false, false) // it is not alive: it is taught when it comes back
	changeKeys(t, operator, opRemove, k1.Base64(), false, true)
	begin("srv3")
	untilRings(t, operator, 3, k2, k1)
	changeKeys(t, operator, opRemove, k1.Base64(), false, false)
	untilRings(t, operator, 3, k2)
}
