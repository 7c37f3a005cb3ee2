// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/controller/controllertest"
	"github.com/wanfed/wanfed/document"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server"
	"github.com/wanfed/wanfed/tlsutil"
)

// content returns the JSON of a document, or "" if the document is absent.
func content(t testing.TB, r *pb.Resource) string {
	t.Helper()
	if r == nil {
		return ""
	}
	doc, err := resource.Decode[*pb.Document](r)
	if err != nil {
		t.Fatal(err)
	}
	b, err := protojson.Marshal(doc.Content)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), " ", "")
}

func check(node, status string) *pb.Check {
	return &pb.Check{Node: node, CheckId: "http", Name: "http", Status: status}
}

// TestController_InMemory runs the controller on a service in memory.
func TestController_InMemory(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		registry := resource.NewRegistry()
		for _, register := range []func(*resource.Registry) error{catalog.Register, document.Register} {
			if err := register(registry); err != nil {
				t.Fatal(err)
			}
		}
		s := controllertest.New(t, registry.Types()...)
		expect := func(node, want string) {
			t.Helper()
			synctest.Wait()
			if got := content(t, s.Get(resource.ID(document.Type, prefix+node))); got != want {
				t.Errorf("document of %s = %s, want %s", node, got, want)
			}
		}
		s.Write(catalog.NodeType, "web1", &pb.Node{Node: "web1", Address: "10.0.0.1"})
		s.Write(catalog.CheckType, "c", check("web1", catalog.StatusCritical))
		if _, err := s.Reconcile(health, resource.ID(catalog.NodeType, "web1")); err != nil {
			t.Fatalf("Reconcile() = %v, want nil", err)
		}
		expect("web1", `{"http":"critical"}`)

		_, stop := s.Start(controller.Config{Logger: slog.New(slog.DiscardHandler)}, health)
		s.Write(catalog.NodeType, "web2", &pb.Node{Node: "web2", Address: "10.0.0.2"})
		s.Write(catalog.CheckType, "c", check("web2", catalog.StatusWarning)) // moved
		expect("web1", `{}`)
		expect("web2", `{"http":"warning"}`)
		status := s.Get(resource.ID(catalog.NodeType, "web2")).Status["node-health"]
		if len(status.GetConditions()) != 1 || status.Conditions[0].State != pb.Condition_STATE_TRUE {
			t.Errorf("status = %v, want one true condition", status)
		}

		stop()
		s.Delete(resource.ID(catalog.NodeType, "web2"))
		s.Start(controller.Config{Logger: slog.New(slog.DiscardHandler)}, health)
		expect("web2", "")
	})
}

