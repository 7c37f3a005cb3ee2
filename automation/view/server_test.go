// SPDX-License-Identifier: MPL-2.0

package view_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/view"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/server"
	"github.com/wanfed/wanfed/tlsutil"
)

// run calls f in a goroutine until stop or the end of the test.
func run(t *testing.T, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run = %v, want nil", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// TestViews_Server reads from a server of wanfed over HTTPS, with the
// certificate of a daemon, and across a restart of the server.
func TestViews_Server(t *testing.T) {
	testutil.Cluster(t)
	dir := t.TempDir()
	pki, err := subprocess.NewPKI(filepath.Join(dir, "pki"), "")
	if err != nil {
		t.Fatal(err)
	}
	issue := func(role tlsutil.Role, node string) tlsutil.Files {
		files, err := pki.Issue(role, "dc1", node)
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	files := issue(tlsutil.RoleServer, "srv1")
	startServer := func(addr string) (stop func(), url string) {
		started := make(chan server.Addrs, 1)
		stop = run(t, func(ctx context.Context) error {
			return server.Run(ctx, server.Config{
				DC: "dc1", Node: "srv1", DataDir: filepath.Join(dir, "data"), Bind: "127.0.0.1", HTTPAddr: addr, Port: -1,
				CAFile: files.CA, CertFile: files.Cert, KeyFile: files.Key, BootstrapExpect: 1,
				Logger: slog.New(slog.DiscardHandler), Started: func(a server.Addrs) { started <- a },
			})
		})
		return stop, (<-started).HTTP
	}
	stop, url := startServer("https://127.0.0.1:0")
	client := func(role tlsutil.Role) *api.Client {
		id, err := tlsutil.Load(issue(role, "c"), tlsutil.DefaultDomain, slog.Default())
		if err != nil {
			t.Fatal(err)
		}
		c, err := api.NewClient(api.ClientConfig{Addr: url, TLS: id.ClientConfig("")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	operator := client(tlsutil.RoleOperator)
	write := func(typ, name string, data proto.Message) {
		t.Helper()
		text, err := protojson.Marshal(data)
		if err != nil {
			t.Fatal(err)
		}
		r := api.Resource{ID: api.ResourceID{Name: name}, Data: text}
		if r.ID.Type, err = api.ParseResourceType(typ); err != nil {
			t.Fatal(err)
		}
		testutil.Await(t, 20*time.Second, "the server accepts the write of "+name, func(ctx context.Context) error {
			_, err := operator.WriteResource(ctx, r, api.ResourceOptions{})
			return err
		})
	}
	write("catalog/v1/Node", "n1", &pb.Node{Node: "n1", Address: "10.0.0.1"})
	write("catalog/v1/Service", "n1/web", &pb.Service{Node: "n1", Id: "web", Service: "web", Port: 80, Tags: []string{"b", "a"}})
	write("kv/v1/Entry", "app/a", &pb.KVEntry{Value: []byte("1")})

	views, err := view.New(view.NewSource(client(tlsutil.RoleSync)),
		view.Config{Datacenter: "dc1", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	run(t, views.Run)
	expect := func(q *pb.TaskQuery, want string) {
		t.Helper()
		w, err := views.Open(q)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Close)
		testutil.Await(t, 20*time.Second, "the value of "+q.Kind, func(context.Context) error {
			v, ok := w.Value()
			if !ok || !v.Connected || !strings.Contains(string(v.JSON), want) || !json.Valid(v.JSON) {
				return fmt.Errorf("value = %s, %v, connected = %v, error %v, want a part %s", v.JSON, ok, v.Connected, v.Err, want)
			}
			return nil
		})
	}
	web := &pb.TaskQuery{Kind: "services", Names: []string{"web"}}
	expect(web, `"status":"passing","tags":["a","b"]`)
	expect(&pb.TaskQuery{Kind: "catalog-services", Regexp: new("^web$")}, `{"web":["a","b"]}`)
	expect(&pb.TaskQuery{Kind: "consul-kv", Path: "app", Recurse: true}, `{"app/a":"1"}`)
	expect(&pb.TaskQuery{Kind: "nodes", Regexp: new("n1")}, `"name":"n1"`)
	expect(&pb.TaskQuery{Kind: "document"}, `{}`)
	expect(&pb.TaskQuery{Kind: "resource", Type: "catalog/v1/Node", Names: []string{"n1"}}, `{"n1":{"data":{`)
	expect(&pb.TaskQuery{Kind: "federation"}, `"primary":true,"reachable":true,"servers_alive":1`)
	expect(&pb.TaskQuery{Kind: "gateway"}, `{"dc1":[]}`)
	expect(&pb.TaskQuery{Kind: "member"}, `"pool":"wan","status":"alive"`)
	expect(&pb.TaskQuery{Kind: "datacenter"}, `{"dc1":{"reachable":true}}`)

	compareConsul(t, views, client(tlsutil.RoleSync))
	write("catalog/v1/Node", "n1", &pb.Node{Node: "n1", Address: "10.0.0.2"})
	expect(web, `"address":"10.0.0.2"`)
	stop()
	_, _ = startServer(url)
	write("catalog/v1/Node", "n1", &pb.Node{Node: "n1", Address: "10.0.0.3"})
	expect(web, `"address":"10.0.0.3"`)
	expect(&pb.TaskQuery{Kind: "datacenter"}, `{"dc1":{"reachable":true}}`)
}

// compareConsul compares the values of views with those that NewConsul reads by
// Consul's API, which the server has too. That API also lists the server itself.
func compareConsul(t *testing.T, views *view.Views, c *api.Client) {
	t.Helper()
	other, err := view.NewConsul(c, view.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer run(t, other.Run)()
	for _, q := range []*pb.TaskQuery{
		{Kind: "services", Names: []string{"web"}}, {Kind: "services", Regexp: new("^web")},
		{Kind: "services", Names: []string{"web"}, Datacenter: "dc1", Filter: `"a" in Service.Tags`},
		{Kind: "catalog-services", Regexp: new("^web")}, {Kind: "nodes", Regexp: new("^n")},
		{Kind: "consul-kv", Path: "app", Recurse: true}, {Kind: "consul-kv", Path: "app/a"}, {Kind: "consul-kv", Path: "none"},
	} {
		a, err := views.Open(q)
		if err != nil {
			t.Fatal(err)
		}
		b, err := other.Open(q)
		if err != nil {
			t.Fatal(err)
		}
		testutil.Await(t, 20*time.Second, "equal values of "+q.Kind, func(context.Context) error {
			x, _ := a.Value()
			y, ok := b.Value()
			if !ok || !y.Connected || string(x.JSON) != string(y.JSON) || x.Trigger != y.Trigger {
				return fmt.Errorf("value of Consul = %s, %v, error %v, want %s", y.JSON, ok, y.Err, x.JSON)
			}
			return nil
		})
		a.Close()
		b.Close()
	}
}
