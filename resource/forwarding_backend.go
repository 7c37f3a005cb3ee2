// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
)

// ReplicatedBackend is one server's part of a replicated store. Package
// raftstore implements ReplicatedBackend.
type ReplicatedBackend interface {
	Backend
	// IsLeader reports whether this server is the leader.
	IsLeader() bool
	// Leader returns the node name of the leader, if the leader is known.
	Leader() (node string, ok bool)
	// ReadIndex returns the index of a log entry. All writes acknowledged
	// before the call are at or below this index. ReadIndex fails with
	// ErrNotLeader on a server that is not the leader.
	ReadIndex(ctx context.Context) (uint64, error)
	// WaitIndex returns when this server has applied all entries up to index.
	// If ctx ends first, WaitIndex returns the context's error.
	WaitIndex(ctx context.Context, index uint64) error
	// OpsVersion returns the highest version of ops that all servers of the
	// Raft group support, and the name of a server that supports no higher
	// version.
	OpsVersion() (version int, node string)
	// WriteError returns an ErrReadOnly while this server cannot write its log.
	WriteError() error
}

// ForwardingBackend is a Backend that serves writes and strong reads on every
// server. It forwards writes to the leader and reads the local state. A strong
// read waits until this server has applied all entries that the leader has
// acknowledged. Without a known leader, writes and strong reads fail
// immediately with ErrNotLeader or ErrReadOnly.
type ForwardingBackend struct {
	Backend // local; serves ListByOwner, Watch and Wait

	node  string
	local ReplicatedBackend
	dial  func(node string) (pb.StoreServiceClient, error)
	index coalescer[uint64] // calls readIndex
}

// NewForwardingBackend returns a ForwardingBackend over the local backend of a
// node. The function dial returns a client of another server of the datacenter.
// It must not block.
func NewForwardingBackend(
	node string, local ReplicatedBackend, dial func(node string) (pb.StoreServiceClient, error),
) (*ForwardingBackend, error) {
	if node == "" || local == nil || dial == nil {
		return nil, errors.New("forwarding backend: node, local and dial are required")
	}
	b := &ForwardingBackend{Backend: local, node: node, local: local, dial: dial}
	b.index.call = b.readIndex
	return b, nil
}

// leader returns a client of the leader, or nil if this server is the leader.
func (b *ForwardingBackend) leader(ctx context.Context) (pb.StoreServiceClient, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if b.local.IsLeader() {
		return nil, nil
	}
	node, ok := b.local.Leader()
	switch {
	case ok && node == b.node: // elected, but still applying earlier entries
		return nil, nil
	case ok:
		return b.dial(node)
	}
	if err := b.local.WriteError(); err != nil { // the reason why this server may never find a leader
		return nil, err
	}
	return nil, fmt.Errorf("%w, and none is known", ErrNotLeader)
}

// readOnlyTimeout bounds a strong read on a server that cannot write its log.
const readOnlyTimeout = time.Second

// awaitFresh returns when the local state has the freshness that c requires.
func (b *ForwardingBackend) awaitFresh(ctx context.Context, c Consistency) error {
	if c != Strong {
		return nil
	}
	index, err := b.index.get(ctx)
	if err != nil {
		return err
	}
	readOnly := b.local.WriteError()
	if readOnly != nil { // this server cannot append the missing entries
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, readOnlyTimeout)
		defer cancel()
	}
	err = b.local.WaitIndex(ctx, index)
	if readOnly != nil && errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w (%v)", readOnly, err)
	}
	return err
}

func (b *ForwardingBackend) readIndex(ctx context.Context) (uint64, error) {
	leader, err := b.leader(ctx)
	if err != nil {
		return 0, err
	}
	if leader == nil {
		return b.local.ReadIndex(ctx)
	}
	out, err := leader.ReadIndex(ctx, &pb.ReadIndexRequest{})
	known := FromStatus(err)
	if status.Code(err) == codes.Unavailable && !errors.Is(known, ErrNotLeader) {
		return 0, leaderUnreachable(err)
	}
	return out.GetIndex(), known
}

// leaderUnreachable returns the error of a call that was not sent to the
// leader.
func leaderUnreachable(err error) error {
	return fmt.Errorf("%w, and the known leader cannot be reached: %s", ErrNotLeader, status.Convert(err).Message())
}

// Read implements Backend. A strong read waits for the leader and a majority.
func (b *ForwardingBackend) Read(ctx context.Context, c Consistency, id *pb.ID) (*pb.Resource, error) {
	if err := b.awaitFresh(ctx, c); err != nil {
		return nil, fmt.Errorf("read %s: %w", IDString(id), err)
	}
	return b.local.Read(ctx, Eventual, id)
}

// List implements Backend. A strong List costs as much as a strong Read.
func (b *ForwardingBackend) List(ctx context.Context, c Consistency, q Query) ([]*pb.Resource, uint64, error) {
	if err := b.awaitFresh(ctx, c); err != nil {
		return nil, 0, fmt.Errorf("list %s: %w", TypeString(q.Type), err)
	}
	return b.local.List(ctx, Eventual, q)
}

