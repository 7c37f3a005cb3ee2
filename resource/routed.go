// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
)

// Replica is one server's part of a replicated store: package raftstore has it.
type ReplicatedBackend interface {
	Backend
	// IsLeader says whether this server leads, Leader which one does, if that is known.
	IsLeader() bool
	Leader() (node string, ok bool)
	// ReadIndex returns the index up to which everything acknowledged before the call reaches. Only the leader can:
	// ErrNotLeader elsewhere.
	ReadIndex(ctx context.Context) (uint64, error)
	// WaitIndex returns when this server has applied everything up to index, or ctx ends (its error).
	WaitIndex(ctx context.Context, index uint64) error
	// Understood returns the version of ops that all servers of the group understand, and which one understands no more.
	OpsVersion() (version int, node string)
	// WriteError returns why this server cannot write its log now, an ErrReadOnly, or nil.
	WriteError() error
}

// Routed is a Backend that takes writes and strong reads on every server: it has the leader do what only that can, and reads
// what is stored here. A strong read waits until this server has applied what the leader had acknowledged. Neither waits for a
// leader: without one they fail with ErrNotLeader, or with ErrReadOnly.
type ForwardingBackend struct {
	node  string
	local ReplicatedBackend
	ask   func(node string) (pb.StoreServiceClient, error)
	index shared[uint64] // up to which what the leader has acknowledged reaches
}

var _ Backend = (*ForwardingBackend)(nil)

// NewForwardingBackend returns the Backend over the Replica of a node. ask returns a client of another server of the datacenter; it does
// not block.
func NewForwardingBackend(node string, local ReplicatedBackend, ask func(node string) (pb.StoreServiceClient, error)) (*ForwardingBackend, error) {
	if node == "" || local == nil || ask == nil {
		return nil, errors.New("routed store: the node, its replica and ask are required")
	}
	b := &ForwardingBackend{node: node, local: local, ask: ask}
	b.index.ask = b.readIndex
	return b, nil
}

// leader returns a client of the leader; nil if that is this server.
func (b *ForwardingBackend) leader(ctx context.Context) (pb.StoreServiceClient, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if b.local.IsLeader() {
		return nil, nil
	}
	node, ok := b.local.Leader()
	if !ok {
		if why := b.local.WriteError(); why != nil { // to wait for a leader may be in vain
			return nil, why
		}
		return nil, fmt.Errorf("%w, and none is known", ErrNotLeader)
	}
	if node == b.node { // elected, and about to be level with what came before
		return nil, nil
	}
	return b.ask(node)
}

// fresh returns when what is applied here is fresh enough for c.
func (b *ForwardingBackend) fresh(ctx context.Context, c Consistency) error {
	if c != Strong {
		return nil
	}
	return b.level(ctx)
}

// level returns when this server has applied what the leader had acknowledged when it was called.
func (b *ForwardingBackend) level(ctx context.Context) error {
	index, err := b.index.get(ctx)
	if err != nil {
		return err
	}
	why := b.local.WriteError()
	if why != nil { // what is missing here may not come
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, troubledWait)
		defer cancel()
	}
	err = b.local.WaitIndex(ctx, index)
	if why != nil && errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w (%v)", why, err)
	}
	return err
}

// troubledWait is how long a strong read waits for what the leader has, at a server that cannot write its log.
const troubledWait = time.Second

func (b *ForwardingBackend) readIndex(ctx context.Context) (uint64, error) {
	leader, err := b.leader(ctx)
	if err != nil {
		return 0, err
	}
	if leader == nil {
		return b.local.ReadIndex(ctx)
	}
	out, err := leader.ReadIndex(ctx, &pb.ReadIndexRequest{})
	return out.GetIndex(), remoteReadError(err)
}

// remoteReadError says why the leader told no index. One that cannot be asked is none.
func remoteReadError(err error) error {
	known := FromStatus(err)
	if status.Code(err) == codes.Unavailable && !errors.Is(known, ErrNotLeader) {
		return notAsked(err)
	}
	return known
}

// notAsked is what a call to the leader fails with that was not sent to it.
func notAsked(err error) error {
	return fmt.Errorf("%w, and the one that is known cannot be asked: %s", ErrNotLeader, status.Convert(err).Message())
}

// Read is Backend's. A strong one blocks for a round trip to the leader, and it to a majority.
func (b *ForwardingBackend) Read(ctx context.Context, c Consistency, id *pb.ID) (*pb.Resource, error) {
	if err := b.fresh(ctx, c); err != nil {
		return nil, fmt.Errorf("read %s: %w", IDString(id), err)
	}
	return b.local.Read(ctx, Eventual, id)
}

