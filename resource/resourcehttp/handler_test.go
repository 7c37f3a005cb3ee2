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

// TestRead checks the forms of a path and the parameters of a read.
func TestRead(t *testing.T) {
	f := newFixture(t)
	created := f.one("PUT", web1, `{"data":{"node":"web1","address":"10.0.0.1"},"metadata":{"team":"a"}}`)
	if created.ID.Name != "web1" || created.ID.UID == "" ||
		created.ID.Tenancy != (api.Tenancy{Partition: "default", Namespace: "default"}) ||
		created.Version == "" || created.ModifyIndex == 0 ||
		string(created.Data) != `{"node":"web1","address":"10.0.0.1"}` || created.Metadata["team"] != "a" {
		t.Errorf("PUT %s = %+v, want the given data and metadata with id, version and index", web1, created)
	}
	for _, path := range []string{
		web1, "/api/catalog/v1/node/web1", "/api/catalog/v1/NODE/web1?consistent", web1 + "?uid=" + created.ID.UID,
		web1 + "?dc=dc1",
	} {
		if got := f.one("GET", path, ""); got.Version != created.Version {
			t.Errorf("GET %s = %+v, want version %s", path, got, created.Version)
		}
	}
	f.fails(404, `catalog/v1/Node "web2": resource not found`, "GET", "/api/catalog/v1/Node/web2", "")
}

// TestWrite checks that the body of a GET is valid as the body of a PUT, and
// checks the parameters of a write.
func TestWrite(t *testing.T) {
	f := newFixture(t)
	first := f.one("PUT", web1, `{"data":{"address":"10.0.0.1"},"metadata":{"team":"a"}}`)
	body := f.do(200, "GET", web1+"?pretty", "")
	if !strings.HasPrefix(body, "{\n  \"id\": {\n") || !strings.HasSuffix(body, "}\n") {
		t.Errorf("GET %s?pretty = %s, want indented lines", web1, body)
	}
	second := f.one("PUT", web1, strings.Replace(body, "10.0.0.1", "10.0.0.2", 1))
	if second.Generation == first.Generation || second.ID.UID != first.ID.UID {
		t.Errorf("PUT of a whole resource = %+v, want another generation and the uid of %+v", second, first)
	}
	f.fails(409, "its version is "+second.Version+", not "+first.Version, "PUT", web1, body)
	f.fails(409, "read it and try again", "PUT", web1+"?version="+first.Version, `{"data":{"address":"x"}}`)
	third := f.one("PUT", web1+"?version="+second.Version,
		`{"data":{"@type":"type.googleapis.com/wanfed.v1.Node","address":"10.0.0.3"}}`)
	if string(third.Data) != `{"address":"10.0.0.3"}` || len(third.Metadata) != 0 {
		t.Errorf("PUT with a version = %+v, want only the given data", third)
	}
	f.fails(409, "another uid", "PUT", web1+"?uid=01ARYZ6S410000000000000000", `{"data":{"address":"x"}}`)
	if got := f.one("PUT", web1+"?dry-run", `{"data":{"address":"y"}}`); string(got.Data) != `{"address":"y"}` {
		t.Errorf("PUT %s?dry-run = %+v, want the given data", web1, got)
	}
	if got := f.one("GET", web1, ""); got.Version != third.Version {
		t.Errorf("GET after a dry run = %+v, want version %s", got, third.Version)
	}
}

// TestDelete checks that a deletion is idempotent, and may require a version.
func TestDelete(t *testing.T) {
	f := newFixture(t)
	first := f.one("PUT", web1, `{"data":{"address":"10.0.0.1"}}`)
	second := f.one("PUT", web1, `{"data":{"address":"10.0.0.2"}}`)
	f.fails(409, "its version is", "DELETE", web1+"?version="+first.Version, "")
	f.do(204, "DELETE", web1+"?version="+second.Version, "")
	f.do(204, "DELETE", web1, "")
	f.fails(404, `catalog/v1/Node "web1": resource not found`, "GET", web1, "")
	f.fails(409, "leave the version out to create it", "PUT", web1+"?version="+second.Version,
		`{"data":{"address":"x"}}`)
}

