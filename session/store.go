// SPDX-License-Identifier: MPL-2.0

package session

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/resource"
)

// maxTries bounds the attempts of one write while concurrent writes cause
// conflicts.
const maxTries = 32

// Session is a session with its id.
type Session struct {
	*pb.Session
	ID                       string
	CreateIndex, ModifyIndex uint64
}

// StoreConfig configures a Store. All fields are required.
type StoreConfig struct {
	// Resources authorizes the caller of each context.
	Resources *resource.Service
	// Backend is the store of Resources. Any server writes to it.
	Backend resource.Backend
	// Locked is the type of the resources that sessions lock.
	Locked *pb.Type
	// Renew calls Manager.Renew at the leader. Without a leader, it fails with
	// resource.ErrNotLeader.
	Renew func(ctx context.Context, id string) (found bool, err error)
}

// Store creates, reads, renews and destroys the sessions of one datacenter. It
// works on every server.
type Store struct {
	cfg  StoreConfig
	view *catalog.View
}

// NewStore returns a Store.
func NewStore(cfg StoreConfig) (*Store, error) {
	if cfg.Resources == nil || cfg.Backend == nil || cfg.Locked == nil || cfg.Renew == nil {
		return nil, errors.New("session: all fields of StoreConfig are required")
	}
	return &Store{cfg, catalog.NewView(cfg.Backend)}, nil
}

// Create creates a session and returns its id. An empty behavior is
// BehaviorRelease, a nil LockDelay is DefaultLockDelay, and nil NodeChecks are
// NodeHealth. Create fails with resource.ErrInvalid for an invalid field, and
// for a check that does not exist or is critical. With requireNode, the node
// must be in the catalog.
func (s *Store) Create(ctx context.Context, data *pb.Session, requireNode bool) (id string, err error) {
	if err := s.cfg.Resources.Allow(ctx, resource.VerbWrite, Type, ""); err != nil {
		return "", err
	}
	data = proto.CloneOf(data)
	if data.Behavior == "" {
		data.Behavior = BehaviorRelease
	}
	if data.LockDelay == nil {
		data.LockDelay = durationpb.New(DefaultLockDelay)
	}
	if data.NodeChecks == nil {
		data.NodeChecks = []string{NodeHealth}
	}
	if err := check(data); err != nil {
		return "", err
	}
	snap, err := s.view.At(ctx, resource.Strong)
	if err != nil {
		return "", err
	}
	node := snap.Node(data.Node)
	if data.NodeRegistered = node != nil; node == nil && requireNode {
		return "", fmt.Errorf("%w node %.63q: Missing node registration", resource.ErrInvalid, data.Node)
	}
	if reason := failure(node, data); reason != "" {
		return "", fmt.Errorf("%w session: %s", resource.ErrInvalid, reason)
	}
	id = newID()
	r, err := resource.New(Type, id, data)
	if err != nil {
		return "", err
	}
	_, err = s.cfg.Resources.WriteAll(ctx, resource.Step{Op: resource.PutOp(r, "")})
	return id, err
}

// newID returns a random UUID, as Consul's sessions have.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// failure returns the reason why the checks of a session do not permit it, or
// "".
func failure(node *catalog.Node, s *pb.Session) string {
	if s.NodeRegistered && node == nil {
		return "its node was deleted"
	}
	for _, id := range slices.Concat(s.NodeChecks, s.ServiceChecks) {
		var c *catalog.Check
		if node != nil {
			c = node.Check(id)
		}
		switch {
		case c != nil && c.Status == catalog.StatusCritical:
			return fmt.Sprintf("Check '%s' is in critical state", id)
		case c == nil && id != NodeHealth:
			return fmt.Sprintf("Missing check '%s' registration", id)
		}
	}
	return ""
}

// Get returns a session and the index of its id. The session is nil if it does
// not exist.
func (s *Store) Get(ctx context.Context, c resource.Consistency, id string) (*Session, uint64, error) {
	if err := resource.CheckName(id); err != nil {
		return nil, 0, err
	}
	all, index, err := s.list(ctx, c, Query(id))
	if err != nil || len(all) == 0 {
		return nil, index, err
	}
	return &all[0], index, nil
}

