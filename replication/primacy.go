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

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// PrimaryType is the type of the one record by which a datacenter remembers whose federated records it has: see PrimaryManager.
var PrimaryType = &pb.Type{Group: "internal", GroupVersion: "v1", Kind: "Primary"}

// primaryName is the name of that record.
const primaryName = "primary"

// Register adds PrimaryType to a registry: everybody who may read may see it, and nobody write.
func Register(g *resource.Registry) error {
	return g.Register(resource.Registration{
		Type: PrimaryType, Message: &pb.Primary{}, Scope: resource.ScopeCluster,
		Authorize: func(_ tlsutil.Peer, verb resource.Verb, _ *pb.Resource) error {
			if verb == resource.VerbRead || verb == resource.VerbList {
				return nil
			}
			return errors.New("only the leader writes it, by what primary_datacenter of the servers says")
		},
	})
}

// PrimaryManagerConfig configures a PrimaryManager. All is required.
type PrimaryManagerConfig struct {
	// DC is this datacenter, Configured the primary by this server's configuration.
	DC, ConfiguredPrimary string
	// Backend is this server's store.
	Backend  resource.Backend
	Registry *resource.Registry
	// Named tells what living servers of this datacenter, this one too, are configured with, by node, and which servers of the
	// datacenter nothing is known of. SettingsChanged returns a channel that is closed when that may have changed.
	ServerSettings  func() (named map[string]string, unknown []string)
	SettingsChanged func() <-chan struct{}
	// Connect returns a client of any server of a datacenter.
	Connect func(dc string) (pb.ReplicationServiceClient, error)
	// Ways returns a channel that is closed when the way to other datacenters may have changed.
	PathsChanged func() <-chan struct{}
	Logger       *slog.Logger
}

// PrimaryManager says which datacenter is the primary for this one. What servers are configured with is a wish; what holds is a
// record of the datacenter's own store, which its leader changes (Lead): so all its servers change at once, when the last of them
// was told, and what they do fits the records that they have.
type PrimaryManager struct {
	cfg      PrimaryManagerConfig
	follower *Follower
	started  time.Time

	mu     sync.Mutex
	target string    // whom the follower follows
	waits  string    // what Lead waits for, for people
	handed time.Time // since when this process has seen what HandedTo says
	to     string    // what it says
	gaveUp time.Time // when this server, leading, last saw its datacenter follow another one instead of being the primary
}

// NewPrimaryManager checks cfg.
func NewPrimaryManager(cfg PrimaryManagerConfig) (*PrimaryManager, error) {
	if cfg.DC == "" || cfg.ConfiguredPrimary == "" || cfg.Backend == nil || cfg.Registry == nil || cfg.ServerSettings == nil || cfg.SettingsChanged == nil ||
		cfg.Connect == nil || cfg.PathsChanged == nil || cfg.Logger == nil {
		return nil, errors.New("replication: every field of PrimaryManagerConfig is required")
	}
	p := &PrimaryManager{cfg: cfg, started: time.Now()}
	var err error
	p.follower, err = NewFollower(FollowerConfig{
		Backend: cfg.Backend, Registry: cfg.Registry, PathsChanged: cfg.PathsChanged, Logger: cfg.Logger, PrimaryManager: p,
		Connect: func() (pb.ReplicationServiceClient, error) { return cfg.Connect(p.following()) },
	})
	return p, err
}

// Follower is what copies the primary's records while Lead runs and another datacenter is the primary.
func (p *PrimaryManager) Follower() *Follower { return p.follower }

// Of is the datacenter whose federated records are here: the primary, as far as this datacenter is concerned. Before the leader
// has found out for the first time it is the configured one.
func (p *PrimaryManager) PrimaryDC() string {
	if dc := p.mark().GetDatacenter(); dc != "" {
		return dc
	}
	return p.cfg.ConfiguredPrimary
}

// IsPrimary says whether the federated records here are this datacenter's own: then, and only then, others may follow them. Before the
// leader has found out, as when that is of an older version, the configuration says so.
func (p *PrimaryManager) IsPrimary() bool { return p.PrimaryDC() == p.cfg.DC }

// refuses says, as an error of a call, why nobody can follow here.
func (p *PrimaryManager) refuses() error {
	switch of := p.PrimaryDC(); {
	case of == p.cfg.DC:
		return nil
	case p.cfg.ConfiguredPrimary == p.cfg.DC:
		return status.Errorf(codes.FailedPrecondition, "%s is not the primary yet: it takes over from %s; see its status", p.cfg.DC, of)
	}
	return status.Errorf(codes.FailedPrecondition, "this datacenter is not the primary: nothing to follow here; %s takes %s for it", p.cfg.DC, p.PrimaryDC())
}

// firstWait is how long a write in the primary waits for the leader to say for the first time that it is one.
const firstWait = 5 * time.Second

