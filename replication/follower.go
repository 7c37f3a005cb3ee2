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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// FollowerConfig configures a Follower. All is required but PrimaryManager.
type FollowerConfig struct {
	Backend resource.Backend
	// Registry has the types: the federated ones, as they are when the Follower is made, are followed.
	Registry *resource.Registry
	// Connect returns a client of any server of the primary.
	Connect func() (pb.ReplicationServiceClient, error)
	// Ways returns a channel that is closed when the way to the primary may have changed.
	PathsChanged func() <-chan struct{}
	Logger       *slog.Logger
	// PrimaryManager says whether the copies here may be of another primary, and is told when they are not. Nil: they never are.
	PrimaryManager *PrimaryManager
}

// Follower keeps copies of the primary's federated records.
type Follower struct {
	cfg   FollowerConfig
	order []kind
	types map[kind][]*pb.Type
	known map[string]bool // by resource.TypeString

	position *pb.FollowPosition // what is stored; Run's alone. Nil: not known

	mu     sync.Mutex
	status FollowerStatus
	kinds  map[kind]*kindStatus
	anew   bool      // status.Index is of before a comparison
	level  time.Time // when the copies last were level with the primary
	// handedTo is to whom the primary had handed over when the stream began, by who sends it, and levelTo the same when level was.
	handedTo, levelTo string
}

// silence is how long a stream may say nothing before it is taken for dead.
const silence = 2*SourceHeartbeat + SourceHeartbeat/2

// NewFollower checks cfg.
func NewFollower(cfg FollowerConfig) (*Follower, error) {
	if cfg.Backend == nil || cfg.Registry == nil || cfg.Connect == nil || cfg.PathsChanged == nil || cfg.Logger == nil {
		return nil, errors.New("replication: every field of FollowerConfig is required")
	}
	f := &Follower{cfg: cfg, known: map[string]bool{}, kinds: map[kind]*kindStatus{}}
	f.order, f.types = kindsOf(cfg.Registry)
	for k, types := range f.types {
		f.kinds[k] = &kindStatus{}
		for _, t := range types {
			f.known[resource.TypeString(t)] = true
		}
	}
	return f, nil
}

// Run follows until ctx ends. Call it while this server leads, once at a time.
func (f *Follower) Run(ctx context.Context) error {
	f.position = nil // others led meanwhile
	var retry backoff
	failing := false
	for {
		ways := f.cfg.PathsChanged()
		began := time.Now()
		err := f.follow(ctx)
		f.note(err)
		if ctx.Err() != nil {
			return nil
		}
		if f.levelSince(began) {
			retry.reset()
			failing = false
		}
		next := retry.next(time.Since(began))
		if status.Code(err) == codes.Canceled { // its connection was given up, for a better way: no failure
			f.cfg.Logger.Debug("the stream from the primary is opened anew", "err", err)
		} else {
			f.cfg.Logger.Log(ctx, level(failing), "following the primary", "err", err, "retry", next)
			failing = true
		}
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
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	watchdog := time.AfterFunc(silence, func() { cancel(fmt.Errorf("no sign of life for %v", silence)) })
	defer watchdog.Stop()

	stream, err := client.Follow(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	t := &talk{f: f, stream: stream, alive: func() { watchdog.Reset(silence) }}
	if f.cfg.PrimaryManager != nil && f.cfg.PrimaryManager.fresh() {
		t.fresh, f.position = true, nil
	}
	if err := t.hello(ctx); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	in := newInbox()
	wg.Go(func() {
		for {
			m, err := stream.Recv()
			if err == nil {
				f.heard()
				watchdog.Stop() // that this server is slow is not the primary's silence
				err = in.put(ctx, m)
				watchdog.Reset(silence)
			}
			if err != nil {
				in.end(err)
				return
			}
		}
	})
	for {
		ms, err := in.take(ctx)
		if err == nil {
			err = t.take(ctx, ms)
		}
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return err
		}
	}
}
