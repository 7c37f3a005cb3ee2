// SPDX-License-Identifier: MPL-2.0

package session

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/lease"
	"github.com/wanfed/wanfed/resource"
)

const (
	// checkInterval is the minimum time between two comparisons of the sessions
	// with the catalog. compareShare bounds the part of the time that comparisons
	// take: each change of a session causes one, and it decodes all sessions.
	checkInterval = 50 * time.Millisecond
	compareShare  = 20
	// checkRetry is the time until the comparison is repeated after an error.
	checkRetry = time.Second
	// maxCommit and maxCommitOps bound a commit that ends several sessions, in
	// bytes and operations. The last session may exceed them.
	maxCommit    = 256 << 10
	maxCommitOps = 1024
)

// ManagerConfig configures a Manager. All fields are required.
type ManagerConfig struct {
	// Backend is the store of this server.
	Backend resource.Backend
	// Locked is the type of the resources that sessions lock.
	Locked *pb.Type
	// Confirm returns nil if this server has led at a time after the call.
	Confirm func(ctx context.Context) error
	Logger  *slog.Logger
}

// Manager ends sessions at the leader: when their TTL has passed, and when a
// check is critical or a node was deleted. It also ends lock delays.
type Manager struct {
	cfg              ManagerConfig
	view             *catalog.View
	sessions, delays *lease.Deadlines
}

// NewManager returns a Manager.
func NewManager(cfg ManagerConfig) (*Manager, error) {
	if cfg.Backend == nil || cfg.Locked == nil || cfg.Logger == nil {
		return nil, errors.New("session: all fields of ManagerConfig are required")
	}
	m := &Manager{cfg: cfg, view: catalog.NewView(cfg.Backend)}
	var err error
	m.sessions, err = lease.NewDeadlines(lease.DeadlinesConfig{
		Type: Type, Backend: cfg.Backend, Duration: limitOf, Expire: m.expire, Confirm: cfg.Confirm,
		Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	m.delays, err = lease.NewDeadlines(lease.DeadlinesConfig{
		Type: LockDelayType, Backend: cfg.Backend, Confirm: cfg.Confirm, Logger: cfg.Logger,
		Duration: func(r *pb.Resource) time.Duration {
			d, err := resource.Decode[*pb.SessionLockDelay](r)
			if err != nil {
				return MaxLockDelay
			}
			return max(d.GetDelay().AsDuration(), time.Nanosecond)
		},
		Expire: func(ctx context.Context, rs []*pb.Resource) error {
			var ops []*pb.Op
			for _, r := range rs {
				ops = append(ops, resource.RemoveOp(r.GetId(), r.GetVersion()))
			}
			_, err := cfg.Backend.Commit(ctx, ops...)
			return err
		},
	})
	return m, err
}

// limitOf returns the time from a renewal of a session to its end: one and a
// half times the TTL. As with Consul, clients may expect a session to end
// between one and two times its TTL. 0: the session has no TTL.
func limitOf(r *pb.Resource) time.Duration {
	s, err := resource.Decode[*pb.Session](r)
	if err != nil {
		return 0
	}
	ttl := s.GetTtl().AsDuration()
	return ttl + ttl/2
}

// expire ends sessions, and several of them by one commit.
func (m *Manager) expire(ctx context.Context, rs []*pb.Resource) error {
	if len(rs) == 1 {
		err := endOnce(ctx, m.cfg.Backend, m.cfg.Locked, rs[0])
		for try := 1; errors.Is(err, resource.ErrConflict) && try < maxTries; try++ { // a key has changed
			err = endOnce(ctx, m.cfg.Backend, m.cfg.Locked, rs[0])
		}
		m.logExpired(err, rs)
		return err
	}
	var ops []*pb.Op
	size, from := 0, 0
	for i, r := range rs {
		more, err := readEnd(ctx, m.cfg.Backend, m.cfg.Locked, r)
		if err != nil {
			return err
		}
		for _, op := range more {
			size += proto.Size(op)
		}
		ops = append(ops, more...)
		if i < len(rs)-1 && size < maxCommit && len(ops) < maxCommitOps {
			continue
		}
		_, err = m.cfg.Backend.Commit(ctx, ops...)
		m.logExpired(err, rs[from:i+1])
		if err != nil {
			return err
		}
		ops, size, from = nil, 0, i+1
	}
	return nil
}

func (m *Manager) logExpired(err error, rs []*pb.Resource) {
	if err != nil {
		return
	}
	for _, r := range rs {
		m.cfg.Logger.Info("session expired", "session", r.GetId().GetName())
	}
}

// Renew restarts the TTL of a session. It returns false if the session does not
// exist. It blocks until a majority has confirmed this server as the leader,
// and fails with resource.ErrNotLeader while Run does not run.
func (m *Manager) Renew(ctx context.Context, id string) (found bool, err error) {
	if err := resource.CheckName(id); err != nil {
		return false, err
	}
	lost, err := m.sessions.Renew(ctx, lease.Renewal{Name: id})
	if err != nil || lost == nil {
		return err == nil, err
	}
	r, err := m.cfg.Backend.Read(ctx, resource.Eventual, resource.ID(Type, id))
	if errors.Is(err, resource.ErrNotFound) {
		return false, nil
	}
	return err == nil && limitOf(r) == 0, err // a session without a TTL has no deadline
}

// Run ends sessions until ctx ends. Call Run while this server leads.
func (m *Manager) Run(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.sessions.Run(gctx) })
	g.Go(func() error { return m.delays.Run(gctx) })
	g.Go(func() error { return m.followCatalog(gctx) })
	err := g.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// followCatalog ends the sessions whose checks or nodes fail. It compares all
// sessions after each change, because a session and a check may change at the
// same time.
func (m *Manager) followCatalog(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	wake <- struct{}{}
	g, ctx := errgroup.WithContext(ctx)
	for _, typ := range []*pb.Type{Type, catalog.NodeType, catalog.CheckType} {
		g.Go(func() error {
			resource.Notify(ctx, m.cfg.Backend, resource.Query{Type: typ}, wake)
			return nil
		})
	}
	for ctx.Err() == nil {
		select {
		case <-wake:
		case <-ctx.Done():
			continue
		}
		start := time.Now()
		err := m.compare(ctx)
		pause := max(checkInterval, compareShare*time.Since(start))
		if err != nil && ctx.Err() == nil {
			m.cfg.Logger.Warn("cannot compare sessions with the catalog", "err", err)
			pause = checkRetry
			select {
			case wake <- struct{}{}:
			default:
			}
		}
		backoff.Sleep(ctx, pause, nil)
	}
	return g.Wait()
}

func (m *Manager) compare(ctx context.Context) error {
	all, _, err := m.cfg.Backend.List(ctx, resource.Eventual, resource.Query{Type: Type})
	if err != nil || len(all) == 0 {
		return err
	}
	snap, err := m.view.At(ctx, resource.Eventual)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range all {
		s, err := resource.Decode[*pb.Session](r)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		reason := failure(snap.Node(s.Node), s)
		if reason == "" {
			continue
		}
		err = end(ctx, m.cfg.Backend, m.cfg.Locked, r.GetId().GetName(), nil)
		if err == nil {
			m.cfg.Logger.Info("session ended", "session", r.GetId().GetName(), "reason", reason)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