// validBody is a valid body of a PUT.
const validBody = `{"data":{"address":"x"}}`

func TestWrite_Invalid(t *testing.T) {
	f := newFixture(t)
	put := func(status int, text, query, body string) { t.Helper(); f.fails(status, text, "PUT", web1+query, body) }
	put(400, `invalid catalog/v1/Node "web1": data.address is empty`, "", `{"data":{}}`)
	put(400, `invalid data: unknown field "adress"`, "", `{"data":{"adress":"x"}}`)
	put(400, `invalid data: invalid value for string field address: 5`, "", `{"data":{"address":5}}`)
	put(400, `invalid body: unknown field "dta"`, "", `{"dta":{}}`)
	put(400, "invalid data: it is missing; it is the JSON of a wanfed.v1.Node", "", `{}`)
	put(400, "invalid body: EOF", "", ``)
	put(400, "must end after the resource", "", validBody+"{}")
	put(400, `@type "x/wanfed.v1.Check": must be`, "", `{"data":{"@type":"x/wanfed.v1.Check"}}`)
	put(400, `invalid id.name "web2": must be the value in the request, "web1", or left out`, "",
		`{"id":{"name":"web2"},"data":{}}`)
	put(400, `invalid id.type "a/v1/B": must be the type in the path`, "",
		`{"id":{"type":{"group":"a","group_version":"v1","kind":"B"}},"data":{}}`)
	put(400, `invalid version "8": must be the value in the request, "7"`, "?version=7", `{"version":"8","data":{}}`)
	put(400, `invalid parameter "verison": a write has the parameters dc, pretty, version, uid`,
		"?verison=7", validBody)
	put(400, `parameter version: is given 2 times`, "?version=7&version=8", validBody)
	put(400, `parameter dry-run "maybe": must be 1 or 0`, "?dry-run=maybe", validBody)
	put(400, "invalid query string", "?a=%zz", validBody)
	put(400, `tenancy.namespace "*": must be 1 to 63`, "?namespace=*", validBody)
	put(404, `no such datacenter: "dc9"`, "?dc=dc9", validBody)
	put(413, "request is too large: its body must be at most 6291456 bytes", "", strings.Repeat(" ", MaxBody+1))
	put(400, "must be at most 4194304", "", `{"data":{"address":"`+strings.Repeat("x", resource.MaxSize)+`"}}`)
	put(400, "invalid owner catalog/v1/Node \"o\": must be stored", "",
		`{"owner":{"name":"o","type":{"group":"catalog","group_version":"v1","kind":"Node"}},"data":{"address":"x"}}`)
}

func TestRequests_Invalid(t *testing.T) {
	f := newFixture(t)
	f.fails(400, `invalid type "catalog/v2/Node": is not registered; known are catalog/v1/Node, `, "GET",
		"/api/catalog/v2/Node", "")
	f.fails(400, `path "/api/catalog/v1": must be`, "GET", "/api/catalog/v1", "")
	f.fails(400, `invalid name "WEB": must be`, "GET", "/api/catalog/v1/Node/WEB", "")
	f.fails(400, "watch and consistent", "GET", "/api/catalog/v1/Node?watch&consistent", "")
	f.fails(400, "a read has the parameters", "GET", web1+"?prefix=a", "")
	f.fails(400, "each server describes only itself", "GET", "/api/types?dc=dc2", "")
	f.fails(400, "this document has the parameters dc, pretty", "GET", "/api/types?x", "")
	f.fails(405, "GET, HEAD, PUT, DELETE", "POST", web1, validBody)
	f.fails(405, "method PUT is not allowed for this path; allowed are GET, HEAD", "PUT",
		"/api/catalog/v1/Node", validBody)
	f.fails(405, "GET, HEAD", "PUT", "/api/types", validBody)
	f.fails(404, "no such path", "GET", "/other", "")
	f.fails(400, "must be empty: resources of this type have the scope cluster", "GET",
		"/api/federation/v1/federationstate?namespace=a", "")
}