// Commit implements Backend. When it returns, this server may not have applied
// the batch yet. It fails with ErrUnsupported if a server of the group does not
// support the ops.
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
		return nil, fmt.Errorf("commit: %w: the leader returned %d results for %d ops",
			ErrUnknownOutcome, len(out.GetResults()), len(ops))
	}
	stored := make([]*pb.Resource, len(ops))
	for i, r := range out.GetResults() {
		stored[i] = r.GetResource()
	}
	Committed(ctx, out.GetIndex())
	return stored, nil
}

// remoteCommitError returns the error of a failed Commit at the leader, with
// its outcome. If sent, the leader may have received the batch.
func remoteCommitError(err error, sent bool) error {
	known := FromStatus(err)
	if knownOutcome(known) {
		return known
	}
	switch code := status.Code(err); {
	case !sent && code == codes.Unavailable:
		return fmt.Errorf("commit: %w", leaderUnreachable(err))
	case !sent && (code == codes.DeadlineExceeded || code == codes.Canceled):
		return fmt.Errorf("commit at the leader, which was not reached in time: nothing was written: %w", known)
	case code == codes.Unimplemented, code == codes.PermissionDenied, code == codes.Unauthenticated,
		code == codes.ResourceExhausted: // the leader refused the call
		return fmt.Errorf("commit at the leader: %w", err)
	}
	return fmt.Errorf("commit at the leader: %w: %w", ErrUnknownOutcome, known)
}

// StoreService serves the calls of the ForwardingBackends of other servers on
// the leader. The caller of NewStoreService must ensure that only servers of
// the same datacenter can call the service.
type StoreService struct {
	pb.UnimplementedStoreServiceServer
	local ReplicatedBackend
}

// NewStoreService returns the service over the local backend.
func NewStoreService(local ReplicatedBackend) *StoreService { return &StoreService{local: local} }

// Commit implements pb.StoreServiceServer.
func (s *StoreService) Commit(ctx context.Context, req *pb.CommitRequest) (*pb.CommitResponse, error) {
	var index uint64
	ctx = WithCommitted(ctx, func(i uint64) { index = i })
	stored, err := s.local.Commit(ctx, req.GetBatch().GetOps()...)
	if err != nil {
		return nil, StatusError(err)
	}
	out := &pb.CommitResponse{Results: make([]*pb.CommitResponse_Result, len(stored)), Index: index}
	for i, r := range stored {
		out.Results[i] = &pb.CommitResponse_Result{Resource: r}
	}
	return out, nil
}

// ReadIndex implements pb.StoreServiceServer.
func (s *StoreService) ReadIndex(ctx context.Context, _ *pb.ReadIndexRequest) (*pb.ReadIndexResponse, error) {
	index, err := s.local.ReadIndex(ctx)
	if err != nil {
		return nil, StatusError(err)
	}
	return &pb.ReadIndexResponse{Index: index}, nil
}

// coalescer merges concurrent calls of one function. Unlike singleflight, a
// caller of get never shares a result of a call that began before get. A strong
// read needs this guarantee.
type coalescer[T any] struct {
	call func(ctx context.Context) (T, error)

	mu   sync.Mutex
	next *coalesced[T]   // result of the call that has not begun; nil: none
	last <-chan struct{} // closed when the latest call has ended; nil: no call yet
}

// coalesced is the result of one call.
type coalesced[T any] struct {
	done     chan struct{} // closed when the result is set
	value    T
	err      error
	timedOut bool // the call has exceeded coalesceTimeout
}

// coalesceTimeout bounds one call, which ignores the contexts of its callers.
const coalesceTimeout = 5 * time.Second

// get returns the result of a call that begins after get was called. If ctx
// ends first, get returns the context's error.
func (c *coalescer[T]) get(ctx context.Context) (T, error) {
	for {
		c.mu.Lock()
		r := c.next
		if r == nil {
			r = &coalesced[T]{done: make(chan struct{})}
			go c.run(r, c.last) // ends after this call and the call before, each within coalesceTimeout
			c.next, c.last = r, r.done
		}
		c.mu.Unlock()
		select {
		case <-r.done:
			if !r.timedOut { // otherwise call again, until ctx ends
				return r.value, r.err
			}
		case <-ctx.Done():
			var none T
			return none, ctx.Err()
		}
	}
}

// run makes the call of r when the call before has ended.
func (c *coalescer[T]) run(r *coalesced[T], before <-chan struct{}) {
	if before != nil {
		<-before
	}
	c.mu.Lock()
	c.next = nil // later callers wait for the next call
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), coalesceTimeout)
	defer cancel()
	r.value, r.err = c.call(ctx)
	r.timedOut = r.err != nil && ctx.Err() != nil
	close(r.done)
}
