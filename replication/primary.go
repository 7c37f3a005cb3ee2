// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// PrimaryType is the type of the single resource that stores which datacenter
// owns the federated resources of this datacenter. See PrimaryManager.
var PrimaryType = &pb.Type{Group: "internal", GroupVersion: "v1", Kind: "Primary"}

// primaryName is the name of that resource.
const primaryName = "primary"

var primaryQuery = resource.Query{Type: PrimaryType, Name: primaryName}

// Register adds PrimaryType to a registry. Every peer with read access may read
// the resource. No peer may write it.
func Register(g *resource.Registry) error {
	return g.Register(resource.Registration{
		Type: PrimaryType, Message: &pb.Primary{}, Scope: resource.ScopeCluster,
		Authorize: func(_ tlsutil.Peer, verb resource.Verb, _ *pb.Resource) error {
			if verb == resource.VerbRead || verb == resource.VerbList {
				return nil
			}
			return errors.New("only the leader writes it, according to primary_datacenter of the servers")
		},
	})
}

// Servers reports the configuration of the servers of this datacenter.
type Servers interface {
	// ConfiguredPrimaries returns the configured primary of each alive server,
	// including this one, by node. unknown lists the servers of the datacenter
	// whose configuration is not known yet.
	ConfiguredPrimaries() (byNode map[string]string, unknown []string)
	// Changed returns a channel that is closed when the result may have changed.
	Changed() <-chan struct{}
}

// Remote reaches the servers of other datacenters.
type Remote interface {
	// ReplicationClient returns a client of any server of dc.
	ReplicationClient(dc string) (pb.ReplicationServiceClient, error)
	// PathsChanged returns a channel that is closed when the paths to other
	// datacenters may have changed.
	PathsChanged() <-chan struct{}
}

// PrimaryManagerConfig configures a PrimaryManager. All fields are required.
type PrimaryManagerConfig struct {
	// DC is this datacenter.
	DC string
	// ConfiguredPrimary is the primary in the configuration of this server.
	ConfiguredPrimary string
	// Backend is the store of this server.
	Backend  resource.Backend
	Registry *resource.Registry
	Servers  Servers
	Remote   Remote
	Logger   *slog.Logger
}

// PrimaryManager determines which datacenter is the primary for this one. The
// configuration of the servers states the desired primary. A record in the
// datacenter's own store states the actual one, which the leader changes
// (RunLeader). Therefore all servers change together, after the last of them was
// reconfigured, and the record always fits the stored resources.
type PrimaryManager struct {
	cfg      PrimaryManagerConfig
	follower *Follower
	started  time.Time

	mu        sync.Mutex
	target    string    // datacenter that the follower follows
	pending   string    // see PendingReason
	demotedAt time.Time // see DemotedAt
	// successor is HandedTo in the last read of the record. successorSince is
	// the time of the first read with that value.
	successor      string
	successorSince time.Time
}

// NewPrimaryManager checks cfg.
func NewPrimaryManager(cfg PrimaryManagerConfig) (*PrimaryManager, error) {
	if cfg.DC == "" || cfg.ConfiguredPrimary == "" || cfg.Backend == nil || cfg.Registry == nil ||
		cfg.Servers == nil || cfg.Remote == nil || cfg.Logger == nil {
		return nil, errors.New("replication: every field of PrimaryManagerConfig is required")
	}
	p := &PrimaryManager{cfg: cfg, started: time.Now()}
	var err error
	p.follower, err = NewFollower(FollowerConfig{
		Backend: cfg.Backend, Registry: cfg.Registry, Logger: cfg.Logger, PrimaryManager: p,
		PathsChanged: cfg.Remote.PathsChanged,
		Connect:      func() (pb.ReplicationServiceClient, error) { return cfg.Remote.ReplicationClient(p.following()) },
	})
	return p, err
}

// Follower returns the component that replicates from the primary. RunLeader
// runs it while another datacenter is the primary.
func (p *PrimaryManager) Follower() *Follower { return p.follower }

// PrimaryDC returns the datacenter that owns the federated resources here: the
// primary as seen by this datacenter. It is the configured primary until a
// leader has written the record for the first time.
func (p *PrimaryManager) PrimaryDC() string {
	if dc := p.record().GetDatacenter(); dc != "" {
		return dc
	}
	return p.cfg.ConfiguredPrimary
}

