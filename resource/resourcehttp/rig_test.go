// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

// rig is the handler over a memory store.
type rig struct {
	*testing.T
	http.Handler
	store    *resourcetest.Store
	registry *resource.Registry
	svc      *resource.Service
	peer     tlsutil.Peer
	client   func(dc string) (pb.ResourceServiceClient, error) // nil: svc for dc1
}

func newRig(t *testing.T) *rig {
	t.Helper()
	g := &rig{T: t, store: resourcetest.NewStore(), registry: resource.NewRegistry(), peer: tlsutil.Peer{Role: tlsutil.RoleOperator, DC: "dc1", Node: "joe"}}
	t.Cleanup(func() { g.store.Close() })
	for _, r := range []resource.Registration{
		{Type: nodeType, Message: &pb.Node{}, Validate: func(r *pb.Resource) error {
			if n, err := resource.Decode[*pb.Node](r); err != nil || n.Address == "" {
				return errors.Join(err, errors.New("data.address is empty"))
			}
			return nil
		}},
		{Type: keyType, Message: &pb.Node{}, CheckName: resource.CheckUTF8Name},
		{Type: fsType, Message: &pb.FederationState{}, Scope: resource.ScopeCluster, Federated: true},
		{Type: allType, Message: &pb.Resource{}, Scope: resource.ScopePartition},
	} {
		if err := g.registry.Register(r); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	g.svc, err = resource.NewService(resource.ServiceConfig{
		Backend: g.store, Registry: g.registry, DC: "dc1", Primary: func() bool { return true },
		Peer: func(ctx context.Context) (tlsutil.Peer, error) {
			p, ok := tlsutil.PeerFromContext(ctx)
			if !ok {
				return p, errors.New("no certificate")
			}
			return p, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	g.Handler, err = New(Config{DC: "dc1", Registry: g.registry, Client: func(dc string) (pb.ResourceServiceClient, error) {
		switch {
		case g.client != nil:
			return g.client(dc)
		case dc != "":
			return nil, fmt.Errorf("%w: %q", ErrNoDatacenter, dc)
		}
		return g.svc.Client(), nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func (g *rig) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.Handler.ServeHTTP(w, r.WithContext(tlsutil.WithPeer(r.Context(), g.peer)))
}

// do sends a request and checks the status of the response.
func (g *rig) do(status int, method, target, body string) string {
	g.Helper()
	r := httptest.NewRequest(method, target, strings.NewReader(body)).WithContext(g.Context())
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	if w.Code != status {
		g.Fatalf("%s %s = %d %s, want %d", method, target, w.Code, w.Body, status)
	}
	if want := "text/plain; charset=utf-8"; status >= 400 && w.Header().Get("Content-Type") != want {
		g.Errorf("content type of %s %s = %s", method, target, w.Header().Get("Content-Type"))
	}
	return w.Body.String()
}

// fails checks the status and the text of an error.
func (g *rig) fails(status int, text, method, target, body string) {
	g.Helper()
	if got := g.do(status, method, target, body); !strings.Contains(got, text) || strings.Contains(got, "\n") {
		g.Errorf("%s %s = %q, want %q", method, target, got, text)
	}
}

func (g *rig) one(method, target, body string) api.Resource {
	g.Helper()
	var r api.Resource
	if err := json.Unmarshal([]byte(g.do(http.StatusOK, method, target, body)), &r); err != nil {
		g.Fatal(err)
	}
	return r
}

func (g *rig) names(target string) string {
	g.Helper()
	var l struct{ Resources []api.Resource }
	if err := json.Unmarshal([]byte(g.do(http.StatusOK, "GET", target, "")), &l); err != nil {
		g.Fatal(err)
	}
	var names []string
	for _, r := range l.Resources {
		names = append(names, r.ID.Name)
	}
	return strings.Join(names, " ")
}
