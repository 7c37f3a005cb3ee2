// SPDX-License-Identifier: MPL-2.0

package trust

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// change returns change number of the replacement of old by next, signed by the
// keys of cas, and its resource.
func change(t *testing.T, number uint64, old, next *tlstest.CA, cas ...*tlstest.CA) (*pb.Resource, tlsutil.SignedTrust) {
	t.Helper()
	print := func(ca *tlstest.CA) string {
		certs, err := tlsutil.ParseCerts(ca.Pair.Cert)
		if err != nil {
			t.Fatal(err)
		}
		return tlsutil.Fingerprint(certs[0])
	}
	tr := tlsutil.Trust{
		Number: number, Phase: tlsutil.PhaseAdd, Keep: print(next), Drop: print(old), Issuer: print(old),
		Trusted: []string{string(old.Pair.Cert), string(next.Pair.Cert)}, Datacenter: "dc1",
	}
	s := tlsutil.SignedTrust{}
	for _, ca := range cas {
		key, err := tlsutil.ParseKey(ca.Pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		one, err := tlsutil.SignTrust(tr, key)
		if err != nil {
			t.Fatal(err)
		}
		s.Content, s.Signatures = one.Content, append(s.Signatures, one.Signatures...)
	}
	r, err := resource.New(Type, Name, Message(s))
	if err != nil {
		t.Fatal(err)
	}
	return r, s
}

func TestRegister(t *testing.T) {
	old, next, rogue := tlstest.NewCA(t), tlstest.NewCA(t), tlstest.NewCA(t)
	id := old.Identity(t, tlsutil.RoleServer, "srv1", "dc1")
	g := resource.NewRegistry()
	if err := Register(g, id); err != nil {
		t.Fatal(err)
	}
	reg, err := g.Lookup(Type)
	if err != nil || !reg.Federated {
		t.Fatalf("Lookup() = %+v, %v, want a federated type", reg, err)
	}
	good, signed := change(t, 2, old, next, old)
	if err := reg.Validate(good); err != nil {
		t.Errorf("Validate() = %v, want nil", err)
	}
	if err := id.ApplyTrust(signed); err != nil {
		t.Fatal(err)
	}
	if got, err := Content(good); err != nil || got.Number != 2 {
		t.Errorf("Content() = %+v, %v, want change 2", got, err)
	}
	forged, _ := change(t, 3, old, rogue, rogue)
	older, _ := change(t, 1, old, next, old)
	renamed, _ := change(t, 3, old, next, old)
	renamed.Id.Name = "other"
	for want, r := range map[string]*pb.Resource{
		"is not signed by a CA that is trusted here": forged, "is not newer than change 2": older, `must be "trust"`: renamed,
	} {
		if err := reg.Validate(r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate() = %v, want %q", err, want)
		}
	}
	for _, verb := range []resource.Verb{resource.VerbRead, resource.VerbList, resource.VerbWrite, resource.VerbDelete} {
		reads := verb == resource.VerbRead || verb == resource.VerbList
		for _, role := range tlsutil.Roles {
			err := reg.Authorize(tlsutil.Peer{Role: role, DC: "dc1", Node: "a"}, verb, good)
			if (err == nil) != (reads || role == tlsutil.RoleOperator) {
				t.Errorf("Authorize(%s, %s) = %v, want only operators to write", role, verb, err)
			}
		}
	}
}

// TestRun checks that a change of the store is applied, and added to the snapshots
// of gateways, and that a forged one is not.
func TestRun(t *testing.T) {
	old, next, rogue := tlstest.NewCA(t), tlstest.NewCA(t), tlstest.NewCA(t)
	id := old.Identity(t, tlsutil.RoleServer, "srv1", "dc1")
	store := resourcetest.NewStore()
	defer store.Close()
	snapshot := &pb.GatewaySnapshot{Datacenter: "dc1", RevocationLists: []string{"a"}}
	if AddTo(snapshot, id) != snapshot {
		t.Error("AddTo() without a change has made another snapshot, want the same")
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Config{Backend: store, Identity: id, Logger: slog.New(slog.DiscardHandler)})
	}()
	forged, _ := change(t, 7, old, rogue, rogue)
	good, signed := change(t, 1, old, next, old)
	if _, err := store.Commit(t.Context(), resource.PutOp(forged, "")); err != nil {
		t.Fatal(err)
	}
	stored, err := store.Read(t.Context(), resource.Strong, resource.ID(Type, Name))
	if err != nil {
		t.Fatal(err)
	}
	good.Id.Uid = stored.Id.Uid
	if _, err := store.Commit(t.Context(), resource.PutOp(good, stored.Version)); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, 10*time.Second, func() bool {
		tr, _, ok := id.Trust()
		return ok && tr.Number == 1 && slices.Contains(id.CAs(), tr.Keep)
	}, "change 1 in force")
	out := AddTo(snapshot, id)
	if out.Trust.GetContent() != string(signed.Content) || len(out.RevocationLists) != 1 || snapshot.Trust != nil {
		t.Errorf("AddTo() = %v, want the change and all other fields, and the argument unchanged", out)
	}
	if got := Signed(out.Trust); string(got.Content) != string(signed.Content) || len(got.Signatures) != 1 {
		t.Errorf("Signed() = %v, want %v", got, signed)
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}
