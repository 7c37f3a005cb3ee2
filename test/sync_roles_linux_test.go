// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/kv"
	"github.com/wanfed/wanfed/lease"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/session"
	"github.com/wanfed/wanfed/tlsutil"
)

// TestSync_Roles sends requests with certificates of the roles sync and client to
// a server.
func TestSync_Roles(t *testing.T) {
	t.Parallel()
	l := newLoopback(t)
	s := l.start("dc1", "dc1")
	resources := func(role tlsutil.Role) (pb.ResourceServiceClient, pb.LeaseServiceClient) {
		cc, err := api.NewServerClient(l.ca.Identity(t, role, "n1", "dc1"), "dc1", api.Addrs(s.server.Addr))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cc.Close() })
		return pb.NewResourceServiceClient(cc), pb.NewLeaseServiceClient(cc)
	}
	daemon, leases := resources(tlsutil.RoleSync)
	client, _ := resources(tlsutil.RoleClient)
	write := func(typ *pb.Type, name string, data proto.Message) func(context.Context) error {
		return func(ctx context.Context) error {
			r := &pb.Resource{Id: resource.ID(typ, name), Version: resource.NewVersion}
			var err error
			if r.Data, err = anypb.New(data); err == nil {
				_, err = daemon.Write(ctx, &pb.WriteRequest{Resource: r})
			}
			return err
		}
	}
	acquire := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := leases.Acquire(ctx, &pb.AcquireLeaseRequest{Name: name, Holder: "n1", Duration: durationpb.New(time.Minute)})
			return err
		}
	}
	list := func(c pb.ResourceServiceClient, typ *pb.Type) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := c.List(ctx, &pb.ListRequest{Type: typ})
			return err
		}
	}
	held := &pb.Lease{Holder: "n1", Duration: durationpb.New(time.Minute)}
	for _, c := range []struct {
		name string
		do   func(context.Context) error
		want error // ErrInvalid: the type is written by its own service only
	}{
		{"sync writes a task", write(task.Type, "web", &pb.Task{Driver: task.DriverExec, Origin: task.OriginAPI,
			Exec:       &pb.ExecDriver{Command: []string{"/bin/true"}},
			Conditions: []*pb.TaskQuery{{Kind: task.KindServices, Names: []string{"web"}}}}), nil},
		{"sync acquires a lease of its own", acquire(lease.SyncPrefix + "task.web"), nil},
		{"sync reads keys", list(daemon, kv.EntryType), nil},
		{"sync reads states", list(daemon, task.StateType), nil},
		{"sync writes a key", write(kv.EntryType, "a", &pb.KVEntry{Value: []byte("1")}), resource.ErrDenied},
		{"sync writes a node", write(catalog.NodeType, "n1", &pb.Node{Node: "n1", Address: "10.0.0.1"}), resource.ErrDenied},
		{"sync writes a service", write(catalog.ServiceType, "n1/a", &pb.Service{Node: "n1", Id: "a", Service: "a"}), resource.ErrDenied},
		{"sync writes a session", write(session.Type, "6f1b2b8e-54a5-4ce1-a7a8-5ef3ab0f6ef4", &pb.Session{Node: "n1"}), resource.ErrInvalid},
		{"sync acquires another lease", acquire("controllers"), resource.ErrDenied},
		{"sync acquires a lease of a similar name", acquire("sync"), resource.ErrDenied},
		{"sync writes another lease", write(lease.Type, "controllers", held), resource.ErrInvalid},
		{"client reads tasks", list(client, task.Type), nil},
		{"client reads runs", list(client, task.RunType), nil},
		{"client reads states", list(client, task.StateType), resource.ErrDenied},
		{"client reads chunks", list(client, task.ChunkType), resource.ErrDenied},
		{"client reads a state", func(ctx context.Context) error {
			_, err := client.Read(ctx, &pb.ReadRequest{Id: task.StateID("web")})
			return err
		}, resource.ErrDenied},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
		err := resource.FromStatus(c.do(ctx))
		cancel()
		if !errors.Is(err, c.want) {
			t.Errorf("%s = %v, want %v", c.name, err, c.want)
		}
	}

	web := &http.Client{Transport: &http.Transport{
		TLSClientConfig: l.client(t, tlsutil.RoleSync, "n1", "dc1", "localhost"), DisableKeepAlives: true,
	}}
	for path, body := range map[string]string{
		"/v1/kv/a":             "1",
		"/v1/session/create":   `{}`,
		"/v1/catalog/register": `{"Node": "n1", "Address": "10.0.0.1"}`,
		"/v1/txn":              `[{"KV": {"Verb": "set", "Key": "a", "Value": "MQ=="}}]`,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut,
			strings.Replace(s.server.HTTP, "http:", "https:", 1)+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := web.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		if resp.Body.Close(); err != nil || resp.StatusCode != http.StatusForbidden {
			t.Errorf("PUT %s by a sync daemon = %d %s, %v, want 403", path, resp.StatusCode, text, err)
		}
	}

	// No other type can be deleted.
	types, err := func() ([]api.ResourceType, error) {
		c, err := api.NewClient(api.ClientConfig{Addr: s.server.HTTP})
		if err != nil {
			return nil, err
		}
		defer c.Close()
		return c.ResourceTypes(t.Context())
	}()
	if err != nil || len(types) < 10 {
		t.Fatalf("ResourceTypes() = %d types, %v, want at least 10", len(types), err)
	}
	for _, typ := range types {
		if typ.Type.Group == task.Type.Group {
			continue
		}
		id := &pb.Type{Group: typ.Type.Group, GroupVersion: typ.Type.GroupVersion, Kind: typ.Type.Kind}
		_, err := daemon.Delete(t.Context(), &pb.DeleteRequest{Id: resource.ID(id, "n1")})
		if !errors.Is(resource.FromStatus(err), resource.ErrDenied) {
			t.Errorf("Delete(%v) by a sync daemon = %v, want ErrDenied", typ.Type, err)
		}
	}
}
