// SPDX-License-Identifier: MPL-2.0

package session

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// The types of this package are not federated. Only this package writes their
// resources.
var (
	Type = &pb.Type{Group: "session", GroupVersion: "v1", Kind: "Session"}
	// LockType is the type of locked keys. The name of a resource begins with
	// the id of the session.
	LockType = &pb.Type{Group: "session", GroupVersion: "v1", Kind: "Lock"}
	// LockDelayType is the type of keys that cannot be locked for a time. The
	// name of a resource is the key.
	LockDelayType = &pb.Type{Group: "session", GroupVersion: "v1", Kind: "LockDelay"}
)

// Values of Session.behavior.
const (
	BehaviorRelease = "release" // the keys stay and are unlocked
	BehaviorDelete  = "delete"  // the keys are deleted
)

// The bounds are those of Consul.
const (
	MinTTL           = 10 * time.Second
	MaxTTL           = 24 * time.Hour
	MaxLockDelay     = time.Minute
	DefaultLockDelay = 15 * time.Second
	// minLockDelay is the shortest delay that is applied. Clients of Consul send
	// 1 ms for none, because 0 is absent in their JSON. A client that finds such
	// a delay waits 5 s until its next attempt.
	minLockDelay = 10 * time.Millisecond
	// MaxLocks bounds the keys that one session has locked, because they are
	// released in one commit.
	MaxLocks = 4096
	// NodeHealth is the id of the check that Consul gives each of its nodes. A
	// session ignores it if the node has no check of this id.
	NodeHealth = "serfHealth"
	maxName    = 512
	maxChecks  = 64
)

// Keys in the metadata of a locked resource. A write that does not read the
// resource keeps its metadata, and therefore its lock.
const (
	metaSession   = "session"
	metaLockIndex = "lock_index"
)

// Register adds the types of sessions to a registry.
func Register(r *resource.Registry) error {
	for _, reg := range []resource.Registration{
		{Type: Type, Message: &pb.Session{}},
		{Type: LockType, Message: &pb.SessionLock{}, CheckName: resource.CheckUTF8Name},
		{Type: LockDelayType, Message: &pb.SessionLockDelay{}, CheckName: resource.CheckUTF8Name},
	} {
		reg.Authorize = authorize
		reg.Mutate = func(*pb.Resource) error { return errOwnWrites }
		if err := r.Register(reg); err != nil {
			return err
		}
	}
	return nil
}

var errOwnWrites = errors.New("sessions and locks are written by /v1/session, /v1/kv and /v1/txn only")

// authorize refuses writes that this package does not make.
func authorize(_ tlsutil.Peer, verb resource.Verb, _ *pb.Resource) error {
	if verb == resource.VerbDelete || verb == resource.VerbWriteStatus {
		return errOwnWrites
	}
	return nil
}

// check returns an ErrInvalid that names the invalid field of s.
func check(s *pb.Session) error {
	ttl, delay := s.GetTtl().AsDuration(), s.GetLockDelay().AsDuration()
	switch {
	case s.Ttl != nil && (ttl < MinTTL || ttl > MaxTTL):
		return fmt.Errorf("%w Session TTL '%v', must be between [%v=%v]", resource.ErrInvalid, ttl, MinTTL, MaxTTL)
	case s.Behavior != BehaviorRelease && s.Behavior != BehaviorDelete:
		return fmt.Errorf("%w Behavior setting '%.63s': must be release or delete", resource.ErrInvalid, s.Behavior)
	case delay < 0 || delay > MaxLockDelay:
		return fmt.Errorf("%w LockDelay %v: must be 0 to %v", resource.ErrInvalid, delay, MaxLockDelay)
	case len(s.Name) > maxName || len(s.Node) > maxName:
		return fmt.Errorf("%w Name or Node: must have at most %d bytes", resource.ErrInvalid, maxName)
	case len(s.NodeChecks)+len(s.ServiceChecks) > maxChecks:
		return fmt.Errorf("%w checks: a session has at most %d", resource.ErrInvalid, maxChecks)
	}
	return nil
}

