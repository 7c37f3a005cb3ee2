// SPDX-License-Identifier: MPL-2.0

package federation

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
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/resource"
)

const (
	// claimWait limits the time that a started server waits for the response to
	// its first claim before it joins the WAN pool.
	claimWait = 2 * time.Second
	// claimRequestTimeout limits one request to the primary.
	claimRequestTimeout = 5 * time.Second
	// groupIDInterval is the interval at which Run reads the group id until the
	// id exists.
	groupIDInterval = 50 * time.Millisecond
	// releaseTimeout limits the request that releases the claim of a server
	// that stops.
	releaseTimeout = 300 * time.Millisecond
	// duplicateTimeout is the time for which a refused server with the name of
	// this server is reported.
	duplicateTimeout = 10 * time.Minute
	// pendingInterval is the interval of claims that are not decided yet.
	pendingInterval = 500 * time.Millisecond
)

// ClaimantConfig configures a Claimant. All fields except PreviousInstance are
// required.
type ClaimantConfig struct {
	DC, Node string        // of this server
	Primary  func() string // returns the primary datacenter
	Backend  resource.Backend
	Instance string // random id of this process
	// PreviousInstance is the Instance of the last process that used the data
	// directory, or "".
	PreviousInstance string
	Address          string // host:port of this server
	// Client returns a client of any server of a datacenter.
	Client func(dc string) pb.FederationServiceClient
	// Datacenters returns the names of the other datacenters. In the primary, the
	// first of them, by name, receive claims.
	Datacenters func() []string
	// PathsChanged returns a channel that is closed when the paths to the
	// primary may have changed.
	PathsChanged func() <-chan struct{}
	Logger       *slog.Logger
}

// Claimant repeatedly claims the name of this server and of its datacenter at
// the primary, which accepts or refuses the claim: see Claims. A server whose
// claim is refused must not take part in the WAN pool. In the primary every server
// is accepted. A Claimant there sends claims to a few secondaries, which find out
// whether a clone of this server runs: see Clones.
type Claimant struct {
	cfg     ClaimantConfig
	changed broadcast.Broadcast     // notified after a change of ClaimState.Enabled or Clones
	peers   map[string]*announcedTo // by datacenter; only the goroutine of Run uses it

	mu        sync.Mutex
	state     ClaimState
	duplicate Duplicate
}

// Duplicate describes another server of this datacenter with the name of this
// server.
type Duplicate struct {
	Address string // host:port
	// Refused is set if this server is the duplicate, not the other one. This
	// server then takes part in no pool until it is restarted.
	Refused bool
	Seen    time.Time
}

// ClaimState is the result of the last claim.
type ClaimState struct {
	// Enabled reports whether this server may take part in the WAN pool.
	Enabled bool
	// GroupID is the id of the Raft group of this datacenter, or "".
	GroupID string
	// Reason is the reason of a refusal, with its remedy, or "".
	Reason string
	// Rivals are the other servers that claim the name of this server or of its
	// datacenter. In the primary, they are clones of this server.
	Rivals []*pb.Claimant
	// Clones describes this server and its clones, with the remedy. Empty: none
	// are known, or this is not the primary.
	Clones string
	// Processes are this server and its clones, if any are known.
	Processes []*pb.Claimant

	// Duplicate is another server of this datacenter with the name of this
	// server, or nil.
	Duplicate *Duplicate

	claimed bool // a claim was answered, and must be released
	clone   bool // the primary considers this server a clone
	pending bool // the claim is not decided yet
}

// NewClaimant checks cfg.
func NewClaimant(cfg ClaimantConfig) (*Claimant, error) {
	if cfg.DC == "" || cfg.Node == "" || cfg.Primary == nil || cfg.Backend == nil || cfg.Instance == "" ||
		cfg.Address == "" ||
		cfg.Client == nil || cfg.Datacenters == nil || cfg.PathsChanged == nil || cfg.Logger == nil {
		return nil, errors.New("federation: every field of ClaimantConfig except PreviousInstance is required")
	}
	return &Claimant{cfg: cfg, peers: map[string]*announcedTo{}}, nil
}

// State returns the current state.
func (c *Claimant) State() ClaimState {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, d := c.state, c.duplicate
	switch {
	case d.Refused:
		s.Enabled, s.Duplicate = false, &d
		s.Reason = fmt.Sprintf(
			"another server is called %s too and is in contact with the Raft group: it is at %s; "+
				"stop this server, give it another name, and start it with an empty data directory",
			WANName(c.cfg.Node, c.cfg.DC), d.Address)
	case time.Since(d.Seen) < duplicateTimeout:
		s.Duplicate = &d
	}
	return s
}

// Enabled is the function gossip.Config.Enabled of the WAN pool.
func (c *Claimant) Enabled() (enabled bool, changed <-chan struct{}) {
	changed = c.changed.Wait()
	return c.State().Enabled, changed
}

// Processes returns this server and its clones, or nil if no clone is known. The
// channel is closed after the next change.
func (c *Claimant) Processes() (processes []*pb.Claimant, changed <-chan struct{}) {
	changed = c.changed.Wait()
	return c.State().Processes, changed
}

// EnabledLAN is the function gossip.Config.Enabled of the LAN pool.
func (c *Claimant) EnabledLAN() (enabled bool, changed <-chan struct{}) {
	changed = c.changed.Wait()
	d := c.State().Duplicate
	return d == nil || !d.Refused, changed
}