// IsPrimary reports whether this datacenter owns its federated resources. Other
// datacenters can follow it only if IsPrimary returns true.
func (p *PrimaryManager) IsPrimary() bool { return p.PrimaryDC() == p.cfg.DC }

// WaitPrimary blocks until IsPrimary returns primary. It fails when ctx ends or
// the store is closed.
func (p *PrimaryManager) WaitPrimary(ctx context.Context, primary bool) error {
	return p.waitRecord(ctx, func() bool { return p.IsPrimary() == primary })
}

// CheckFollow returns nil if other datacenters can follow this one, otherwise a
// gRPC status with the reason.
func (p *PrimaryManager) CheckFollow() error {
	switch owner := p.PrimaryDC(); {
	case owner == p.cfg.DC:
		return nil
	case p.cfg.ConfiguredPrimary == p.cfg.DC:
		return status.Errorf(codes.FailedPrecondition, "%s is not the primary yet: it takes over from %s; see its status",
			p.cfg.DC, owner)
	default:
		return status.Errorf(codes.FailedPrecondition, "%s cannot be followed: it is not the primary; its primary is %s",
			p.cfg.DC, owner)
	}
}

// firstRecordTimeout limits the time for which a write in the primary waits for
// the leader's first write of the record.
const firstRecordTimeout = 5 * time.Second

// Writable returns nil if federated resources may be written here now, otherwise
// the reason. The caller is the leader.
func (p *PrimaryManager) Writable() error {
	rec := p.record()
	if rec.GetDatacenter() == "" && p.cfg.ConfiguredPrimary == p.cfg.DC {
		ctx, cancel := context.WithTimeout(context.Background(), firstRecordTimeout)
		defer cancel()
		_ = p.waitRecord(ctx, func() bool { rec = p.record(); return rec.GetDatacenter() != "" })
	}
	switch {
	case rec.GetDatacenter() == p.cfg.DC && rec.GetHandedTo() == "":
		return nil
	case rec.GetDatacenter() == p.cfg.DC:
		return fmt.Errorf("%s is demoted in favor of %s, according to primary_datacenter of its servers, and %s is not "+
			"the primary yet: write again in a moment, or see: wanfed status", p.cfg.DC, rec.GetHandedTo(), rec.GetHandedTo())
	case p.cfg.ConfiguredPrimary == p.cfg.DC:
		return fmt.Errorf("%s is not the primary yet, though it is configured to be: see wanfed status", p.cfg.DC)
	}
	return fmt.Errorf("%s is not the primary: %s is", p.cfg.DC, p.PrimaryDC())
}

// demotionGrace is the time from a demotion to the announcement of the
// successor. Writes in progress end within that time, including writes that are
// not fenced because a server runs an older version.
const demotionGrace = 2 * time.Second

// Successor returns the datacenter in favor of which this one is demoted. It
// returns "" until all writes have ended.
func (p *PrimaryManager) Successor() string {
	to := p.record().GetHandedTo()
	p.mu.Lock()
	defer p.mu.Unlock()
	if to != p.successor {
		p.successor, p.successorSince = to, time.Now()
	}
	if time.Since(p.successorSince) < demotionGrace {
		return ""
	}
	return to
}

// DemotedAt returns the last time at which this server, as leader, demoted its
// datacenter to a secondary. Other servers may receive the demotion later. Zero
// means never.
func (p *PrimaryManager) DemotedAt() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.demotedAt
}

// PendingReason returns the reason for the delay of a change of the primary, or
// "". It returns "" on servers that are not the leader.
func (p *PrimaryManager) PendingReason() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pending
}

func (p *PrimaryManager) setPending(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending = fmt.Sprintf(format, args...)
}

func (p *PrimaryManager) following() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target
}

// record reads the record from memory. It returns nil if the record does not
// exist or cannot be decoded. In both cases the leader writes a new record.
func (p *PrimaryManager) record() *pb.Primary {
	r, err := p.cfg.Backend.Read(context.Background(), resource.Eventual, resource.ID(PrimaryType, primaryName))
	if err != nil {
		return nil
	}
	rec, err := resource.Decode[*pb.Primary](r)
	if err != nil {
		return nil
	}
	return rec
}

