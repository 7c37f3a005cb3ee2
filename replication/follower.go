// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// FollowerConfig configures a Follower.
type FollowerConfig struct {
	Backend resource.Backend
	// Type is the federated type to follow.
	Type *pb.Type
	// Connect returns a client of any server of the primary.
	Connect func() (pb.ReplicationServiceClient, error)
	// Ways returns a channel that is closed when the way to the primary may have changed.
	Ways   func() <-chan struct{}
	Logger *slog.Logger
}

// Follower keeps copies of the primary's resources of one type.
type Follower struct {
	cfg FollowerConfig

	mu     sync.Mutex
	status DownwardStatus
}

// DownwardStatus tells how following goes.
type DownwardStatus struct {
	Connected bool
	// LastContact is when the primary last said anything: its stream carries a sign of life every SourceHeartbeat.
	LastContact time.Time
	// Index is the primary's index that the copies have reached.
	Index       uint64
	LastError   error
	LastErrorAt time.Time
}

// silence is how long a stream may say nothing before it is taken for dead.
const silence = 2*SourceHeartbeat + SourceHeartbeat/2

// maxPending bounds messages that wait for the next commit.
const maxPending = 256

// NewFollower checks cfg.
func NewFollower(cfg FollowerConfig) (*Follower, error) {
	if cfg.Backend == nil || cfg.Type == nil || cfg.Connect == nil || cfg.Ways == nil || cfg.Logger == nil {
		return nil, errors.New("replication: every field of FollowerConfig is required")
	}
	return &Follower{cfg: cfg}, nil
}

// Status returns how it goes.
func (f *Follower) Status() DownwardStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// Run follows until ctx ends. Call it while this server leads, once at a time.
func (f *Follower) Run(ctx context.Context) error {
	var retry backoff
	failing := false
	for {
		ways := f.cfg.Ways()
		began := time.Now()
		err := f.follow(ctx)
		f.note(err)
		if ctx.Err() != nil {
			return nil
		}
		if f.heardSince(began) {
			retry.reset()
			failing = false
		}
		next := retry.next(time.Since(began))
		f.cfg.Logger.Log(ctx, level(failing), "following the primary", "type", f.cfg.Type.Kind, "err", err, "retry", next)
		failing = true
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-ways:
			retry.reset()
		}
		timer.Stop()
	}
}

// follow runs one stream to its end and returns why it ended.
func (f *Follower) follow(ctx context.Context) error {
	client, err := f.cfg.Connect()
	if err != nil {
		return err
	}
	have, err := f.digests(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	watchdog := time.AfterFunc(silence, func() { cancel(fmt.Errorf("no sign of life for %v", silence)) })
	defer watchdog.Stop()

	stream, err := client.Follow(ctx, &pb.FollowRequest{Type: f.cfg.Type, Have: have}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	pending := make(chan *pb.FollowResponse, maxPending) // bound stated at maxPending; the reader waits when it is full
	wg.Go(func() {
		defer close(pending)
		for {
			m, err := stream.Recv()
			if err != nil {
				cancel(err)
				return
			}
			watchdog.Reset(silence)
			f.heard()
			select {
			case pending <- m:
			case <-ctx.Done():
				return
			}
		}
	})
	for m := range pending {
		if err := f.commit(ctx, drain(m, pending)); err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
	}
	return context.Cause(ctx)
}

// drain takes what else has arrived.
func drain(first *pb.FollowResponse, pending <-chan *pb.FollowResponse) []*pb.FollowResponse {
	out := []*pb.FollowResponse{first}
	for range maxPending {
		select {
		case m, ok := <-pending:
			if !ok {
				return out
			}
			out = append(out, m)
		default:
			return out
		}
	}
	return out
}

// commit applies messages in order as one Raft entry.
func (f *Follower) commit(ctx context.Context, ms []*pb.FollowResponse) error {
	var ops []*pb.Op
	for _, m := range ms {
		for _, r := range m.Upserts {
			ops = append(ops, resource.ReplicaOp(r))
		}
		for _, name := range m.Deletes {
			ops = append(ops, resource.RemoveReplicaOp(resource.ID(f.cfg.Type, name)))
		}
	}
	if len(ops) > 0 {
		if _, err := f.cfg.Backend.Commit(ctx, ops...); err != nil {
			return fmt.Errorf("store %d changes of the primary: %w", len(ops), err)
		}
		f.cfg.Logger.Debug("copied from the primary", "type", f.cfg.Type.Kind, "changes", len(ops), "index", ms[len(ms)-1].Index)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Index = max(f.status.Index, ms[len(ms)-1].Index)
	return nil
}

func (f *Follower) digests(ctx context.Context) ([]*pb.Digest, error) {
	rs, _, err := f.cfg.Backend.List(ctx, resource.Eventual, resource.Query{Type: f.cfg.Type})
	if err != nil {
		return nil, err
	}
	out := make([]*pb.Digest, 0, len(rs))
	for _, r := range rs {
		out = append(out, &pb.Digest{Name: r.Id.Name, Uid: r.Id.Uid, PrimaryModifyIndex: r.PrimaryModifyIndex})
	}
	return out, nil
}

func (f *Follower) heard() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Connected = true
	f.status.LastContact = time.Now()
	f.status.LastError = nil
}

func (f *Follower) heardSince(t time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status.LastContact.After(t)
}

func (f *Follower) note(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Connected = false
	if err != nil {
		f.status.LastError, f.status.LastErrorAt = err, time.Now()
	}
}