// SetDuplicate records another server of this datacenter with the name of this
// server. If this server is the duplicate, it leaves both pools.
func (c *Claimant) SetDuplicate(d Duplicate) {
	c.mu.Lock()
	last := c.duplicate
	if d.Refused = d.Refused || last.Refused; c.duplicate != d {
		c.duplicate = d
	}
	c.mu.Unlock()
	switch {
	case d.Refused && !last.Refused:
		c.cfg.Logger.Error("this server takes no part in its datacenter", "reason", c.State().Reason)
		c.changed.Notify()
	case !d.Refused:
		c.cfg.Logger.Warn("another server has the name of this server and is refused: stop or rename it",
			"addr", d.Address)
	}
}

// update changes the state and logs relevant changes.
func (c *Claimant) update(change func(*ClaimState)) {
	c.mu.Lock()
	last := c.state
	change(&c.state)
	next := c.state
	c.mu.Unlock()
	if last.Enabled != next.Enabled || last.Clones != next.Clones {
		c.changed.Notify()
	}
	switch {
	case next.Reason != "" && next.Reason != last.Reason:
		c.cfg.Logger.Error("this server takes no part in the federation", "reason", next.Reason)
	case next.Reason == "" && last.Reason != "":
		c.cfg.Logger.Info("this server takes part in the federation again")
	case next.Clones != "" && last.Clones == "":
		c.cfg.Logger.Error("this server of the primary runs twice", "reason", next.Clones)
	case next.Clones == "" && len(next.Rivals) > 0 && len(last.Rivals) == 0:
		c.cfg.Logger.Warn("another server claims the name of this one",
			"addr", PlaceOf(next.Rivals[0]), "group", next.Rivals[0].GroupId)
	}
}

func (c *Claimant) set(next ClaimState) { c.update(func(s *ClaimState) { *s = next }) }

// Run repeats the claim until ctx ends.
func (c *Claimant) Run(ctx context.Context) error {
	wait := time.AfterFunc(claimWait, func() {
		c.update(func(s *ClaimState) { s.Enabled = s.Enabled || s.Reason == "" && !s.pending })
	})
	defer wait.Stop()
	for ctx.Err() == nil {
		pathsChanged := c.cfg.PathsChanged()
		pause := backoff.Jitter(ClaimInterval)
		id, err := GroupID(ctx, c.cfg.Backend)
		if c.cfg.Primary() == c.cfg.DC {
			c.update(func(s *ClaimState) {
				*s = ClaimState{Enabled: true, GroupID: id, Rivals: s.Rivals, Clones: s.Clones, Processes: s.Processes}
			})
		}
		if err != nil || id == "" {
			pause, pathsChanged = groupIDInterval, nil
		} else if c.cfg.Primary() == c.cfg.DC {
			var responded bool
			if pause, responded = c.announce(ctx, id); responded {
				pathsChanged = nil
			}
		} else if err := c.claim(ctx, id); err != nil {
			c.cfg.Logger.Debug("cannot claim the name of this server", "err", err)
		} else {
			pathsChanged = nil
			if c.State().pending {
				pause = pendingInterval
			}
		}
		backoff.Sleep(ctx, pause, pathsChanged)
	}
	c.release(context.WithoutCancel(ctx))
	return nil
}

// release releases the claim. A restart of this server is then accepted at
// once.
func (c *Claimant) release(ctx context.Context) {
	s, primary := c.State(), c.cfg.Primary()
	if !s.claimed || primary == c.cfg.DC {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	_, err := c.cfg.Client(primary).Claim(ctx, &pb.ClaimRequest{
		Datacenter: c.cfg.DC, Node: c.cfg.Node, GroupId: s.GroupID, Instance: c.cfg.Instance, Release: true,
	})
	if err != nil {
		c.cfg.Logger.Debug("cannot release the name of this server", "err", err)
	}
}

// claim claims once. After an error, only GroupID of the state changes.
func (c *Claimant) claim(ctx context.Context, id string) error {
	req, err := c.request(ctx, id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, claimRequestTimeout)
	defer cancel()
	resp, err := c.cfg.Client(c.cfg.Primary()).Claim(ctx, req, grpc.WaitForReady(true))
	switch {
	case status.Code(err) == codes.Unimplemented: // the primary has an older version, which checks no names
		c.set(ClaimState{Enabled: true, GroupID: id})
	case err != nil:
		c.update(func(s *ClaimState) { s.GroupID = id })
		return err
	default:
		c.set(ClaimState{Enabled: resp.Accepted, GroupID: id, Reason: resp.Reason, Rivals: resp.Rivals,
			claimed: true, clone: resp.Clone, pending: resp.Pending})
	}
	return nil
}

// request returns the claim of this server. The argument id is the group id.
func (c *Claimant) request(ctx context.Context, id string) (*pb.ClaimRequest, error) {
	gateways, err := catalog.ListGateways(ctx, c.cfg.Backend)
	if err != nil {
		return nil, err
	}
	return &pb.ClaimRequest{
		Datacenter: c.cfg.DC, Node: c.cfg.Node, GroupId: id, Instance: c.cfg.Instance,
		PreviousInstance: c.cfg.PreviousInstance, Clone: c.State().clone, ServerAddress: c.cfg.Address,
		Gateways: parseGatewayTag(formatGatewayTag(gateways)),
	}, nil
}