// TestController_OverGRPC runs two copies of the program against a server, with
// the certificate of an operator. When one copy ends, the other one runs the
// controller. The server deletes owned resources with a controller of its own.
func TestController_OverGRPC(t *testing.T) {
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
	files, operator := issue(tlsutil.RoleServer, "srv1"), issue(tlsutil.RoleOperator, "cli")
	start := func(run func(context.Context) error) (stop func()) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- run(ctx) }()
		stop = sync.OnceFunc(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("run = %v, want nil", err)
			}
		})
		t.Cleanup(stop)
		return stop
	}
	started := make(chan server.Addrs, 1)
	start(func(ctx context.Context) error {
		return server.Run(ctx, server.Config{
			DC: "dc1", Node: "srv1", DataDir: filepath.Join(dir, "data"), Bind: "127.0.0.1", HTTPAddr: "127.0.0.1:0", Port: -1,
			CAFile: files.CA, CertFile: files.Cert, KeyFile: files.Key, BootstrapExpect: 1,
			Logger: slog.New(slog.DiscardHandler), Started: func(a server.Addrs) { started <- a },
		})
	})
	addrs := <-started
	copyOf := func() (stop func()) {
		return start(func(ctx context.Context) error {
			return run(ctx, []string{
				"-server", addrs.Server, "-ca", operator.CA, "-cert", operator.Cert, "-key", operator.Key,
			})
		})
	}
	stopFirst, stopSecond := copyOf(), copyOf()

	id, err := tlsutil.Load(operator, tlsutil.DefaultDomain, slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	cc, err := api.NewServerClient(id, "dc1", api.Addrs(addrs.Server))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	client := pb.NewResourceServiceClient(cc)
	write := func(r *pb.Resource) error {
		_, err := client.Write(t.Context(), &pb.WriteRequest{Resource: r})
		return err
	}
	testutil.Await(t, 20*time.Second, "the server accepts writes", func(context.Context) error {
		r, err := resource.New(catalog.NodeType, "web1", &pb.Node{Node: "web1", Address: "10.0.0.1"})
		if err != nil {
			return err
		}
		r.Id.Uid = ""
		return write(r)
	})
	owner, err := client.Read(t.Context(), &pb.ReadRequest{Id: resource.ID(catalog.NodeType, "web1")})
	if err != nil {
		t.Fatal(err)
	}
	const owned = resource.MaxCascade + 5 // more than one step deletes
	for i := range owned {
		r, err := resource.New(catalog.CheckType, fmt.Sprintf("c%d", i), &pb.Check{
			Node: "web1", CheckId: fmt.Sprint(i), Name: "c", Status: catalog.StatusPassing,
		})
		if err != nil {
			t.Fatal(err)
		}
		r.Id.Uid, r.Owner = "", owner.Resource.Id
		if i == 7 {
			if err := resource.SetData(r, check("web1", catalog.StatusCritical)); err != nil {
				t.Fatal(err)
			}
		}
		if err := write(r); err != nil {
			t.Fatal(err)
		}
	}
	doc := func(want string) func(context.Context) error {
		return func(ctx context.Context) error {
			resp, err := client.Read(ctx, &pb.ReadRequest{Id: resource.ID(document.Type, prefix+"web1")})
			if err != nil && want != "" {
				return err
			}
			if got := content(t, resp.GetResource()); got != want {
				return fmt.Errorf("document = %s, want %s", got, want)
			}
			return nil
		}
	}
	testutil.Await(t, 20*time.Second, "the document lists the check", doc(`{"http":"critical"}`))
	for _, stop := range []func(){stopFirst, stopSecond} { // one of them runs the controller
		stop()
		copyOf()
		if _, err := client.Delete(t.Context(), &pb.DeleteRequest{Id: resource.ID(document.Type, prefix+"web1")}); err != nil {
			t.Fatal(err)
		}
		testutil.Await(t, 20*time.Second, "another copy writes the document", doc(`{"http":"critical"}`))
	}

	if _, err := client.Delete(t.Context(), &pb.DeleteRequest{Id: owner.Resource.Id}); err != nil {
		t.Fatal(err)
	}
	testutil.Await(t, 20*time.Second, "the document is deleted", doc(""))
	testutil.Await(t, 20*time.Second, "the owned resources are deleted", func(ctx context.Context) error {
		resp, err := client.List(ctx, &pb.ListRequest{Type: catalog.CheckType})
		if n := len(resp.GetResources()); err == nil && n > 0 {
			err = fmt.Errorf("%d checks are left", n)
		}
		return err
	})
	httpClient, err := api.NewClient(api.ClientConfig{Addr: addrs.HTTP})
	if err != nil {
		t.Fatal(err)
	}
	defer httpClient.Close()
	all, err := httpClient.Controllers(t.Context(), api.QueryOptions{})
	if err != nil || len(all) == 0 || all[0].Name != "owned-resources" || !all[0].Running || all[0].Reconciles == 0 {
		b, _ := json.Marshal(all)
		t.Errorf("Controllers() = %s, %v, want owned-resources, running, with reconciles", b, err)
	}
}

// goBlock matches the Go code of a page.
var goBlock = regexp.MustCompile("(?s)```go\n(.*?)```")

// TestPage_ShowsThisProgram compares the code of the page with this program.
func TestPage_ShowsThisProgram(t *testing.T) {
	page, err := os.ReadFile("../../docs/writing-a-controller.md")
	if err != nil {
		t.Fatal(err)
	}
	var program strings.Builder
	for _, name := range []string{"controller.go", "main.go", "main_test.go"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		program.Write(b)
	}
	blocks := goBlock.FindAllStringSubmatch(string(page), -1)
	if len(blocks) < 4 {
		t.Fatalf("the page has %d blocks of Go, want at least 4", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(program.String(), b[1]) {
			t.Errorf("the program does not have this code of the page:\n%s", b[1])
		}
	}
}
