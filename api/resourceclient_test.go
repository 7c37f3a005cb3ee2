// SPDX-License-Identifier: MPL-2.0

package api

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
)

var nodeName = ResourceTypeName{"catalog", "v1", "Node"}

// recorder returns a fixed response and records the last request. These tests
// check the requests of the client and its handling of invalid responses. Real
// responses are tested in resource/resourcehttp and cmd/wanfed.
type recorder struct {
	method, uri, body string
	status            int
	response          string
}

func (rec *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	rec.method, rec.uri, rec.body = r.Method, r.RequestURI, string(body)
	if rec.status != 0 {
		w.WriteHeader(rec.status)
	}
	_, _ = io.WriteString(w, rec.response)
}

func newTLSClient(t *testing.T, h http.Handler) *Client {
	t.Helper()
	srv := httptest.NewTLSServer(h)
	t.Cleanup(srv.Close)
	c, err := NewClient(ClientConfig{Addr: srv.URL,
		TLS: &tls.Config{RootCAs: srv.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestResourceRequests(t *testing.T) {
	rec := &recorder{response: `{"id":{"name":"a"},"data":{"x":1}}`}
	c := newTLSClient(t, rec)
	id := ResourceID{Name: "a/b ?", Type: nodeName, UID: "u", Tenancy: Tenancy{"p", "n"}}
	check := func(err error, method, uri, body string) {
		t.Helper()
		if err != nil || rec.method != method || rec.uri != uri || rec.body != body {
			t.Errorf("request = %s %s %s, error %v, want %s %s %s, nil", rec.method, rec.uri, rec.body, err,
				method, uri, body)
		}
	}
	const path = "/api/catalog/v1/Node/a%2Fb%20%3F"
	r, err := c.ReadResource(t.Context(), id, ResourceOptions{Consistent: true, Datacenter: "dc2"})
	check(err, "GET", path+"?consistent=1&dc=dc2&namespace=n&partition=p&uid=u", "")
	if r.ID.Name != "a" || string(r.Data) != `{"x":1}` {
		t.Errorf("ReadResource() = %+v, want name a and data {\"x\":1}", r)
	}
	body := `{"id":{"uid":"u","name":"a/b ?","type":{"group":"catalog","group_version":"v1","kind":"Node"},` +
		`"tenancy":{"partition":"p","namespace":"n"}},"data":{"x":2}}`
	_, err = c.WriteResource(t.Context(), Resource{ID: id, Data: json.RawMessage(`{"x":2}`)},
		ResourceOptions{Version: "7"})
	check(err, "PUT", path+"?namespace=n&partition=p&version=7", body)
	_, err = c.DryRunResource(t.Context(), Resource{ID: id, Data: json.RawMessage(`{"x":2}`)}, ResourceOptions{})
	check(err, "PUT", path+"?dry-run=1&namespace=n&partition=p", body)
	check(c.DeleteResource(t.Context(), ResourceID{Name: "..", Type: nodeName}, ResourceOptions{Version: "7"}),
		"DELETE", "/api/catalog/v1/Node/%2E%2E?version=7", "")

	rec.status, rec.response = 409, "resource has changed"
	_, err = c.WriteResource(t.Context(), Resource{ID: id, Data: json.RawMessage(`{}`)}, ResourceOptions{})
	if e, ok := errors.AsType[*StatusError](err); !ok || e.Code != 409 || e.Message != rec.response {
		t.Errorf("WriteResource() with response 409 = %v, want a StatusError with code 409 and message %q", err,
			rec.response)
	}
	rec.status, rec.response = 200, "<html>"
	if _, err = c.WriteResource(t.Context(), Resource{ID: id, Data: json.RawMessage(`{}`)},
		ResourceOptions{}); err == nil || !strings.Contains(err.Error(), "check which program listens there") {
		t.Errorf("WriteResource() with an HTML response = %v, want an error with a remedy", err)
	}

	plain, err := NewClient(ClientConfig{Addr: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := plain.DeleteResource(t.Context(), id, ResourceOptions{}); !errors.Is(err, ErrNeedsTLS) {
		t.Errorf("DeleteResource() by plain HTTP = %v, want %v", err, ErrNeedsTLS)
	}
}

func TestResourceLists(t *testing.T) {
	rec := &recorder{}
	c := newTLSClient(t, rec)
	list := func() (names []string, err error) {
		for r, err := range c.Resources(t.Context(), nodeName, Tenancy{Namespace: "*"}, ResourceOptions{Prefix: "w"}) {
			if err != nil {
				return names, err
			}
			if names = append(names, r.ID.Name); len(names) == 2 {
				break
			}
		}
		return names, nil
	}
	for response, want := range map[string]struct {
		n   int
		err string
	}{
		`{"resources":[]}`:                           {0, ""},
		`{"resources":[{"id":{"name":"a"}}]}`:        {1, ""},
		`{"resources":[{},{},{},{}]}`:                {2, ""}, // the loop stops after 2
		`{"resources":[{"id":{"name":"a"}}`:          {1, "unexpected EOF"},
		`{"resources":[{"id":{"name":"a"}},{"id":{"`: {1, "unexpected EOF"},
		`[]`:                   {0, "is not a response of this API"},
		`{"error":"no"}`:       {0, "found error instead of resources"},
		`{"resources":[{},7]}`: {1, "is not a response of this API"},
		``:                     {0, "EOF"},
	} {
		rec.response = response
		names, err := list()
		if len(names) != want.n || (err == nil) != (want.err == "") || err != nil &&
			!strings.Contains(err.Error(), want.err) {
			t.Errorf("Resources() with response %s = %v, %v, want %d resources and error %q", response, names, err,
				want.n, want.err)
		}
	}
	if want := "/api/catalog/v1/Node?namespace=%2A&prefix=w"; rec.uri != want {
		t.Errorf("Resources() requests %s, want %s", rec.uri, want)
	}
	rec.status, rec.response = 403, "not allowed"
	if _, err := list(); err == nil || !strings.Contains(err.Error(), "answered 403: not allowed") {
		t.Errorf("Resources() with response 403 = %v, want the message of the response", err)
	}
	for r, err := range c.OwnedResources(t.Context(), ResourceID{Name: "a", Type: nodeName, UID: "u"},
		ResourceOptions{}) {
		if err == nil {
			t.Errorf("OwnedResources() with response 403 = %v, want an error", r)
		}
	}
	if want := "/api/catalog/v1/Node/a?owned=1&uid=u"; rec.uri != want {
		t.Errorf("OwnedResources() requests %s, want %s", rec.uri, want)
	}
}

func TestResourceWatch(t *testing.T) {
	rec := &recorder{response: ": hello\n\nevent: upsert\ndata: {\"id\":{\"name\":\"a\"},\"data\":{}}\n\n: " +
		"heartbeat\n\nevent: end-of-snapshot\r\ndata: {}\r\n\r\n" +
		"event: delete\ndata: {\"id\":{\"name\":\"a\"}}\n\nevent: end\ndata: {\"error\":\"this server is " +
		"stopping\"}\n\n"}
	c := newTLSClient(t, rec)
	watch := func() (got string) {
		for ev, err := range c.WatchResources(t.Context(), nodeName, Tenancy{}, ResourceOptions{Prefix: "a"}) {
			if err != nil {
				return got + err.Error()
			}
			got += ev.Type + " " + ev.Resource.ID.Name + ", "
		}
		return got
	}
	if got, want := watch(), "upsert a, end-of-snapshot , delete a, watch ended: this server is stopping"; got != want {
		t.Errorf("WatchResources() = %q, want %q", got, want)
	}
	if want := "/api/catalog/v1/Node?prefix=a&watch=1"; rec.uri != want {
		t.Errorf("WatchResources() requests %s, want %s", rec.uri, want)
	}
	for response, want := range map[string]string{
		"event: upsert\ndata: {":     "watch ended: its connection was lost: EOF",
		"event: upsert\ndata: {\n\n": "event upsert: unexpected end of JSON input",
		"":                           "watch ended: its connection was lost: EOF",
	} {
		rec.response = response
		if got := watch(); got != want {
			t.Errorf("WatchResources() with response %q = %q, want %q", response, got, want)
		}
	}
}

// A watch times out if the server sends no data, not even comments.
func TestWatchResources_Timeout(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		c, err := NewClient(ClientConfig{Addr: "127.0.0.1:1"})
		if err != nil {
			t.Fatal(err)
		}
		c.http.Transport = emptyWatch{}
		began := time.Now()
		for _, err := range c.WatchResources(t.Context(), nodeName, Tenancy{}, ResourceOptions{}) {
			if _, ok := errors.AsType[*UnreachableError](err); !ok ||
				!strings.Contains(err.Error(), "no response within 40s") {
				t.Errorf("WatchResources() without data = %v, want an UnreachableError after 40s", err)
			}
		}
		if d := time.Since(began); d != watchTimeout {
			t.Errorf("WatchResources() without data ended after %v, want %v", d, watchTimeout)
		}
	})
}

// TestResources_SlowCaller checks that the timeout of a list does not include
// the time in which the caller uses a resource.
func TestResources_SlowCaller(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		c, err := NewClient(ClientConfig{Addr: "127.0.0.1:1"})
		if err != nil {
			t.Fatal(err)
		}
		c.http.Transport = slowList{}
		n := 0
		for _, err := range c.Resources(t.Context(), nodeName, Tenancy{}, ResourceOptions{}) {
			if err != nil {
				t.Fatalf("Resources() after %d resources = %v, want nil", n, err)
			}
			n++
			time.Sleep(2 * watchTimeout)
		}
		if n != 3 {
			t.Errorf("Resources() = %d resources, want 3", n)
		}
	})
}

// slowList responds with three resources, one with each Read of the body.
type slowList struct{}

func (slowList) RoundTrip(r *http.Request) (*http.Response, error) {
	in, out := io.Pipe()
	go func() {
		stop := context.AfterFunc(r.Context(), func() { out.CloseWithError(r.Context().Err()) })
		defer stop()
		for _, s := range []string{`{"resources":[{}`, `,{}`, `,{}`, `]}`} {
			if _, err := io.WriteString(out, s); err != nil {
				return
			}
		}
		out.Close()
	}()
	return &http.Response{StatusCode: 200, Body: in, Header: http.Header{}, Request: r}, nil
}

// emptyWatch responds with a body that never has data.
type emptyWatch struct{}

func (emptyWatch) RoundTrip(r *http.Request) (*http.Response, error) {
	in, out := io.Pipe()
	stop := r.Context().Done()
	go func() {
		<-stop
		out.CloseWithError(r.Context().Err())
	}()
	return &http.Response{StatusCode: 200, Body: in, Header: http.Header{}, Request: r}, nil
}

func TestFromResource(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	typ := &pb.Type{Group: "catalog", GroupVersion: "v1", Kind: "Node"}
	got := FromResource(&pb.Resource{
		Id:    &pb.ID{Name: "a", Type: typ, Uid: "u", Tenancy: &pb.Tenancy{Partition: "default"}},
		Owner: &pb.ID{Name: "o", Type: typ}, Version: "3", Generation: "g",
		Metadata: map[string]string{"k": "v"}, CreateIndex: 1, ModifyIndex: 1 << 60, PrimaryModifyIndex: 3,
		Status: map[string]*pb.Status{"c": {ObservedGeneration: "g", UpdatedAt: timestamppb.New(at),
			Conditions: []*pb.Condition{
				{Type: "t", State: pb.Condition_STATE_FALSE, Reason: "r", Message: "m",
					Resource: &pb.Reference{Name: "x", Type: typ, Section: "s"}},
			}}},
	}, json.RawMessage(`{}`))
	body, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	const typeJSON = `{"group":"catalog","group_version":"v1","kind":"Node"}`
	want := `{"id":{"uid":"u","name":"a","type":` + typeJSON +
		`,"tenancy":{"partition":"default"}},"owner":{"name":"o","type":` + typeJSON +
		`},"version":"3","generation":"g","metadata":{"k":"v"},"status":{"c":{"observed_generation":"g",` +
		`"conditions":[{"type":"t","state":"STATE_FALSE",` +
		`"reason":"r","message":"m","resource":{"type":` + typeJSON +
		`,"name":"x","section":"s"}}],"updated_at":"2026-01-02T03:04:05Z"}},` +
		`"data":{},"create_index":"1","modify_index":"1152921504606846976","primary_modify_index":"3"}`
	if d := cmp.Diff(want, string(body)); d != "" {
		t.Errorf("JSON of FromResource() differs (-want +got):\n%s", d)
	}
	var back Resource
	if err := json.Unmarshal(body, &back); err != nil || !cmp.Equal(got, back) {
		t.Errorf("Unmarshal() = %v, difference (-want +got):\n%s", err, cmp.Diff(got, back))
	}
	if id := back.ID.ToPB(); id.GetName() != "a" || id.GetUid() != "u" || id.GetType().GetKind() != "Node" ||
		id.GetTenancy().GetPartition() != "default" {
		t.Errorf("ToPB() = %v, want the id of the resource", id)
	}
	if _, err := ParseResourceType("a/b"); err == nil ||
		!strings.Contains(err.Error(), `type "a/b" is not group/version/Kind`) {
		t.Errorf("ParseResourceType(a/b) = %v, want an error that shows the format", err)
	}
	if typ, err := ParseResourceType("a/v1/B"); err != nil || typ.String() != "a/v1/B" {
		t.Errorf("ParseResourceType(a/v1/B) = %v, %v, want a/v1/B, nil", typ, err)
	}
}

// FuzzEvents verifies that nextEvent ends with an error for any finite input.
func FuzzEvents(f *testing.F) {
	f.Add("event: upsert\ndata: {\"id\":{}}\n\n: heartbeat\n\nevent: end-of-snapshot\r\n\r\nevent: end\ndata: " +
		"{\"error\":\"x\"}\n\n")
	f.Add("data\n:\n\nevent: delete\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		in := bufio.NewReader(strings.NewReader(text))
		for n := 0; ; n++ {
			if _, err := nextEvent(in); err != nil {
				return
			}
			if n > len(text) {
				t.Fatalf("nextEvent() returned %d events from %d bytes, want an error", n, len(text))
			}
		}
	})
}
