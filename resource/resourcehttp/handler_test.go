// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	nodeType = &pb.Type{Group: "catalog", GroupVersion: "v1", Kind: "Node"}
	keyType  = &pb.Type{Group: "kv", GroupVersion: "v1", Kind: "Key"}
	fsType   = &pb.Type{Group: "federation", GroupVersion: "v1", Kind: "FederationState"}
	allType  = &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Anything"}
)

const web1 = "/api/catalog/v1/Node/web1"

func TestWriteReadDelete(t *testing.T) {
	g := newRig(t)
	a := g.one("PUT", web1, `{"data":{"node":"web1","address":"10.0.0.1"},"metadata":{"team":"a"}}`)
	if a.ID.Name != "web1" || a.ID.UID == "" || a.ID.Tenancy != (api.Tenancy{Partition: "default", Namespace: "default"}) || a.Version == "" ||
		string(a.Data) != `{"node":"web1","address":"10.0.0.1"}` || a.Metadata["team"] != "a" || a.ModifyIndex == 0 {
		t.Errorf("created resource = %+v", a)
	}
	for _, path := range []string{web1, "/api/catalog/v1/node/web1", "/api/catalog/v1/NODE/web1?consistent", web1 + "?uid=" + a.ID.UID, web1 + "?dc=dc1"} {
		if got := g.one("GET", path, ""); got.Version != a.Version {
			t.Errorf("GET %s = %+v", path, got)
		}
	}
	// A whole resource can be written as it was read.
	whole := g.do(200, "GET", web1+"?pretty", "")
	if !strings.HasPrefix(whole, "{\n  \"id\": {\n") || !strings.HasSuffix(whole, "}\n") {
		t.Errorf("pretty JSON = %s, want several lines", whole)
	}
	b := g.one("PUT", web1, strings.Replace(whole, "10.0.0.1", "10.0.0.2", 1))
	if b.Generation == a.Generation || b.ID.UID != a.ID.UID {
		t.Errorf("updated resource = %+v", b)
	}
	g.fails(409, "its version is "+b.Version+", not "+a.Version, "PUT", web1, whole)
	g.fails(409, "read it and try again", "PUT", web1+"?version="+a.Version, `{"data":{"address":"x"}}`)
	c := g.one("PUT", web1+"?version="+b.Version, `{"data":{"@type":"type.googleapis.com/wanfed.v1.Node","address":"10.0.0.3"}}`)
	if string(c.Data) != `{"address":"10.0.0.3"}` || len(c.Metadata) != 0 {
		t.Errorf("written resource = %+v", c)
	}
	g.fails(409, "another uid", "PUT", web1+"?uid=01ARYZ6S410000000000000000", `{"data":{"address":"x"}}`)
	if got := g.one("PUT", web1+"?dry-run", `{"data":{"address":"y"}}`); string(got.Data) != `{"address":"y"}` {
		t.Errorf("response to a dry run = %+v", got)
	}
	if got := g.one("GET", web1, ""); got.Version != c.Version {
		t.Errorf("resource after a dry run = %+v, want no change", got)
	}

	g.fails(409, "its version is", "DELETE", web1+"?version="+a.Version, "")
	g.do(204, "DELETE", web1+"?version="+c.Version, "")
	g.do(204, "DELETE", web1, "")
	g.fails(404, `catalog/v1/Node "web1": resource not found`, "GET", web1, "")
	g.fails(409, "leave the version out to create it", "PUT", web1+"?version="+c.Version, `{"data":{"address":"x"}}`)
}

