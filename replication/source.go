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

// Source lets secondaries follow the federated resources of this datacenter.
type Source struct {
	pb.UnimplementedReplicationServiceServer
	primary *PrimaryManager
	backend resource.Backend
	logger  *slog.Logger
	kinds   []kind              // federated kinds, in order
	types   map[kind][]*pb.Type // federated types of each kind
	log     *changeLog          // latest commits

	// See SourceStatus.
	followers               atomic.Int64
	sent, compared, resumed atomic.Uint64

	rejected rejection
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

// NewSource returns a Source of the datacenter of p. b is a Backend of the same
// store as that of p. Its strong reads must include every commit that another
// server of the datacenter has acknowledged.
func NewSource(p *PrimaryManager, b resource.Backend) *Source {
	return &Source{
		primary: p, backend: b, logger: p.cfg.Logger, kinds: p.follower.kinds, types: p.follower.types,
		log: &changeLog{},
	}
}

// Status returns the current state.
func (s *Source) Status() SourceStatus {
	return SourceStatus{int(s.followers.Load()), s.resumed.Load(), s.compared.Load(), s.sent.Load()}
}

// Run collects changes while this datacenter is the primary, until ctx ends.
// The Source accepts no follower before Run. Run may be called once.
func (s *Source) Run(ctx context.Context) error {
	for {
		err := s.primary.waitPrimary(ctx, true)
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
			s.logger.Info("change log restarted: a snapshot was restored, or changes arrive faster than they are read")
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
		if s.primary.waitPrimary(ctx, false) == nil {
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
	req, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := s.primary.checkFollow(); err != nil {
		return s.primary.confirmWithdrawn(stream.Context(), s.backend, req.GetHello().GetWithdrawn(), err)
	}
	if req.GetHello() == nil {
		return status.Error(codes.InvalidArgument,
			"first message is not hello: the follower has an incompatible version")
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