// List returns all sessions, in order of their ids, and their index.
func (s *Store) List(ctx context.Context, c resource.Consistency) ([]Session, uint64, error) {
	return s.list(ctx, c, resource.Query{Type: Type})
}

func (s *Store) list(ctx context.Context, c resource.Consistency, q resource.Query) ([]Session, uint64, error) {
	verb := resource.VerbList
	if q.Name != "" {
		verb = resource.VerbRead
	}
	if err := s.cfg.Resources.Allow(ctx, verb, Type, q.Name); err != nil {
		return nil, 0, err
	}
	all, index, err := s.cfg.Backend.List(ctx, c, q)
	if err != nil {
		return nil, 0, err
	}
	out := make([]Session, len(all))
	for i, r := range all {
		data, err := resource.Decode[*pb.Session](r)
		if err != nil {
			return nil, 0, err
		}
		out[i] = Session{data, r.GetId().GetName(), r.GetCreateIndex(), r.GetModifyIndex()}
	}
	return out, index, nil
}

// Wait blocks until the index of a session exceeds after, or with an empty id
// the index of all sessions.
func (s *Store) Wait(ctx context.Context, id string, after uint64) error {
	return s.cfg.Backend.Wait(ctx, Query(id), after)
}

// Renew restarts the TTL of a session. It returns false if the session does not
// exist. Renew writes nothing.
func (s *Store) Renew(ctx context.Context, id string) (found bool, err error) {
	if err := s.cfg.Resources.Allow(ctx, resource.VerbWrite, Type, id); err != nil {
		return false, err
	}
	return s.cfg.Renew(ctx, id)
}

// Destroy ends a session. It succeeds if the session does not exist.
func (s *Store) Destroy(ctx context.Context, id string) error {
	if err := s.cfg.Resources.Allow(ctx, resource.VerbWrite, Type, id); err != nil {
		return err
	}
	if err := resource.CheckName(id); err != nil {
		return err
	}
	return end(ctx, s.cfg.Backend, s.cfg.Locked, id, nil)
}

// end ends a session in one commit, which also releases or deletes its keys. If
// due is not nil, end ends the session only while due returns true for it.
func end(
	ctx context.Context, b resource.Backend, locked *pb.Type, id string, due func(*pb.Resource) bool,
) error {
	for try := 1; ; try++ {
		r, err := b.Read(ctx, resource.Strong, resource.ID(Type, id))
		if errors.Is(err, resource.ErrNotFound) {
			return nil
		}
		if err != nil || due != nil && !due(r) {
			return err
		}
		err = endOnce(ctx, b, locked, r)
		if !errors.Is(err, resource.ErrConflict) || try == maxTries || ctx.Err() != nil {
			return err
		}
	}
}

// endOnce makes one attempt to end the session r: it deletes the session and
// releases or deletes its keys, in one commit. locked is the type of the keys.
// The commit fails with resource.ErrConflict if any of them has changed.
func endOnce(ctx context.Context, b resource.Backend, locked *pb.Type, r *pb.Resource) error {
	ops, err := readEnd(ctx, b, locked, r)
	if err != nil {
		return err
	}
	_, err = b.Commit(ctx, ops...)
	return err
}

// readEnd returns the ops of a commit that ends a session and releases or
// deletes its keys.
func readEnd(ctx context.Context, b resource.Backend, locked *pb.Type, r *pb.Resource) ([]*pb.Op, error) {
	id := r.GetId().GetName()
	s, err := resource.Decode[*pb.Session](r)
	if err != nil {
		return nil, err
	}
	locks, _, err := b.List(ctx, resource.Eventual, LocksQuery(id))
	if err != nil {
		return nil, err
	}
	held := map[string]*pb.Resource{}
	for _, r := range locks {
		lock, err := resource.Decode[*pb.SessionLock](r)
		if err != nil {
			return nil, err
		}
		e, err := b.Read(ctx, resource.Eventual, resource.ID(locked, lock.Key))
		if errors.Is(err, resource.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if _, terminating := resource.Terminating(e); !terminating && LockOf(e).Session == id {
			held[lock.Key] = e
		}
	}
	return endOps(r, s, locks, held)
}