func TestInvalidRequests(t *testing.T) {
	g := newRig(t)
	put := func(status int, text, query, body string) { t.Helper(); g.fails(status, text, "PUT", web1+query, body) }
	const ok = `{"data":{"address":"x"}}`
	put(400, `invalid catalog/v1/Node "web1": data.address is empty`, "", `{"data":{}}`)
	put(400, `invalid data: unknown field "adress"`, "", `{"data":{"adress":"x"}}`)
	put(400, `invalid data: invalid value for string field address: 5`, "", `{"data":{"address":5}}`)
	put(400, `invalid body: unknown field "dta"`, "", `{"dta":{}}`)
	put(400, "invalid data: it is missing; it is the JSON of a wanfed.v1.Node", "", `{}`)
	put(400, "invalid body: EOF", "", ``)
	put(400, "must end after the resource", "", ok+"{}")
	put(400, `@type "x/wanfed.v1.Check": must be`, "", `{"data":{"@type":"x/wanfed.v1.Check"}}`)
	put(400, `invalid id.name "web2": must be the value in the request, "web1", or left out`, "", `{"id":{"name":"web2"},"data":{}}`)
	put(400, `invalid id.type "a/v1/B": must be the type in the path`, "", `{"id":{"type":{"group":"a","group_version":"v1","kind":"B"}},"data":{}}`)
	put(400, `invalid version "8": must be the value in the request, "7"`, "?version=7", `{"version":"8","data":{}}`)
	put(400, `invalid parameter "verison": a write has the parameters dc, pretty, version, uid`, "?verison=7", ok)
	put(400, `parameter version: is given 2 times`, "?version=7&version=8", ok)
	put(400, `parameter dry-run "maybe": must be 1 or 0`, "?dry-run=maybe", ok)
	put(400, "invalid query string", "?a=%zz", ok)
	put(400, `tenancy.namespace "*": must be 1 to 63`, "?namespace=*", ok)
	put(404, `no such datacenter: "dc9"`, "?dc=dc9", ok)
	put(413, "request is too large: its body must be at most 6291456 bytes", "", strings.Repeat(" ", MaxBody+1))
	put(400, "must be at most 4194304", "", `{"data":{"address":"`+strings.Repeat("x", resource.MaxSize)+`"}}`)
	put(400, "invalid owner catalog/v1/Node \"o\": must be stored", "", `{"owner":{"name":"o","type":{"group":"catalog","group_version":"v1","kind":"Node"}},"data":{"address":"x"}}`)

	g.fails(400, `invalid type "catalog/v2/Node": is not registered; known are catalog/v1/Node, `, "GET", "/api/catalog/v2/Node", "")
	g.fails(400, `path "/api/catalog/v1": must be`, "GET", "/api/catalog/v1", "")
	g.fails(400, `invalid name "WEB": must be`, "GET", "/api/catalog/v1/Node/WEB", "")
	g.fails(400, "watch and consistent", "GET", "/api/catalog/v1/Node?watch&consistent", "")
	g.fails(400, "a read has the parameters", "GET", web1+"?prefix=a", "")
	g.fails(400, "each server describes only itself", "GET", "/api/types?dc=dc2", "")
	g.fails(400, "this document has the parameters dc, pretty", "GET", "/api/types?x", "")
	g.fails(405, "GET, HEAD, PUT, DELETE", "POST", web1, ok)
	g.fails(405, "method PUT is not allowed for this path; allowed are GET, HEAD", "PUT", "/api/catalog/v1/Node", ok)
	g.fails(405, "GET, HEAD", "PUT", "/api/types", ok)
	g.fails(404, "no such path", "GET", "/other", "")
	g.fails(400, "must be empty: resources of this type have the scope cluster", "GET", "/api/federation/v1/federationstate?namespace=a", "")

	g.peer = tlsutil.Peer{Role: tlsutil.RoleGateway, DC: "dc2", Node: "gw1"}
	put(403, "gateway/dc2/gw1 may not write catalog/v1/Node: only operators, and servers of datacenter dc1, may", "", ok)
	g.fails(403, "may not list", "GET", "/api/catalog/v1/Node?watch", "")
}

func TestNames(t *testing.T) {
	g := newRig(t)
	const ok = `{"data":{"address":"x"}}`
	for path, want := range map[string]string{
		"a/b": "a/b", "a%2Fc": "a/c", "a/%2F/d": "a///d", "%2e%2e": "..", "with%20blank": "with blank", "%C3%A4?": "ä", "a/": "a/",
	} {
		if got := g.one("PUT", "/api/kv/v1/key/"+path, ok); got.ID.Name != want {
			t.Errorf("name of %s = %q, want %q", path, got.ID.Name, want)
		}
		if got := g.one("GET", "/api/kv/v1/key/"+path, ""); got.ID.Name != want {
			t.Errorf("name of %s = %q, want %q", path, got.ID.Name, want)
		}
	}
	for query, want := range map[string]string{"": ".. a/ a/// /d a/b a/c with blank ä", "?prefix=a/": "a/ a/// /d a/b a/c", "?prefix=b": ""} {
		if got := g.names("/api/kv/v1/key" + query); got != strings.ReplaceAll(want, "a/// /d", "a///d") {
			t.Errorf("list with %s = %q, want %q", query, got, want)
		}
	}
	g.one("PUT", "/api/kv/v1/key/n?namespace=other", ok)
	if got := g.names("/api/kv/v1/key/?namespace=*&prefix=n"); got != "n" {
		t.Errorf("list of all namespaces = %q", got)
	}
}

func TestOwnedAndStatus(t *testing.T) {
	g := newRig(t)
	owner := g.one("PUT", web1, `{"data":{"address":"x"}}`)
	child := g.one("PUT", "/api/kv/v1/key/c", `{"owner":{"name":"web1","type":{"group":"catalog","group_version":"v1","kind":"Node"}},"data":{}}`)
	if child.Owner == nil || child.Owner.UID != owner.ID.UID {
		t.Errorf("owner = %+v", child.Owner)
	}
	if got := g.names(web1 + "?owned"); got != "c" {
		t.Errorf("list of owned resources = %q", got)
	}
	const status = `{"observed_generation":"g","conditions":[{"type":"ready","state":"STATE_TRUE","resource":{"name":"r"}}]}`
	g.fails(400, `id.uid ""`, "PUT", web1+"?status=ctl", status)
	g.fails(400, `invalid status: unknown field "x"`, "PUT", web1+"?status=ctl&uid="+owner.ID.UID, `{"x":1}`)
	g.fails(400, "a status has no dry run", "PUT", web1+"?status=ctl&dry-run&uid="+owner.ID.UID, status)
	got := g.one("PUT", web1+"?status=ctl&uid="+owner.ID.UID, status)
	if s := got.Status["ctl"]; s.ObservedGeneration != "g" || len(s.Conditions) != 1 || s.Conditions[0].State != "STATE_TRUE" || s.Conditions[0].Resource.Name != "r" ||
		s.UpdatedAt.IsZero() || got.Generation != owner.Generation {
		t.Errorf("resource with a status = %+v", got)
	}
}

