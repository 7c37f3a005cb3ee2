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

// replica is a store whose leader the test sets. Package raftstore tests the rest.
type replica struct {
	*resourcetest.Store
	leader string
	leads  bool
	dialed int
	why    error // WriteError

	version int // OpsVersion
}

func (r *replica) OpsVersion() (int, string)                 { return r.version, "c" }
func (r *replica) IsLeader() bool                            { return r.leads }
func (r *replica) Leader() (string, bool)                    { return r.leader, r.leader != "" }
func (r *replica) WaitIndex(context.Context, uint64) error   { return nil }
func (r *replica) WriteError() error                         { return r.why }
func (r *replica) ReadIndex(context.Context) (uint64, error) { r.dialed++; return 1, nil }

// answers is a client of a leader whose calls fail with err, before or after they
// were sent.
type answers struct {
	err  error
	sent bool
}

func (a answers) Commit(_ context.Context, _ *pb.CommitRequest, opts ...grpc.CallOption) (*pb.CommitResponse, error) {
	for _, o := range opts {
		if o, ok := o.(grpc.PeerCallOption); ok && a.sent {
			o.PeerAddr.Addr = &net.TCPAddr{}
		}
	}
	return &pb.CommitResponse{}, a.err
}

func (a answers) ReadIndex(context.Context, *pb.ReadIndexRequest, ...grpc.CallOption) (*pb.ReadIndexResponse, error) {
	return &pb.ReadIndexResponse{}, a.err
}

func TestForwardingBackend(t *testing.T) {
	store := resourcetest.NewStore()
	defer store.Close()
	local := &replica{Store: store, version: resource.OpsVersion}
	var far answers
	b, err := resource.NewForwardingBackend("a", local, func(node string) (pb.StoreServiceClient, error) {
		if node != "b" {
			t.Errorf("dialed %s, want the leader", node)
		}
		return far, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := resource.New(nodeType, "x", &pb.Node{})
	if err != nil {
		t.Fatal(err)
	}
	commit := func() error { _, err := b.Commit(t.Context(), resource.PutOp(r, resource.AnyVersion)); return err }
	read := func() error { _, err := b.Read(t.Context(), resource.Strong, r.Id); return err }

	// No leader.
	for _, err := range []error{commit(), read()} {
		if !errors.Is(err, resource.ErrNotLeader) {
			t.Errorf("call without a leader = %v, want ErrNotLeader", err)
		}
	}
	local.why = fmt.Errorf("%w: no room", resource.ErrReadOnly)
	for _, err := range []error{commit(), read()} {
		if !errors.Is(err, resource.ErrReadOnly) || errors.Is(err, resource.ErrNotLeader) {
			t.Errorf("call without a leader, with a full disk = %v, want ErrReadOnly", err)
		}
	}
	// This server is the leader, or will be.
	for _, leads := range []bool{true, false} {
		local.leader, local.leads, local.dialed = "a", leads, 0
		if err := errors.Join(commit(), read()); err != nil || local.dialed != 1 {
			t.Errorf("leader %v: call = %v, dialed %d times, want no error and no dial", leads, err, local.dialed)
		}
	}
	// Another server is the leader and fails. A batch that may be committed must not
	// be reported as not written.
	local.leader, local.leads = "b", false
	for _, tc := range []struct {
		answer error
		want   error
		undone bool
		unsent bool
	}{
		{resource.StatusError(resource.ErrNotLeader), resource.ErrNotLeader, true, false},
		{resource.StatusError(resource.ErrConflict), resource.ErrConflict, true, false},
		{resource.StatusError(resource.ErrReadOnly), resource.ErrReadOnly, true, false},
		{resource.StatusError(resource.ErrTerminating), resource.ErrTerminating, true, false},
		{status.Error(codes.PermissionDenied, "no"), nil, true, false},
		{status.Error(codes.Unavailable, "connection lost"), resource.ErrUnknownOutcome, false, false},
		{status.Error(codes.Unavailable, "connection refused"), resource.ErrNotLeader, true, true},
		{status.Error(codes.DeadlineExceeded, "too late"), context.DeadlineExceeded, false, false},
		{status.Error(codes.DeadlineExceeded, "no connection yet"), context.DeadlineExceeded, true, true},
		{status.Error(codes.Canceled, "connection closed"), context.Canceled, false, false},
		{status.Error(codes.Internal, "boom"), resource.ErrUnknownOutcome, false, false},
		{nil, resource.ErrUnknownOutcome, false, false}, // one result is missing
	} {
		far = answers{err: tc.answer, sent: !tc.unsent}
		err := commit()
		if err == nil || tc.want != nil && !errors.Is(err, tc.want) || errors.Is(err, resource.ErrUnknownOutcome) == tc.undone {
			t.Errorf("Commit() at a leader that returns %v = %v", tc.answer, err)
		}
		if err := read(); (errors.Is(err, resource.ErrNotLeader)) != (status.Code(tc.answer) == codes.Unavailable) {
			t.Errorf("strong Read() at a leader that returns %v = %v", tc.answer, err)
		}
	}
	// An op that a server does not support is not forwarded.
	local.version = 1
	for _, leads := range []bool{true, false} {
		local.leads = leads
		_, err := b.Commit(t.Context(), resource.OverwriteOp(r, false))
		if !errors.Is(err, resource.ErrUnsupported) || !strings.Contains(err.Error(), "c; nothing was written") {
			t.Errorf("leader %t: Commit() of a new op = %v, want ErrUnsupported", leads, err)
		}
	}
	if _, err := resource.NewForwardingBackend("a", nil, nil); err == nil {
		t.Error("NewForwardingBackend() without a local backend = nil, want an error")
	}
}
