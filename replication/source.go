// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// SourceHeartbeat is the interval at which an idle stream carries an empty
// message.
const SourceHeartbeat = 2 * time.Second

// catchUpTimeout limits the time for which a source waits until its store has
// every commit that its datacenter has acknowledged. It is shorter than the
// follower's stream timeout.
const catchUpTimeout = 4 * time.Second

// PrimaryState reports whether a datacenter is the primary. PrimaryManager
// implements it.
type PrimaryState interface {
	// IsPrimary reports whether the datacenter owns its federated resources.
	IsPrimary() bool
	// WaitPrimary blocks until IsPrimary returns primary, or ctx ends.
	WaitPrimary(ctx context.Context, primary bool) error
	// CheckFollow returns nil if the datacenter can be followed, otherwise a gRPC
	// status with the reason.
	CheckFollow() error
	// Successor returns the datacenter in favor of which this one is demoted, or "".
	Successor() string
}

// AlwaysPrimary is the PrimaryState of a datacenter whose role never changes.
var AlwaysPrimary PrimaryState = alwaysPrimary{}

type alwaysPrimary struct{}

func (alwaysPrimary) IsPrimary() bool    { return true }
func (alwaysPrimary) CheckFollow() error { return nil }
func (alwaysPrimary) Successor() string  { return "" }

func (alwaysPrimary) WaitPrimary(ctx context.Context, primary bool) error {
	if !primary {
		<-ctx.Done()
	}
	return ctx.Err()
}

// SourceConfig configures a Source.
type SourceConfig struct {
	// Backend stores the resources. Its strong reads return everything that the
	// other servers of this datacenter have acknowledged. Required.
	Backend  resource.Backend
	Registry *resource.Registry // required
	// Primary reports whether this datacenter can be followed. Required.
	Primary PrimaryState
	// Logger. Default: slog.Default().
	Logger *slog.Logger
}

// Source lets secondaries follow the federated resources of this datacenter. It
// covers the types that are registered when it is created.
type Source struct {
	pb.UnimplementedReplicationServiceServer
	cfg       SourceConfig
	kinds     []kind
	types     map[kind][]*pb.Type
	log       *changeLog
	followers atomic.Int64
	sent      atomic.Uint64
	compared  atomic.Uint64
	resumed   atomic.Uint64
}

// SourceStatus describes the followers of a Source. The counters begin at the
// start of the process.
type SourceStatus struct {
	Followers int
	// Resumed counts the streams that continued at a position.
	Resumed uint64
	// Compared counts the streams that began with a comparison.
	Compared uint64
	// SentBytes is the encoded size of all messages.
	SentBytes uint64
}

// NewSource checks cfg.
func NewSource(cfg SourceConfig) (*Source, error) {
	if cfg.Backend == nil || cfg.Registry == nil || cfg.Primary == nil {
		return nil, errors.New("replication: Backend, Registry and Primary are required")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Source{cfg: cfg, log: &changeLog{}}
	s.kinds, s.types = kindsOf(cfg.Registry)
	return s, nil
}

// Status returns the current state.
func (s *Source) Status() SourceStatus {
	return SourceStatus{
		Followers: int(s.followers.Load()), Resumed: s.resumed.Load(), Compared: s.compared.Load(), SentBytes: s.sent.Load(),
	}
}

// Run collects changes while this datacenter is the primary, until ctx ends.
// The Source accepts no follower before Run. Run may be called once.
func (s *Source) Run(ctx context.Context) error {
	for {
		err := s.cfg.Primary.WaitPrimary(ctx, true)
		if err == nil {
			err = s.collectWhilePrimary(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil: // this datacenter is not the primary any more
		case !errors.Is(err, resource.ErrWatchReset):
			return fmt.Errorf("collect changes of federated records: %w", err)
		default:
			s.cfg.Logger.Info("federated records were replaced, or change faster than they can be read: followers compare again")
		}
	}
}

// collectWhilePrimary runs collect. It returns nil when this datacenter is not
// the primary any more.
func (s *Source) collectWhilePrimary(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		if s.cfg.Primary.WaitPrimary(ctx, false) == nil {
			cancel()
		}
	})
	err := s.collect(ctx)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Follow implements pb.ReplicationServiceServer. It returns when the follower
// ends the stream. It fails with ABORTED if the follower lags too far or the
// store was replaced. The follower then compares again.
func (s *Source) Follow(stream grpc.BidiStreamingServer[pb.FollowRequest, pb.FollowResponse]) error {
	if err := s.cfg.Primary.CheckFollow(); err != nil {
		return err
	}
	req, err := stream.Recv()
	if err != nil {
		return err
	}
	if req.GetHello() == nil {
		return status.Error(codes.InvalidArgument, "a follower begins with hello; it may run an incompatible version")
	}
	if _, _, ready := s.log.end(); !ready {
		return status.Error(codes.Unavailable, "this server has not read its records yet")
	}
	s.followers.Add(1)
	defer s.followers.Add(-1)
	err = newSourceStream(s, stream, req.GetHello()).run(req.GetHello())
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errEvicted):
		return status.Error(codes.Aborted, err.Error())
	}
	return resource.StatusError(err)
}
