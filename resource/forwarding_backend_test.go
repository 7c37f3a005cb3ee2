// SPDX-License-Identifier: MPL-2.0

package resource_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// replicatedStore is a ReplicatedBackend whose leader the test sets.
type replicatedStore struct {
	*resourcetest.Store
	leader     string // empty: unknown
	leads      bool
	readIndex  int // number of calls of ReadIndex
	writeError error
	opsVersion int
}

func (s *replicatedStore) OpsVersion() (int, string)                 { return s.opsVersion, "c" }
func (s *replicatedStore) IsLeader() bool                            { return s.leads }
func (s *replicatedStore) Leader() (string, bool)                    { return s.leader, s.leader != "" }
func (s *replicatedStore) WaitIndex(context.Context, uint64) error   { return nil }
func (s *replicatedStore) WriteError() error                         { return s.writeError }
func (s *replicatedStore) ReadIndex(context.Context) (uint64, error) { s.readIndex++; return 1, nil }

// leaderClient is a client of the leader. Its calls fail with err, before or
// after they were sent.
type leaderClient struct {
	err  error
	sent bool
}

func (c *leaderClient) Commit(_ context.Context, _ *pb.CommitRequest,
	opts ...grpc.CallOption) (*pb.CommitResponse, error) {
	for _, o := range opts {
		if o, ok := o.(grpc.PeerCallOption); ok && c.sent {
			o.PeerAddr.Addr = &net.TCPAddr{}
		}
	}
	return &pb.CommitResponse{}, c.err
}

func (c *leaderClient) ReadIndex(context.Context, *pb.ReadIndexRequest,
	...grpc.CallOption) (*pb.ReadIndexResponse, error) {
	return &pb.ReadIndexResponse{}, c.err
}

// forwardingFixture is the ForwardingBackend of server a. Server b may lead.
type forwardingFixture struct {
	*testing.T
	*resource.ForwardingBackend
	local    *replicatedStore
	leader   leaderClient
	resource *pb.Resource
}

func newForwardingFixture(t *testing.T) *forwardingFixture {
	store := resourcetest.NewStore()
	t.Cleanup(store.Close)
	f := &forwardingFixture{T: t, local: &replicatedStore{Store: store, opsVersion: resource.OpsVersion}}
	var err error
	f.ForwardingBackend, err = resource.NewForwardingBackend("a", f.local,
		func(node string) (pb.StoreServiceClient, error) {
			if node != "b" {
				t.Errorf("dial(%s), want the leader b", node)
			}
			return &f.leader, nil
		})
	if err != nil {
		t.Fatal(err)
	}
	if f.resource, err = resource.New(nodeType, "x", &pb.Node{}); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *forwardingFixture) commit() error {
	_, err := f.Commit(f.Context(), resource.PutOp(f.resource, resource.AnyVersion))
	return err
}

func (f *forwardingFixture) strongRead() error {
	_, err := f.Read(f.Context(), resource.Strong, f.resource.Id)
	return err
}

func TestForwardingBackend_NoLeader(t *testing.T) {
	f := newForwardingFixture(t)
	for _, err := range []error{f.commit(), f.strongRead()} {
		if !errors.Is(err, resource.ErrNotLeader) {
			t.Errorf("call without a leader = %v, want ErrNotLeader", err)
		}
	}
	f.local.writeError = fmt.Errorf("%w: disk full", resource.ErrReadOnly)
	for _, err := range []error{f.commit(), f.strongRead()} {
		if !errors.Is(err, resource.ErrReadOnly) || errors.Is(err, resource.ErrNotLeader) {
			t.Errorf("call without a leader, with a full disk = %v, want only ErrReadOnly", err)
		}
	}
}

// TestForwardingBackend_LocalLeader checks calls while this server leads, and
// while it is elected but still applies earlier entries.
func TestForwardingBackend_LocalLeader(t *testing.T) {
	f := newForwardingFixture(t)
	for _, leads := range []bool{true, false} {
		f.local.leader, f.local.leads, f.local.readIndex = "a", leads, 0
		if err := errors.Join(f.commit(), f.strongRead()); err != nil || f.local.readIndex != 1 {
			t.Errorf("leads = %t: Commit() and strong Read() = %v with %d read indexes, want nil with 1",
				leads, err, f.local.readIndex)
		}
	}
}

// TestForwardingBackend_LeaderFails checks the error of a batch that the leader
// may have committed: it must not claim that nothing was written.
func TestForwardingBackend_LeaderFails(t *testing.T) {
	f := newForwardingFixture(t)
	f.local.leader = "b"
	for _, test := range []struct {
		err     error // of the leader
		sent    bool
		want    error // nil: any error
		unknown bool  // the outcome is unknown
	}{
		{resource.StatusError(resource.ErrNotLeader), true, resource.ErrNotLeader, false},
		{resource.StatusError(resource.ErrConflict), true, resource.ErrConflict, false},
		{resource.StatusError(resource.ErrReadOnly), true, resource.ErrReadOnly, false},
		{resource.StatusError(resource.ErrTerminating), true, resource.ErrTerminating, false},
		{status.Error(codes.PermissionDenied, "no"), true, nil, false},
		{status.Error(codes.Unavailable, "connection lost"), true, resource.ErrUnknownOutcome, true},
		{status.Error(codes.Unavailable, "connection refused"), false, resource.ErrNotLeader, false},
		{status.Error(codes.DeadlineExceeded, "too late"), true, context.DeadlineExceeded, true},
		{status.Error(codes.DeadlineExceeded, "no connection yet"), false, context.DeadlineExceeded, false},
		{status.Error(codes.Canceled, "connection closed"), true, context.Canceled, true},
		{status.Error(codes.Internal, "fault"), true, resource.ErrUnknownOutcome, true},
		{nil, true, resource.ErrUnknownOutcome, true}, // the response has no result
	} {
		f.leader = leaderClient{err: test.err, sent: test.sent}
		err := f.commit()
		if err == nil || test.want != nil && !errors.Is(err, test.want) ||
			errors.Is(err, resource.ErrUnknownOutcome) != test.unknown {
			t.Errorf("Commit() at a leader that returns %v = %v, want %v, unknown outcome %t",
				test.err, err, test.want, test.unknown)
		}
		wantNotLeader := status.Code(test.err) == codes.Unavailable
		if err := f.strongRead(); errors.Is(err, resource.ErrNotLeader) != wantNotLeader {
			t.Errorf("strong Read() at a leader that returns %v = %v, want ErrNotLeader %t", test.err, err,
				wantNotLeader)
		}
	}
}

// TestForwardingBackend_Unsupported checks that ops that a server does not
// support are not forwarded.
func TestForwardingBackend_Unsupported(t *testing.T) {
	f := newForwardingFixture(t)
	f.local.leader, f.local.opsVersion = "b", 1
	for _, leads := range []bool{true, false} {
		f.local.leads = leads
		_, err := f.Commit(t.Context(), resource.OverwriteOp(f.resource, false))
		if !errors.Is(err, resource.ErrUnsupported) || !strings.Contains(err.Error(), "c; nothing was written") {
			t.Errorf("leads = %t: Commit(overwrite) = %v, want ErrUnsupported by c", leads, err)
		}
	}
}

func TestNewForwardingBackend_Required(t *testing.T) {
	if _, err := resource.NewForwardingBackend("a", nil, nil); err == nil {
		t.Error("NewForwardingBackend() without a local backend = nil, want an error")
	}
}
