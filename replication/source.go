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

// SourceHeartbeat is how often an idle stream carries an empty message.
const SourceHeartbeat = 2 * time.Second

// levelTimeout bounds how long a source waits until its store is level with its datacenter. It is below what a follower
// takes for silence.
const levelTimeout = 4 * time.Second

// SourceConfig configures a Source.
type SourceConfig struct {
	// Backend is where the records are; its strong reads see what other servers of this datacenter have acknowledged.
	Backend  resource.Backend
	Registry *resource.Registry
	// PrimaryManager says whether the records are this datacenter's own: only then they may be followed. Nil: Primary does, for good.
	PrimaryManager *PrimaryManager
	AlwaysPrimary  bool
	// Logger. Default: slog.Default().
	Logger *slog.Logger
}

// Source lets secondaries follow this datacenter's federated records. Those are the types that are registered when it is made.
type Source struct {
	pb.UnimplementedReplicationServiceServer
	cfg       SourceConfig
	kinds     []kind
	types     map[kind][]*pb.Type
	log       *log
	followers atomic.Int64
	sent      atomic.Uint64
	compared  atomic.Uint64
	resumed   atomic.Uint64
}

// SourceStatus tells who follows.
type SourceStatus struct {
	Followers int
	// Resumed and Compared count followers that began, and SentBytes what was sent to them, encoded.
	Resumed, Compared, SentBytes uint64
}

// NewSource checks cfg.
func NewSource(cfg SourceConfig) (*Source, error) {
	if cfg.Backend == nil || cfg.Registry == nil {
		return nil, errors.New("replication: Backend and Registry are required")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Source{cfg: cfg, log: &log{}}
	s.kinds, s.types = kindsOf(cfg.Registry)
	return s, nil
}

// Status returns who follows, and what that took so far.
func (s *Source) Status() SourceStatus {
	return SourceStatus{
		Followers: int(s.followers.Load()), Resumed: s.resumed.Load(), Compared: s.compared.Load(), SentBytes: s.sent.Load(),
	}
}

// owns says whether the records are this datacenter's own.
func (s *Source) owns() bool {
	if s.cfg.PrimaryManager != nil {
		return s.cfg.PrimaryManager.IsPrimary()
	}
	return s.cfg.AlwaysPrimary
}

// untilOwns returns when owns becomes what is said, or ctx ends.
func (s *Source) untilOwns(ctx context.Context, owns bool) error {
	if s.cfg.PrimaryManager != nil {
		return s.cfg.PrimaryManager.until(ctx, func() bool { return s.owns() == owns })
	}
	if s.cfg.AlwaysPrimary != owns {
		<-ctx.Done()
	}
	return ctx.Err()
}

// Run collects what changes while this datacenter is the primary, until ctx ends; nobody can follow before. It runs once.
func (s *Source) Run(ctx context.Context) error {
	for {
		err := s.untilOwns(ctx, true)
		if err == nil {
			err = s.feedWhile(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil: // the records are another's now
		case !errors.Is(err, resource.ErrWatchReset):
			return fmt.Errorf("collect changes of federated records: %w", err)
		default:
			s.cfg.Logger.Info("federated records were replaced, or change faster than they can be read: followers compare anew")
		}
	}
}

// feedWhile is feed as long as this datacenter is the primary; then it returns nil.
func (s *Source) feedWhile(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		if s.untilOwns(ctx, false) == nil {
			cancel()
		}
	})
	err := s.feed(ctx)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// refuses says why nobody can follow here.
func (s *Source) refuses() error {
	switch {
	case s.owns():
		return nil
	case s.cfg.PrimaryManager == nil:
		return status.Error(codes.FailedPrecondition, "this datacenter is not the primary: nothing to follow here")
	}
	return s.cfg.PrimaryManager.refuses()
}

// Follow implements pb.ReplicationServiceServer. It ends when the follower goes, or with ABORTED when that is too far behind or
// the store was replaced: the follower then begins anew.
func (s *Source) Follow(stream grpc.BidiStreamingServer[pb.FollowRequest, pb.FollowResponse]) error {
	if err := s.refuses(); err != nil {
		return err
	}
	req, err := stream.Recv()
	if err != nil {
		return err
	}
	if req.GetHello() == nil {
		return status.Error(codes.InvalidArgument, "a follower begins with hello: has it another version of wanfed?")
	}
	if _, _, ready := s.log.end(); !ready {
		return status.Error(codes.Unavailable, "this server has not read its records yet")
	}
	s.followers.Add(1)
	defer s.followers.Add(-1)
	f := newFollowing(s, stream, req.GetHello())
	if err := f.run(req.GetHello()); err != nil {
		return followError(err)
	}
	return nil
}

func followError(err error) error {
	if errors.Is(err, errForgotten) {
		return status.Error(codes.Aborted, err.Error())
	}
	return resource.StatusError(err)
}