func TestRequests_Denied(t *testing.T) {
	f := newFixture(t)
	f.peer = tlsutil.Peer{Role: tlsutil.RoleGateway, DC: "dc2", Node: "gw1"}
	f.fails(403, "gateway/dc2/gw1 may not write catalog/v1/Node: only operators, and servers of datacenter dc1, may",
		"PUT", web1, validBody)
	f.fails(403, "may not list", "GET", "/api/catalog/v1/Node?watch", "")
}

// TestNames checks which paths name which resources of a type that allows "/".
func TestNames(t *testing.T) {
	f := newFixture(t)
	for path, want := range map[string]string{
		"a/b": "a/b", "a%2Fc": "a/c", "a/%2F/d": "a///d", "%2e%2e": "..", "with%20blank": "with blank", "%C3%A4?": "ä",
		"a/": "a/",
	} {
		if got := f.one("PUT", "/api/kv/v1/key/"+path, validBody); got.ID.Name != want {
			t.Errorf("PUT %s wrote name %q, want %q", path, got.ID.Name, want)
		}
		if got := f.one("GET", "/api/kv/v1/key/"+path, ""); got.ID.Name != want {
			t.Errorf("GET %s has name %q, want %q", path, got.ID.Name, want)
		}
	}
	for query, want := range map[string]string{"": ".. a/ a/// /d a/b a/c with blank ä",
		"?prefix=a/": "a/ a/// /d a/b a/c", "?prefix=b": ""} {
		if got := f.names("/api/kv/v1/key" + query); got != strings.ReplaceAll(want, "a/// /d", "a///d") {
			t.Errorf("GET kv/v1/key%s = %q, want %q", query, got, want)
		}
	}
	f.one("PUT", "/api/kv/v1/key/n?namespace=other", validBody)
	if got := f.names("/api/kv/v1/key/?namespace=*&prefix=n"); got != "n" {
		t.Errorf("GET of all namespaces = %q, want n", got)
	}
}

func TestRead_Owned(t *testing.T) {
	f := newFixture(t)
	owner := f.one("PUT", web1, `{"data":{"address":"x"}}`)
	child := f.one("PUT", "/api/kv/v1/key/c",
		`{"owner":{"name":"web1","type":{"group":"catalog","group_version":"v1","kind":"Node"}},"data":{}}`)
	if child.Owner == nil || child.Owner.UID != owner.ID.UID {
		t.Errorf("PUT with an owner by name = %+v, want uid %s", child.Owner, owner.ID.UID)
	}
	if got := f.names(web1 + "?owned"); got != "c" {
		t.Errorf("GET %s?owned = %q, want c", web1, got)
	}
}

func TestWrite_Status(t *testing.T) {
	f := newFixture(t)
	r := f.one("PUT", web1, `{"data":{"address":"x"}}`)
	const status = `{"observed_generation":"g","conditions":[{"type":"ready","state":"STATE_TRUE",` +
		`"resource":{"name":"r"}}]}`
	f.fails(400, `id.uid ""`, "PUT", web1+"?status=ctl", status)
	f.fails(400, `invalid status: unknown field "x"`, "PUT", web1+"?status=ctl&uid="+r.ID.UID, `{"x":1}`)
	f.fails(400, "a status has no dry run", "PUT", web1+"?status=ctl&dry-run&uid="+r.ID.UID, status)
	got := f.one("PUT", web1+"?status=ctl&uid="+r.ID.UID, status)
	if s := got.Status["ctl"]; s.ObservedGeneration != "g" || len(s.Conditions) != 1 ||
		s.Conditions[0].State != "STATE_TRUE" || s.Conditions[0].Resource.Name != "r" ||
		s.UpdatedAt.IsZero() || got.Generation != r.Generation {
		t.Errorf("PUT %s?status=ctl = %+v, want the status, and the generation %s", web1, got, r.Generation)
	}
}