// Lock is the lock of a resource.
type Lock struct {
	// Session is the id of the session that holds the lock. Empty: none.
	Session string
	// Index is the number of times that the resource was locked.
	Index uint64
}

// LockOf returns the lock of a stored resource.
func LockOf(r *pb.Resource) Lock {
	m := r.GetMetadata()
	if m[metaSession] == "" && m[metaLockIndex] == "" {
		return Lock{}
	}
	index, _ := strconv.ParseUint(m[metaLockIndex], 10, 64) // an operator may have changed it
	return Lock{m[metaSession], index}
}

// WithLock returns metadata with another lock.
func WithLock(metadata map[string]string, l Lock) map[string]string {
	if l == (Lock{}) && metadata[metaSession] == "" && metadata[metaLockIndex] == "" {
		return metadata
	}
	m := maps.Clone(metadata)
	if m == nil {
		m = map[string]string{}
	}
	delete(m, metaSession)
	if l.Session != "" {
		m[metaSession] = l.Session
	}
	m[metaLockIndex] = strconv.FormatUint(l.Index, 10)
	return m
}

// Query selects the session with an id. The result of a List is empty if the
// session does not exist.
func Query(id string) resource.Query { return resource.Query{Type: Type, Name: id} }

// DelayQuery selects the lock delay of a key.
func DelayQuery(key string) resource.Query { return resource.Query{Type: LockDelayType, Name: key} }

// LocksQuery selects the locks of a session.
func LocksQuery(id string) resource.Query { return resource.Query{Type: LockType, Prefix: id + "/"} }

// lockID returns the id of the lock of a key. A name is shorter than some keys.
func lockID(session, key string) *pb.ID {
	name := session + "/key/" + key
	if len(name) > resource.MaxUTF8NameLen {
		name = fmt.Sprintf("%s/sha256/%x", session, sha256.Sum256([]byte(key)))
	}
	return resource.ID(LockType, name)
}

// LockOp records that a session has locked a key. The commit must also expect
// the session.
func LockOp(session, key string) (*pb.Op, error) {
	return overwrite(lockID(session, key), &pb.SessionLock{Session: session, Key: key})
}

// UnlockOp removes the record of LockOp.
func UnlockOp(session, key string) *pb.Op {
	return resource.RemoveOp(lockID(session, key), resource.AnyVersion)
}

func overwrite(id *pb.ID, data proto.Message) (*pb.Op, error) {
	packed, err := anypb.New(data)
	if err != nil {
		return nil, err
	}
	id.Uid = resource.NewUID()
	return resource.OverwriteOp(&pb.Resource{Id: id, Generation: resource.NewGeneration(), Data: packed}, false), nil
}

// endOps returns the ops of the commit that ends a session. locks are its locks,
// and held are the locked resources.
func endOps(r *pb.Resource, s *pb.Session, locks []*pb.Resource, held map[string]*pb.Resource) ([]*pb.Op, error) {
	id := r.GetId().GetName()
	ops := []*pb.Op{resource.ExpectOp(LocksQuery(id), locks), resource.RemoveOp(r.GetId(), r.GetVersion())}
	for _, lock := range locks {
		ops = append(ops, resource.RemoveOp(lock.GetId(), resource.AnyVersion))
	}
	for _, key := range slices.Sorted(maps.Keys(held)) {
		e := held[key]
		if s.Behavior == BehaviorDelete {
			ops = append(ops, resource.RemoveOp(e.GetId(), e.GetVersion()))
		} else {
			free := proto.CloneOf(e)
			free.Metadata = WithLock(e.Metadata, Lock{Index: LockOf(e).Index})
			ops = append(ops, resource.PutOp(free, e.GetVersion()))
		}
		if s.GetLockDelay().AsDuration() >= minLockDelay {
			op, err := overwrite(resource.ID(LockDelayType, key), &pb.SessionLockDelay{
				Delay: durationpb.New(s.LockDelay.AsDuration()),
			})
			if err != nil {
				return nil, err
			}
			ops = append(ops, op)
		}
	}
	return ops, nil
}
