// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
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

// fixture is the handler of dc1 over a resource service with a store in memory.
type fixture struct {
	*testing.T
	http.Handler
	store    *resourcetest.Store
	registry *resource.Registry
	svc      *resource.Service
	peer     tlsutil.Peer                                      // the caller
	client   func(dc string) (pb.ResourceServiceClient, error) // Config.Client; nil: svc for dc1
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, store: resourcetest.NewStore(), registry: resource.NewRegistry(),
		peer: *resourcetest.Operator()}
	t.Cleanup(f.store.Close)
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
		if err := f.registry.Register(r); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	f.svc, err = resource.NewService(resource.ServiceConfig{
		Backend: f.store, Registry: f.registry, DC: "dc1", Primary: func() bool { return true },
		Peer: resourcetest.PeerOf,
	})
	if err != nil {
		t.Fatal(err)
	}
	client := func(dc string) (pb.ResourceServiceClient, error) {
		switch {
		case f.client != nil:
			return f.client(dc)
		case dc != "":
			return nil, fmt.Errorf("%w: %q", ErrNoDatacenter, dc)
		}
		return f.svc.Client(), nil
	}
	f.Handler, err = New(Config{DC: "dc1", Registry: f.registry, Client: client})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.Handler.ServeHTTP(w, r.WithContext(tlsutil.WithPeer(r.Context(), f.peer)))
}

// do sends a request, checks the status of the response, and returns the body.
func (f *fixture) do(status int, method, target, body string) string {
	f.Helper()
	r := httptest.NewRequest(method, target, strings.NewReader(body)).WithContext(f.Context())
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	if w.Code != status {
		f.Fatalf("%s %s = %d %s, want %d", method, target, w.Code, w.Body, status)
	}
	if want := "text/plain; charset=utf-8"; status >= 400 && w.Header().Get("Content-Type") != want {
		f.Errorf("content type of %s %s = %s, want %s", method, target, w.Header().Get("Content-Type"), want)
	}
	return w.Body.String()
}

// fails checks the status and the text of an error response.
func (f *fixture) fails(status int, text, method, target, body string) {
	f.Helper()
	if got := f.do(status, method, target, body); !strings.Contains(got, text) || strings.Contains(got, "\n") {
		f.Errorf("%s %s = %q, want one line with %q", method, target, got, text)
	}
}

// one sends a request and returns the resource in the response.
func (f *fixture) one(method, target, body string) api.Resource {
	f.Helper()
	var r api.Resource
	if err := json.Unmarshal([]byte(f.do(http.StatusOK, method, target, body)), &r); err != nil {
		f.Fatal(err)
	}
	return r
}

// names returns the names in a list, separated by spaces.
func (f *fixture) names(target string) string {
	f.Helper()
	var l struct{ Resources []api.Resource }
	if err := json.Unmarshal([]byte(f.do(http.StatusOK, "GET", target, "")), &l); err != nil {
		f.Fatal(err)
	}
	var names []string
	for _, r := range l.Resources {
		names = append(names, r.ID.Name)
	}
	return strings.Join(names, " ")
}