// TestList_Large checks that a list in several pieces is one JSON document,
// even if it is read as the snapshot of a watch.
func TestList_Large(t *testing.T) {
	f := newFixture(t)
	const n = 1000
	var ops []*pb.Op
	for i := range n {
		r, err := resource.New(nodeType, fmt.Sprintf("n%05d", i), &pb.Node{Address: strings.Repeat("x", 100)})
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, resource.PutOp(r, ""))
	}
	if _, err := f.store.Commit(t.Context(), ops...); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", "?pretty", "?dc=dc2", "?dc=dc2&pretty"} {
		f.client = func(dc string) (pb.ResourceServiceClient, error) {
			if dc == "" {
				return f.svc.Client(), nil
			}
			return largeListClient{f.svc.Client()}, nil
		}
		if got := strings.Fields(f.names("/api/catalog/v1/Node" + path)); len(got) != n || got[n-1] != "n00999" {
			t.Errorf("GET catalog/v1/Node%s has %d resources, want %d in order", path, len(got), n)
		}
	}
	f.fails(413, "received message larger than max", "GET", "/api/catalog/v1/Node?dc=dc2&consistent", "")
	if body := f.do(200, "GET", "/api/catalog/v1/Node?prefix=x&pretty", ""); body != `{"resources":[]}`+"\n" {
		t.Errorf("empty list = %q, want %q", body, `{"resources":[]}`)
	}
}

// TestList_Incomplete checks that a client detects a list that ends early.
func TestList_Incomplete(t *testing.T) {
	f := newFixture(t)
	for i := range 3 {
		f.one("PUT", fmt.Sprintf("/api/catalog/v1/Node/n%d", i), `{"data":{"address":"x"}}`)
	}
	f.client = func(string) (pb.ResourceServiceClient, error) {
		return failingWatchClient{largeListClient{f.svc.Client()}}, nil
	}
	srv := httptest.NewServer(f)
	defer srv.Close()
	resp, err := srv.Client().Get(srv.URL + "/api/catalog/v1/Node")
	if err == nil {
		_, err = io.ReadAll(resp.Body)
		resp.Body.Close()
	}
	if err == nil {
		t.Error("read of an incomplete list = nil, want an error")
	}
}

// TestWrite_Unavailable checks that a call that was not sent is a 503, and that
// a call with an unknown outcome is a 504.
func TestWrite_Unavailable(t *testing.T) {
	f := newFixture(t)
	for sent, code := range map[bool]int{false: 503, true: 504} {
		f.client = func(string) (pb.ResourceServiceClient, error) { return failingClient{f.svc.Client(), sent}, nil }
		f.fails(code, "error reading from server: EOF", "PUT", web1+"?dc=dc2", `{"data":{"address":"x"}}`)
		f.fails(code, "error reading from server: EOF", "DELETE", web1+"?dc=dc2", "")
	}
}

func TestStatusOf(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want int
	}{
		{resource.ErrInvalid, 400}, {resource.ErrDenied, 403}, {resource.ErrNotFound, 404}, {resource.ErrConflict, 409},
		{resource.ErrUIDMismatch, 409},
		{resource.ErrTerminating, 409}, {resource.ErrGroupVersion, 409}, {resource.ErrFederated, 409},
		{resource.ErrNotLeader, 503}, {resource.ErrClosed, 503},
		{resource.ErrUnreachable, 503}, {context.Canceled, 503}, {context.DeadlineExceeded, 504},
		{resource.ErrUnknownOutcome, 504}, {errors.New("fault"), 500},
	} {
		wrapped := fmt.Errorf("write: %w", tt.err)
		if local, remote := StatusOf(wrapped), StatusOf(resource.StatusError(wrapped)); local != tt.want ||
			remote != tt.want {
			t.Errorf("StatusOf(%v) = %d, over gRPC %d, want %d", tt.err, local, remote, tt.want)
		}
	}
	for code, want := range map[codes.Code]int{
		codes.InvalidArgument: 400, codes.PermissionDenied: 403, codes.Unauthenticated: 403,
		codes.ResourceExhausted: 413, codes.Unavailable: 503,
		codes.Unimplemented: 501, codes.Internal: 500, codes.NotFound: 404, codes.DeadlineExceeded: 504,
	} {
		if got := StatusOf(status.Error(code, "x")); got != want {
			t.Errorf("StatusOf() of code %v = %d, want %d", code, got, want)
		}
	}
}
