// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/state"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/automation/view"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/kv"
	"github.com/wanfed/wanfed/lease"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

// cluster is a datacenter in memory with daemons, in fake time. The driver of
// the daemons is a fake, because programs do not run in fake time. The tests of
// package syncd have real programs.
type cluster struct {
	*testing.T
	store    *resourcetest.Store
	resource pb.ResourceServiceClient
	leases   *lease.Service
	programs *programs
	latency  atomic.Int64 // of each call of a server, in nanoseconds
}

// inCluster calls f in a bubble of fake time.
func inCluster(t *testing.T, f func(c *cluster)) {
	t.Helper()
	testutil.Bubble(t, func(t *testing.T) {
		registry := resource.NewRegistry()
		for _, register := range []func(*resource.Registry) error{task.Register, lease.Register, kv.Register, catalog.Register} {
			if err := register(registry); err != nil {
				t.Fatal(err)
			}
		}
		store := resourcetest.NewStore()
		defer store.Close()
		service, err := resource.NewService(resource.ServiceConfig{
			Backend: store, Registry: registry, DC: "dc1", Primary: func() bool { return true },
			Peer: func(context.Context) (tlsutil.Peer, error) {
				return tlsutil.Peer{Role: tlsutil.RoleOperator, DC: "dc1", Node: "sync"}, nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		leases, err := lease.NewService(lease.ServiceConfig{
			Backend: store, Confirm: func(context.Context) error { return nil }, Logger: slog.New(slog.DiscardHandler),
			Allow: func(context.Context, resource.Verb, *pb.Type, string) error { return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		wg.Go(func() {
			if err := leases.Run(ctx); err != nil {
				t.Errorf("Run of the lease service = %v, want nil", err)
			}
		})
		synctest.Wait()
		c := &cluster{T: t, store: store, resource: service.Client(), leases: leases, programs: &programs{alive: map[string]*program{}, last: map[string]*program{}}}
		f(c)
		if o := c.programs.overlaps; len(o) > 0 {
			t.Errorf("two programs of one task at the same time: %v", o)
		}
	})
}

// write writes a resource of the default tenancy.
func (c *cluster) write(typ *pb.Type, name string, data proto.Message) {
	c.Helper()
	r := &pb.Resource{Id: resource.ID(typ, name)}
	var err error
	if r.Data, err = anypb.New(data); err == nil {
		_, err = c.resource.Write(c.Context(), &pb.WriteRequest{Resource: r})
	}
	if err != nil {
		c.Fatalf("Write(%s %s) = %v, want nil", typ.Kind, name, err)
	}
}

// setKey writes a key.
func (c *cluster) setKey(key, value string) {
	c.Helper()
	c.write(kv.EntryType, key, &pb.KVEntry{Value: []byte(value)})
}

// remove deletes a key.
func (c *cluster) remove(key string) {
	c.Helper()
	if _, err := c.resource.Delete(c.Context(), &pb.DeleteRequest{Id: resource.ID(kv.EntryType, key)}); err != nil {
		c.Fatalf("Delete(%s) = %v, want nil", key, err)
	}
}

// addTask writes a task that runs when keys with the prefix change.
func (c *cluster) addTask(name, prefix string, change ...func(*pb.Task)) {
	c.Helper()
	t := &pb.Task{Driver: task.DriverExec, Exec: &pb.ExecDriver{Command: []string{"true"}},
		Conditions: []*pb.TaskQuery{{Kind: task.KindKV, Path: prefix, Recurse: true}}}
	for _, f := range change {
		f(t)
	}
	c.write(task.Type, name, t)
}

// state returns the state of a task.
func (c *cluster) state(name string) *pb.TaskState {
	c.Helper()
	resp, err := c.resource.Read(c.Context(), &pb.ReadRequest{Id: task.StateID(name)})
	if err != nil {
		c.Fatalf("Read(state of %s) = %v, want nil", name, err)
	}
	st, err := resource.Decode[*pb.TaskState](resp.Resource)
	if err != nil {
		c.Fatal(err)
	}
	return st
}

// ready returns the condition Ready of a task.
func (c *cluster) ready(name string) *pb.Condition {
	c.Helper()
	resp, err := c.resource.Read(c.Context(), &pb.ReadRequest{Id: task.ID(name)})
	if err != nil {
		c.Fatalf("Read(%s) = %v, want nil", name, err)
	}
	for _, cond := range resp.Resource.Status[task.StatusKey].GetConditions() {
		if cond.Type == "Ready" {
			return cond
		}
	}
	return nil
}

// node is a daemon of a cluster.
type node struct {
	c      *cluster
	id     string
	link   *link
	cancel context.CancelFunc
	done   chan error

	mu    sync.Mutex
	until map[string]time.Time // by directory: the end of the time of its run
	dead  bool                 // killed
	// jump is the error of the clock of its machine.
	jump time.Duration
}

// deadUntil reports whether the daemon is killed, and the end of the time of the
// run in a directory.
func (n *node) deadUntil(dir string) (bool, time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dead, n.until[dir]
}

// permit is the guard of the programs of a daemon.
func (n *node) permit(dir string, until time.Time) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dead {
		return errCut
	}
	n.until[dir] = until
	return nil
}

// start starts a daemon. Its directory outlives it.
func (c *cluster) start(id string, change ...func(*Config)) *node {
	c.Helper()
	n := &node{c: c, id: id, link: &link{c: c}, done: make(chan error, 1), until: map[string]time.Time{}}
	resources := linkedClient{c.resource, n.link}
	keys := c.dir("keys")
	if _, err := os.Stat(keys); err != nil {
		if _, err := state.GenerateKey(keys); err != nil {
			c.Fatal(err)
		}
	}
	states, err := state.NewStore(state.StoreConfig{Client: resources, KeyFile: keys})
	if err != nil {
		c.Fatal(err)
	}
	views, err := view.New(source{resources}, view.Config{Datacenter: "dc1", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		c.Fatal(err)
	}
	cfg := Config{
		ID: id, Dir: c.dir(id), Resources: resources, Leases: lease.NewClient(n.link), Views: views, States: states,
		Drivers: map[string]driver.Driver{task.DriverExec: &fakeDriver{c.programs, n}}, MaxRunning: 4, Permit: n.permit,
		Logger: slog.New(slog.DiscardHandler),
	}
	for _, f := range change {
		f(&cfg)
	}
	d, err := New(cfg)
	if err != nil {
		c.Fatalf("New() = %v, want nil", err)
	}
	d.clock = func() time.Time {
		n.mu.Lock()
		defer n.mu.Unlock()
		return time.Now().Add(n.jump)
	}
	ctx, cancel := context.WithCancel(c.Context())
	n.cancel = cancel
	go func() { n.done <- d.Run(ctx) }()
	synctest.Wait()
	return n
}

func (c *cluster) dir(id string) string { return c.ArtifactDir() + "/" + id }

// stop stops a daemon as SIGTERM does.
func (n *node) stop() error {
	n.cancel()
	return <-n.done
}

// kill ends a daemon as SIGKILL does: it releases nothing, and its programs
// continue.
func (n *node) kill() {
	n.mu.Lock()
	n.dead = true
	n.mu.Unlock()
	n.link.cut.Store(true)
	n.cancel()
	<-n.done
}

// link is the connection of a daemon to the servers. It implements
// grpc.ClientConnInterface for leases.
type link struct {
	c   *cluster
	cut atomic.Bool

	mu     sync.Mutex
	paused chan struct{} // closed at the end of a pause; nil: none
}

// pass blocks while the daemon is stopped by SIGSTOP, and fails if the link is
// cut.
func (l *link) pass(ctx context.Context) error {
	if latency := time.Duration(l.c.latency.Load()); latency > 0 {
		backoff.Sleep(ctx, latency, nil)
		if ctx.Err() != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	if paused := l.pausing(); paused != nil {
		<-paused
	}
	if l.cut.Load() {
		return errCut
	}
	return nil
}

// pausing returns a channel that is closed at the end of the present pause, or
// nil.
func (l *link) pausing() chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.paused
}

// pause stops the daemon for a time, except for timers: what they do to the
// cluster is done after the pause.
func (l *link) pause(d time.Duration) {
	paused := make(chan struct{})
	set := func(c chan struct{}) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.paused = c
	}
	set(paused)
	time.Sleep(d)
	set(nil)
	close(paused)
}

var errCut = status.Error(codes.Unavailable, "the servers are unreachable")

func (l *link) Invoke(ctx context.Context, method string, in, out any, _ ...grpc.CallOption) error {
	if err := l.pass(ctx); err != nil {
		return err
	}
	var resp proto.Message
	var err error
	switch method {
	case pb.LeaseService_Acquire_FullMethodName:
		resp, err = l.c.leases.Acquire(ctx, in.(*pb.AcquireLeaseRequest))
	case pb.LeaseService_Renew_FullMethodName:
		resp, err = l.c.leases.Renew(ctx, in.(*pb.RenewLeasesRequest))
	case pb.LeaseService_Release_FullMethodName:
		resp, err = l.c.leases.Release(ctx, in.(*pb.ReleaseLeaseRequest))
	default:
		return fmt.Errorf("unexpected call of %s", method)
	}
	if err == nil {
		proto.Merge(out.(proto.Message), resp)
	}
	return err
}

func (l *link) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("unexpected stream")
}

// linkedClient calls the resource service over a link. A cut link ends its
// watches at their next event.
type linkedClient struct {
	pb.ResourceServiceClient
	l *link
}

func (c linkedClient) Read(ctx context.Context, in *pb.ReadRequest, o ...grpc.CallOption) (*pb.ReadResponse, error) {
	if err := c.l.pass(ctx); err != nil {
		return nil, err
	}
	return c.ResourceServiceClient.Read(ctx, in, o...)
}

func (c linkedClient) Write(ctx context.Context, in *pb.WriteRequest, o ...grpc.CallOption) (*pb.WriteResponse, error) {
	if err := c.l.pass(ctx); err != nil {
		return nil, err
	}
	return c.ResourceServiceClient.Write(ctx, in, o...)
}

func (c linkedClient) WriteStatus(
	ctx context.Context, in *pb.WriteStatusRequest, o ...grpc.CallOption,
) (*pb.WriteStatusResponse, error) {
	if err := c.l.pass(ctx); err != nil {
		return nil, err
	}
	return c.ResourceServiceClient.WriteStatus(ctx, in, o...)
}

func (c linkedClient) Delete(ctx context.Context, in *pb.DeleteRequest, o ...grpc.CallOption) (*pb.DeleteResponse, error) {
	if err := c.l.pass(ctx); err != nil {
		return nil, err
	}
	return c.ResourceServiceClient.Delete(ctx, in, o...)
}

func (c linkedClient) WatchList(
	ctx context.Context, in *pb.WatchListRequest, o ...grpc.CallOption,
) (grpc.ServerStreamingClient[pb.WatchEvent], error) {
	if err := c.l.pass(ctx); err != nil {
		return nil, err
	}
	s, err := c.ResourceServiceClient.WatchList(ctx, in, o...)
	return linkedStream{s, c.l}, err
}

type linkedStream struct {
	grpc.ServerStreamingClient[pb.WatchEvent]
	l *link
}

func (s linkedStream) Recv() (*pb.WatchEvent, error) {
	ev, err := s.ServerStreamingClient.Recv()
	if err := s.l.pass(s.Context()); err != nil {
		return nil, err
	}
	return ev, err
}

// source is a view.Source over a resource service.
type source struct{ client pb.ResourceServiceClient }

func (s source) Watch(ctx context.Context, st view.Stream) iter.Seq2[api.ResourceEvent, error] {
	return func(yield func(api.ResourceEvent, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		typ := &pb.Type{Group: st.Type.Group, GroupVersion: st.Type.GroupVersion, Kind: st.Type.Kind}
		w, err := s.client.WatchList(ctx, &pb.WatchListRequest{Type: typ, NamePrefix: st.Prefix})
		for err == nil {
			var ev *pb.WatchEvent
			if ev, err = w.Recv(); err != nil {
				break
			}
			out := api.ResourceEvent{Type: api.EventEndOfSnapshot, Index: ev.GetEndOfSnapshot().GetIndex()}
			var r *pb.Resource
			switch e := ev.Event.(type) {
			case *pb.WatchEvent_Upsert_:
				out.Type, r = api.EventUpsert, e.Upsert.Resource
			case *pb.WatchEvent_Delete_:
				out.Type, r = api.EventDelete, e.Delete.Resource
			}
			if r != nil {
				var data proto.Message
				var text []byte
				if data, err = r.Data.UnmarshalNew(); err == nil {
					text, err = protojson.Marshal(data)
				}
				out.Resource = api.FromResource(r, text)
			}
			if err == nil && !yield(out, nil) {
				return
			}
		}
		yield(api.ResourceEvent{}, err)
	}
}

func (s source) Status(context.Context) (api.Status, error) {
	return api.Status{Datacenter: "dc1"}, nil
}

func (s source) Members(context.Context, bool) ([]api.Member, error) { return nil, nil }

// wantRuns compares the inputs of the successful applies of a task.
func (c *cluster) wantRuns(name string, want ...string) {
	c.Helper()
	synctest.Wait()
	var got []string
	for _, r := range c.programs.runs(name) {
		if r.err == nil && r.mode == driver.Apply {
			got = append(got, r.inputs)
		}
	}
	if !slices.Equal(got, want) {
		c.Errorf("applied inputs of task %s = %q, want %q", name, got, want)
	}
}
