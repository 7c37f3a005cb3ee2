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

const (
	// heartbeatInterval is the interval at which an idle stream carries an
	// empty message.
	heartbeatInterval = 2 * time.Second
	// streamTimeout is the time without a message after which a Follower ends
	// the stream.
	streamTimeout = 2*heartbeatInterval + heartbeatInterval/2
	// catchUpTimeout limits the wait of a Source until its store has every
	// commit that its datacenter has acknowledged. It must be shorter than
	// streamTimeout.
	catchUpTimeout = 4 * time.Second
)

// PrimaryState reports whether a datacenter is the primary. PrimaryManager
// implements it.
type PrimaryState interface {
	// IsPrimary reports whether the datacenter owns its federated resources.
	IsPrimary() bool
	// WaitPrimary blocks until IsPrimary returns primary, or ctx ends.
	WaitPrimary(ctx context.Context, primary bool) error
	// CheckFollow returns nil if other datacenters can follow this one.
	// Otherwise it returns a gRPC status with the reason.
	CheckFollow() error
	// Successor returns the next primary if this datacenter is demoted,
	// otherwise "".
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
	// Backend stores the resources. Its strong reads include every commit that
	// another server of this datacenter has acknowledged. Required.
	Backend resource.Backend
	// Registry contains the federated types. Required.
	Registry *resource.Registry
	// Primary reports whether other datacenters can follow this one. Required.
	Primary PrimaryState
	// Logger receives the log. Default: slog.Default().
	Logger *slog.Logger
}

// Source lets secondaries follow the federated resources of this datacenter. It
// covers the types that are registered when NewSource is called.
type Source struct {
	pb.UnimplementedReplicationServiceServer
	cfg   SourceConfig
	kinds []kind              // federated kinds, in order
	types map[kind][]*pb.Type // federated types of each kind
	log   *changeLog          // latest commits

	// See SourceStatus.
	followers               atomic.Int64
	sent, compared, resumed atomic.Uint64
}

// SourceStatus describes the followers of a Source. The counters begin at the
// start of the process.
type SourceStatus struct {
	// Followers is the number of open streams.
	Followers int
	// Resumed counts the streams that continued at a position.
	Resumed uint64
	// Compared counts the streams that began with a comparison.
	Compared uint64
	// SentBytes is the encoded size of all sent messages.
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
	return SourceStatus{int(s.followers.Load()), s.resumed.Load(), s.compared.Load(), s.sent.Load()}
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
			return fmt.Errorf("collect changes of federated resources: %w", err)
		default:
			s.cfg.Logger.Info("change log restarted: a snapshot was restored, or changes arrive faster than they are read")
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
// ends the stream. It fails with ABORTED if the follower lags behind the log or
// a snapshot was restored. The follower then compares its resources again.
func (s *Source) Follow(stream grpc.BidiStreamingServer[pb.FollowRequest, pb.FollowResponse]) error {
	if err := s.cfg.Primary.CheckFollow(); err != nil {
		return err
	}
	req, err := stream.Recv()
	if err != nil {
		return err
	}
	if req.GetHello() == nil {
		return status.Error(codes.InvalidArgument, "first message is not hello: the follower has an incompatible version")
	}
	if _, _, ready := s.log.end(); !ready {
		return status.Error(codes.Unavailable, "this server has not read its federated resources yet")
	}
	s.followers.Add(1)
	defer s.followers.Add(-1)
	err = s.serve(stream, req.GetHello())
	if errors.Is(err, errEvicted) {
		return status.Error(codes.Aborted, err.Error())
	}
	return resource.StatusError(err)
}