// Writable returns nil where federated records may be written here and now, and else why not. It is for the leader.
func (p *PrimaryManager) Writable() error {
	m := p.mark()
	if m.GetDatacenter() == "" && p.cfg.ConfiguredPrimary == p.cfg.DC {
		ctx, cancel := context.WithTimeout(context.Background(), firstWait)
		defer cancel()
		_ = p.until(ctx, func() bool { m = p.mark(); return m.GetDatacenter() != "" })
	}
	switch {
	case m.GetDatacenter() == p.cfg.DC && m.GetHandedTo() == "":
		return nil
	case m.GetDatacenter() == p.cfg.DC:
		return fmt.Errorf("%s has handed its records over to %s, as primary_datacenter of its servers says, and %s has not taken them yet: "+
			"write again in a moment, or see: wanfed status", p.cfg.DC, m.GetHandedTo(), m.GetHandedTo())
	case p.cfg.ConfiguredPrimary == p.cfg.DC:
		return fmt.Errorf("%s is not the primary yet, though it is configured to be: see wanfed status", p.cfg.DC)
	}
	return fmt.Errorf("%s is not the primary: %s is", p.cfg.DC, p.PrimaryDC())
}

// handGrace is how long a primary that has handed over waits before it says so: writes that had begun before end meanwhile, those that
// no Guard holds up because a server is of an older version.
const handGrace = 2 * time.Second

// handedTo is to whom this datacenter has handed over, once nothing is written any more.
func (p *PrimaryManager) handedTo() string {
	to := p.mark().GetHandedTo()
	p.mu.Lock()
	defer p.mu.Unlock()
	if to != p.to {
		p.to, p.handed = to, time.Now()
	}
	if time.Since(p.handed) < handGrace {
		return ""
	}
	return to
}

// DemotedAt is when this server, leading, last saw its datacenter become a secondary. Others may not know yet.
func (p *PrimaryManager) DemotedAt() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gaveUp
}

// Waits says what the leader waits for before the primary is another; empty: nothing. Other servers do not know.
func (p *PrimaryManager) PendingReason() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waits
}

func (p *PrimaryManager) waitsFor(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waits = fmt.Sprintf(format, args...)
}

func (p *PrimaryManager) following() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target
}

func (p *PrimaryManager) query() resource.Query {
	return resource.Query{Type: PrimaryType, Name: primaryName}
}

// mark reads the record; it is empty where there is none.
func (p *PrimaryManager) mark() *pb.Primary {
	r, err := p.cfg.Backend.Read(context.Background(), resource.Eventual, resource.ID(PrimaryType, primaryName)) // of the own memory
	if err != nil {
		return nil
	}
	m, err := resource.Decode[*pb.Primary](r)
	if err != nil {
		return nil // as if there were none: the leader makes another
	}
	return m
}

// set writes the record.
func (p *PrimaryManager) set(ctx context.Context, m *pb.Primary) error {
	r, err := resource.New(PrimaryType, primaryName, m)
	if err != nil {
		return err
	}
	old, err := p.cfg.Backend.Read(ctx, resource.Eventual, resource.ID(PrimaryType, primaryName))
	switch {
	case err == nil:
		if r, err = resource.WithData(old, m); err != nil {
			return err
		}
	case !errors.Is(err, resource.ErrNotFound):
		return err
	}
	if _, err := p.cfg.Backend.Commit(ctx, resource.PutOp(r, old.GetVersion())); err != nil {
		return fmt.Errorf("note that the primary is %s: %w", m.GetDatacenter(), err)
	}
	return nil
}

// until returns when done does, which depends on the record; or with why it cannot know.
func (p *PrimaryManager) until(ctx context.Context, done func() bool) error {
	for {
		_, index, err := p.cfg.Backend.List(ctx, resource.Eventual, p.query())
		if err != nil || done() {
			return err
		}
		if err := p.cfg.Backend.Wait(ctx, p.query(), index); err != nil {
			return err
		}
	}
}

// fresh says whether the copies here may be another one's than those of the primary that is followed.
func (p *PrimaryManager) fresh() bool {
	m := p.mark()
	return m.GetDatacenter() != p.following() || !m.GetComplete()
}

// accepted notes that from now on the copies here become those of the primary that is followed.
func (p *PrimaryManager) accepted(ctx context.Context) error {
	to, was := p.following(), p.mark()
	if was.GetDatacenter() == to {
		return nil
	}
	if was.GetDatacenter() == p.cfg.DC {
		p.mu.Lock()
		p.gaveUp = time.Now()
		p.mu.Unlock()
	}
	if was.GetDatacenter() != "" {
		p.cfg.Logger.Info("another datacenter is the primary now: what it has takes the place of what is here", "primary", to, "was", was.GetDatacenter())
	}
	return p.set(ctx, &pb.Primary{Datacenter: to})
}

// level notes that they are.
func (p *PrimaryManager) level(ctx context.Context) error {
	return p.set(ctx, &pb.Primary{Datacenter: p.following(), Complete: true})
}