func (p *PrimaryManager) writeRecord(ctx context.Context, rec *pb.Primary) error {
	r, err := resource.New(PrimaryType, primaryName, rec)
	if err != nil {
		return err
	}
	old, err := p.cfg.Backend.Read(ctx, resource.Eventual, resource.ID(PrimaryType, primaryName))
	switch {
	case err == nil:
		if r, err = resource.WithData(old, rec); err != nil {
			return err
		}
	case !errors.Is(err, resource.ErrNotFound):
		return err
	}
	if _, err := p.cfg.Backend.Commit(ctx, resource.PutOp(r, old.GetVersion())); err != nil {
		return fmt.Errorf("store that the primary is %s: %w", rec.GetDatacenter(), err)
	}
	return nil
}

// waitRecord blocks until done returns true. It calls done after every change
// of the record.
func (p *PrimaryManager) waitRecord(ctx context.Context, done func() bool) error {
	for {
		_, index, err := p.cfg.Backend.List(ctx, resource.Eventual, primaryQuery)
		if err != nil || done() {
			return err
		}
		if err := p.cfg.Backend.Wait(ctx, primaryQuery, index); err != nil {
			return err
		}
	}
}

// replicasUntrusted reports whether the replicas here may come from a
// datacenter other than the followed one.
func (p *PrimaryManager) replicasUntrusted() bool {
	rec := p.record()
	return rec.GetDatacenter() != p.following() || !rec.GetComplete()
}

// replicasBegin records that the resources here are being replaced by replicas
// of the followed datacenter.
func (p *PrimaryManager) replicasBegin(ctx context.Context) error {
	target, former := p.following(), p.record().GetDatacenter()
	if former == target {
		return nil
	}
	if former == p.cfg.DC {
		p.mu.Lock()
		p.demotedAt = time.Now()
		p.mu.Unlock()
	}
	if former != "" {
		p.cfg.Logger.Info("another datacenter is the primary now: its records replace those here",
			"primary", target, "former", former)
	}
	return p.writeRecord(ctx, &pb.Primary{Datacenter: target})
}

// replicasComplete records that the replicas of the followed datacenter are
// complete.
func (p *PrimaryManager) replicasComplete(ctx context.Context) error {
	return p.writeRecord(ctx, &pb.Primary{Datacenter: p.following(), Complete: true})
}

// Fenced returns a Backend for writers of federated resources, on top of b, a
// Backend of the same store. Its commits assert, in the same Raft entry, that
// the record of the primary is the one that Writable has checked. A commit that
// is applied after a demotion therefore writes nothing and fails with
// resource.ErrFederated. Otherwise the next primary would miss an acknowledged
// write.
func (p *PrimaryManager) Fenced(b resource.Backend) resource.Backend {
	return fencedBackend{Backend: b, primary: p}
}

type fencedBackend struct {
	resource.Backend
	primary *PrimaryManager
}

// Commit implements resource.Backend.
func (b fencedBackend) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	if !b.primary.writesFederated(ops) {
		return b.Backend.Commit(ctx, ops...)
	}
	for {
		rec, _, err := b.List(ctx, resource.Eventual, primaryQuery)
		if err != nil {
			return nil, err
		}
		if err := b.primary.Writable(); err != nil {
			return nil, fmt.Errorf("%w: %w", resource.ErrFederated, err)
		}
		expect := resource.ExpectOp(primaryQuery, rec)
		stored, err := b.Backend.Commit(ctx, append(ops[:len(ops):len(ops)], expect)...)
		switch {
		case err == nil:
			return stored[:len(ops)], nil
		case errors.Is(err, resource.ErrUnsupported): // a server of an older version cannot check
			return b.Backend.Commit(ctx, ops...)
		case !errors.Is(err, resource.ErrConflict):
			return nil, err
		}
		current, _, listErr := b.List(ctx, resource.Strong, primaryQuery)
		if listErr != nil || proto.Equal(expect, resource.ExpectOp(primaryQuery, current)) {
			return nil, err // the conflict is not about the record
		}
	}
}

// writesFederated reports whether ops write federated resources other than the
// status of replicas.
func (p *PrimaryManager) writesFederated(ops []*pb.Op) bool {
	for _, op := range ops {
		var id *pb.ID
		switch o := op.GetOp().(type) {
		case *pb.Op_Put:
			if o.Put.GetResource().GetPrimaryModifyIndex() != 0 {
				continue // the status of a replica
			}
			id = o.Put.GetResource().GetId()
		case *pb.Op_Overwrite:
			id = o.Overwrite.GetResource().GetId()
		case *pb.Op_Remove:
			id = o.Remove.GetId()
		}
		if _, federated := p.follower.types[kindOf(id.GetType())]; federated {
			return true
		}
	}
	return false
}