// TestList_Large checks that a list in several pieces is one JSON document, also as
// the snapshot of a watch.
func TestList_Large(t *testing.T) {
	g := newRig(t)
	const n = 1000
	var ops []*pb.Op
	for i := range n {
		r, err := resource.New(nodeType, fmt.Sprintf("n%05d", i), &pb.Node{Address: strings.Repeat("x", 100)})
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, resource.PutOp(r, ""))
	}
	if _, err := g.store.Commit(t.Context(), ops...); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", "?pretty", "?dc=dc2", "?dc=dc2&pretty"} {
		g.client = func(dc string) (pb.ResourceServiceClient, error) {
			if dc == "" {
				return g.svc.Client(), nil
			}
			return tooLarge{g.svc.Client()}, nil
		}
		if got := strings.Fields(g.names("/api/catalog/v1/Node" + path)); len(got) != n || got[n-1] != "n00999" {
			t.Errorf("list %s has %d resources, want all", path, len(got))
		}
	}
	g.fails(413, "received message larger than max", "GET", "/api/catalog/v1/Node?dc=dc2&consistent", "")
	if body := g.do(200, "GET", "/api/catalog/v1/Node?prefix=x&pretty", ""); body != `{"resources":[]}`+"\n" {
		t.Errorf("empty list = %q", body)
	}
}

// TestList_Broken checks that a client detects a list that ends early.
func TestList_Broken(t *testing.T) {
	g := newRig(t)
	for i := range 3 {
		g.one("PUT", fmt.Sprintf("/api/catalog/v1/Node/n%d", i), `{"data":{"address":"x"}}`)
	}
	g.client = func(string) (pb.ResourceServiceClient, error) { return breaks{tooLarge{g.svc.Client()}}, nil }
	srv := httptest.NewServer(g)
	defer srv.Close()
	resp, err := srv.Client().Get(srv.URL + "/api/catalog/v1/Node")
	if err == nil {
		_, err = io.ReadAll(resp.Body)
		resp.Body.Close()
	}
	if err == nil {
		t.Error("incomplete list = nil, want an error")
	}
}

// TestWrite_Lost checks that a call that was not sent is a 503, and one with an
// unknown outcome a 504.
func TestWrite_Lost(t *testing.T) {
	g := newRig(t)
	for sent, code := range map[bool]int{false: 503, true: 504} {
		g.client = func(string) (pb.ResourceServiceClient, error) { return lost{g.svc.Client(), sent}, nil }
		g.fails(code, "error reading from server: EOF", "PUT", web1+"?dc=dc2", `{"data":{"address":"x"}}`)
		g.fails(code, "error reading from server: EOF", "DELETE", web1+"?dc=dc2", "")
	}
}

func TestStatusOf(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want int
	}{
		{resource.ErrInvalid, 400}, {resource.ErrDenied, 403}, {resource.ErrNotFound, 404}, {resource.ErrConflict, 409}, {resource.ErrUIDMismatch, 409},
		{resource.ErrTerminating, 409}, {resource.ErrGroupVersion, 409}, {resource.ErrFederated, 409}, {resource.ErrNotLeader, 503}, {resource.ErrClosed, 503},
		{resource.ErrUnreachable, 503}, {context.Canceled, 503}, {context.DeadlineExceeded, 504}, {resource.ErrUnknownOutcome, 504}, {errors.New("disk"), 500},
	} {
		wrapped := fmt.Errorf("write: %w", tt.err)
		if here, far := StatusOf(wrapped), StatusOf(resource.StatusError(wrapped)); here != tt.want || far != tt.want {
			t.Errorf("StatusOf(%v) = %d, over gRPC %d, want %d", tt.err, here, far, tt.want)
		}
	}
	for code, want := range map[codes.Code]int{
		codes.InvalidArgument: 400, codes.PermissionDenied: 403, codes.Unauthenticated: 403, codes.ResourceExhausted: 413, codes.Unavailable: 503,
		codes.Unimplemented: 501, codes.Internal: 500, codes.NotFound: 404, codes.DeadlineExceeded: 504,
	} {
		if got := StatusOf(status.Error(code, "x")); got != want {
			t.Errorf("StatusOf() of code %v = %d, want %d", code, got, want)
		}
	}
}
