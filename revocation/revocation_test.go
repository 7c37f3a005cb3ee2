// SPDX-License-Identifier: MPL-2.0

package revocation

import (
	"context"
	"log/slog"
	"math/big"
	"path/filepath"
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

// list returns a list of ca that follows old.
func list(t *testing.T, ca *tlstest.CA, serial int64, old *tlsutil.RevocationList) *tlsutil.RevocationList {
	t.Helper()
	r := tlsutil.RevokeRequest{CA: ca.Pair, Serials: []*big.Int{big.NewInt(serial)}}
	if old != nil {
		r.Old = old.PEM()
	}
	l, err := tlsutil.Revoke(r)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func resourceOf(t *testing.T, name string, pem []byte) *pb.Resource {
	t.Helper()
	r, err := resource.New(Type, name, &pb.RevocationList{Pem: string(pem)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRegister_Validate(t *testing.T) {
	ca, other := tlstest.NewCA(t), tlstest.NewCA(t)
	id := ca.Identity(t, tlsutil.RoleServer, "srv1", "dc1")
	g := resource.NewRegistry()
	if err := Register(g, id); err != nil {
		t.Fatal(err)
	}
	reg, err := g.Lookup(Type)
	if err != nil || !reg.Federated {
		t.Fatalf("Lookup() = %+v, %v, want a federated type", reg, err)
	}
	first := list(t, ca, 1, nil)
	second, rival := list(t, ca, 2, first), list(t, ca, 3, first)
	if err := id.AddRevocations(second.PEM()); err != nil {
		t.Fatal(err)
	}
	foreign := list(t, other, 1, nil)
	for name, tt := range map[string]struct {
		name string
		pem  []byte
		want string
	}{
		"list in force":    {second.ID(), second.PEM(), ""},
		"next list":        {second.ID(), list(t, ca, 4, second).PEM(), ""},
		"older list":       {first.ID(), first.PEM(), "is not newer than list 2"},
		"same number":      {rival.ID(), rival.PEM(), "is not newer than list 2"},
		"another CA":       {foreign.ID(), foreign.PEM(), "is not signed by a CA that is trusted here"},
		"name":             {"a", second.PEM(), "identifies the CA that signed the list"},
		"several lists":    {second.ID(), append(second.PEM(), second.PEM()...), "has 2 revocation lists"},
		"certificate only": {second.ID(), ca.Pair.Cert, "has no revocation list"},
	} {
		err := reg.Validate(resourceOf(t, tt.name, tt.pem))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Validate() of %s = %v, want %q", name, err, tt.want)
		}
	}
}

// TestRun checks that a list of the store is in force, that it stays in force
// when the resource is deleted, and that the next process has it from the file.
func TestRun(t *testing.T) {
	ca := tlstest.NewCA(t)
	id := ca.Identity(t, tlsutil.RoleServer, "srv1", "dc1")
	store := resourcetest.NewStore()
	defer store.Close()
	file := filepath.Join(t.TempDir(), "revocation.crl")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Config{Backend: store, Identity: id, File: file, Logger: slog.New(slog.DiscardHandler)})
	}()
	number := func(id *tlsutil.Identity) int64 {
		if lists := id.RevocationLists(); len(lists) == 1 {
			return lists[0].Number.Int64()
		}
		return 0
	}
	first := list(t, ca, 1, nil)
	second := list(t, ca, 2, first)
	put := func(l *tlsutil.RevocationList) {
		t.Helper()
		if _, err := store.Commit(t.Context(), resource.PutOp(resourceOf(t, l.ID(), l.PEM()), "")); err != nil {
			t.Fatal(err)
		}
	}
	put(second)
	testutil.Eventually(t, 10*time.Second, func() bool { return number(id) == 2 }, "list 2")
	if _, err := store.Commit(t.Context(), resource.RemoveOp(resource.ID(Type, second.ID()), "")); err != nil {
		t.Fatal(err)
	}
	put(first) // of an older snapshot
	testutil.Eventually(t, 10*time.Second, func() bool {
		next := ca.Identity(t, tlsutil.RoleServer, "srv1", "dc1")
		return Load(file, next) == nil && number(next) == 2
	}, "list 2 in the file")
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if number(id) != 2 {
		t.Errorf("list in force = %d, want 2", number(id))
	}
	s := &pb.GatewaySnapshot{Datacenter: "dc1"}
	if out := AddTo(s, id); len(out.RevocationLists) != 1 || len(s.RevocationLists) != 0 || out.Datacenter != "dc1" {
		t.Errorf("AddTo() = %v, want one list, and the argument unchanged", out)
	}
}