// List is Backend's. A strong one blocks as a strong Read does.
func (b *ForwardingBackend) List(ctx context.Context, c Consistency, q Query) ([]*pb.Resource, uint64, error) {
	if err := b.fresh(ctx, c); err != nil {
		return nil, 0, fmt.Errorf("list %s: %w", TypeString(q.Type), err)
	}
	return b.local.List(ctx, Eventual, q)
}

// ListByOwner is Backend's.
func (b *ForwardingBackend) ListByOwner(ctx context.Context, owner *pb.ID) ([]*pb.Resource, error) {
	return b.local.ListByOwner(ctx, owner)
}

// Watch is Backend's.
func (b *ForwardingBackend) Watch(q Query) (Watch, error) { return b.local.Watch(q) }

// Wait is Backend's.
func (b *ForwardingBackend) Wait(ctx context.Context, q Query, after uint64) error {
	return b.local.Wait(ctx, q, after)
}

// Commit is Backend's. When it returns, this server may not have applied the batch yet. It is ErrUnsupported for ops that some server of the
// group does not understand.
func (b *ForwardingBackend) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	if err := CheckSupported(ops, b.local.OpsVersion); err != nil {
		return nil, fmt.Errorf("commit: %w", err)
	}
	leader, err := b.leader(ctx)
	if err != nil {
		return nil, err
	}
	if leader == nil {
		return b.local.Commit(ctx, ops...)
	}
	var at grpcpeer.Peer // stays empty if the batch was not sent
	out, err := leader.Commit(ctx, &pb.CommitRequest{Batch: &pb.Batch{Ops: ops}}, grpc.Peer(&at))
	if err != nil {
		return nil, remoteCommitError(err, at.Addr != nil)
	}
	if len(out.GetResults()) != len(ops) {
		return nil, fmt.Errorf("commit: %w: the leader answered %d ops with %d results", ErrUnknownOutcome, len(ops), len(out.GetResults()))
	}
	stored := make([]*pb.Resource, len(ops))
	for i, r := range out.GetResults() {
		stored[i] = r.GetResource()
	}
	return stored, nil
}

// remoteCommitError says what became of a batch that was handed to the leader, if it was sent.
func remoteCommitError(err error, sent bool) error {
	known := FromStatus(err)
	for _, class := range errorClasses {
		if errors.Is(known, class.err) && class.code != codes.DeadlineExceeded && class.code != codes.Canceled {
			return known
		}
	}
	switch code := status.Code(err); {
	case sent:
	case code == codes.Unavailable:
		return fmt.Errorf("commit: %w", notAsked(err))
	case code == codes.DeadlineExceeded, code == codes.Canceled:
		return fmt.Errorf("commit at the leader, which was not reached in time: nothing was written: %w", known)
	}
	switch status.Code(err) {
	case codes.Unimplemented, codes.PermissionDenied, codes.Unauthenticated, codes.ResourceExhausted: // it was not begun
		return fmt.Errorf("commit at the leader: %w", err)
	}
	return fmt.Errorf("commit at the leader: %w: %w", ErrUnknownOutcome, known)
}

// StoreService answers what a Routed of another server asks of a leader's Replica. Whoever serves it lets servers of the
// datacenter call it, and nobody else.
type StoreService struct {
	pb.UnimplementedStoreServiceServer
	replica ReplicatedBackend
}

// NewStoreService returns the service over a Replica.
func NewStoreService(r ReplicatedBackend) *StoreService { return &StoreService{replica: r} }

// Commit implements pb.StoreServiceServer.
func (s *StoreService) Commit(ctx context.Context, req *pb.CommitRequest) (*pb.CommitResponse, error) {
	stored, err := s.replica.Commit(ctx, req.GetBatch().GetOps()...)
	if err != nil {
		return nil, StatusError(err)
	}
	out := &pb.CommitResponse{Results: make([]*pb.CommitResponse_Result, len(stored))}
	for i, r := range stored {
		out.Results[i] = &pb.CommitResponse_Result{Resource: r}
	}
	return out, nil
}

// ReadIndex implements pb.StoreServiceServer.
func (s *StoreService) ReadIndex(ctx context.Context, _ *pb.ReadIndexRequest) (*pb.ReadIndexResponse, error) {
	index, err := s.replica.ReadIndex(ctx)
	if err != nil {
		return nil, StatusError(err)
	}
	return &pb.ReadIndexResponse{Index: index}, nil
}
