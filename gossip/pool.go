// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/coordinate"
	"github.com/hashicorp/serf/serf"

	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/wanfed"
)

// Config configures a Pool.
type Config struct {
	// Kind selects the timings of the LAN or the WAN pool. Default: LAN.
	Kind wanfed.Pool
	// Name is the name of this member: <node> in a LAN pool, <node>.<dc> in the
	// WAN pool. Required.
	Name string
	// Tags are visible to all members. The encoded tags have at most 512 bytes.
	Tags map[string]string
	// Transport carries packets and streams. Run shuts it down. Required.
	Transport memberlist.NodeAwareTransport
	// Advertise is the address that other members see. Required.
	Advertise netip.AddrPort
	// Admit may reject a member with an error. It is called from serf's
	// goroutines and must not block. Default: admit all members.
	Admit func(Member) error
	// GroupOf returns the group of a member by its name. What the transport
	// receives from a member of one group about a member of another is hearsay
	// (hearsay.go). The transport must then name the sender of a packet and the
	// peer of a stream. A group has at most 128 members, and all groups together
	// have at most 8,192. Default: no groups and no limit.
	GroupOf func(name string) string
	// HasPath reports whether the transport has a path to a group. Members of
	// other groups are not queried until it does. It must not block. Default: all
	// groups have a path.
	HasPath func(group string) bool
	// Keyring encrypts gossip. Its changes take effect at once. Default: gossip
	// is not encrypted.
	Keyring *KeyringStore
	// AcceptPlaintext accepts unencrypted gossip although Keyring is set. It is
	// for a pool whose members enable encryption one by one.
	AcceptPlaintext bool
	// SendPlaintext sends unencrypted gossip although Keyring is set. It is for
	// the first step of enabling encryption.
	SendPlaintext bool
	// Enabled reports whether this member may take part in the pool, and
	// returns a channel that is closed at the next change. A disabled pool has
	// no members, and Join blocks or returns ErrNotRunning. A member that
	// becomes disabled sends no leave message, because another server may have
	// its name. Default: always enabled.
	Enabled func() (enabled bool, changed <-chan struct{})
	// NameTaken reports whether another process with the name of this member
	// runs at addr, where other members list this member. If so, this member
	// does not replace that process. NameTaken may block for a few seconds.
	// Default: the name is never taken.
	NameTaken func(ctx context.Context, addr netip.AddrPort) bool
	// Reap reports whether a member that has failed or left is removed from the
	// list now. It is called for each such member every 15 seconds, from a
	// goroutine of serf, and must not block. Default: a member is removed 72 hours
	// after it has failed or left.
	Reap   func(name string) bool
	Logger *slog.Logger // required
}

// Pool is the member of this server in one gossip pool.
type Pool struct {
	cfg       Config
	ready     chan struct{} // closed when serf is set
	refusals  *refusals
	inspector *inspector
	hearsay   *hearsay

	libraryLines lineLimiter // of all instances

	// serf is the current instance. Each start of the pool creates one.
	serf     atomic.Pointer[serf.Serf]
	rejoined time.Time // time of the last rejoin or conflict; only Run uses it
	// reporters has the times of the last rejoins with members of a pool with
	// groups, by name. Only Run uses it.
	reporters map[string]time.Time

	members atomic.Pointer[[]Member] // immutable
	changed broadcast.Broadcast      // notified after each change of members

	updating sync.Mutex        // serializes changes of members
	events   <-chan serf.Event // of the current instance; guarded by updating

	mu   sync.Mutex
	tags map[string]string
}

// ErrNotRunning reports that Run has ended.
var ErrNotRunning = errors.New("gossip pool is not running")

// New checks cfg. It starts nothing.
func New(cfg Config) (*Pool, error) {
	if cfg.Name == "" || cfg.Transport == nil || !cfg.Advertise.IsValid() || cfg.Logger == nil {
		return nil, errors.New("gossip: Name, Transport, Advertise and Logger are required")
	}
	var keyring *memberlist.Keyring
	if cfg.Keyring != nil {
		keyring = cfg.Keyring.live
	}
	refused := newRefusals(cfg.Logger)
	p := &Pool{
		cfg:       cfg,
		ready:     make(chan struct{}),
		refusals:  refused,
		inspector: newInspector(cfg, keyring, refused),
		reporters: map[string]time.Time{},
		tags:      maps.Clone(cfg.Tags),
	}
	p.hearsay = newHearsay(p)
	p.inspector.hearsay = p.hearsay
	return p, nil
}

// Run runs the pool until ctx ends, then leaves the pool and returns nil. It
// returns an error if the pool cannot start or stops by itself. Run may be
// called once. Run needs up to a second to leave if another member is alive.
func (p *Pool) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	stopped := make(chan struct{})
	defer close(stopped)
	wg.Go(func() { p.inspector.run(stopped) })
	wg.Go(func() { p.hearsay.run(stopped) })
	for first := true; p.awaitEnabled(ctx); first = false {
		events := newEvents()
		s, err := p.create(events)
		if err != nil {
			return err
		}
		p.serf.Store(s.Serf)
		p.setEvents(events)
		if first {
			close(p.ready)
		}
		wg.Go(func() { p.follow(events, stopped) })
		if ended, err := p.runInstance(ctx, s); ended || err != nil {
			return err
		}
		p.removeMembers()
		p.hearsay.reset()
	}
	return p.cfg.Transport.Shutdown()
}

// runInstance runs s until ctx ends or the pool is disabled, and shuts s down.
// The result ended is false after the pool was disabled.
func (p *Pool) runInstance(ctx context.Context, s instance) (ended bool, err error) {
	for {
		enabled, changed := p.enabled()
		if !enabled {
			return false, s.Shutdown()
		}
		select {
		case <-ctx.Done():
			return true, p.stop(s)
		case <-s.ShutdownCh():
			return true, fmt.Errorf("gossip pool of %s stopped by itself", p.cfg.Name)
		case <-changed:
		case stale := <-p.inspector.stale:
			p.rejoin(ctx, s, stale)
		}
	}
}

func (p *Pool) enabled() (bool, <-chan struct{}) {
	if p.cfg.Enabled == nil {
		return true, nil
	}
	return p.cfg.Enabled()
}

// awaitEnabled waits until the pool is enabled. It returns false if ctx ends
// first.
func (p *Pool) awaitEnabled(ctx context.Context) bool {
	for {
		enabled, changed := p.enabled()
		if enabled {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// Members returns all members, including this one, ordered by name. The list is
// empty before Run. The caller must not change it.
func (p *Pool) Members() []Member {
	if ms := p.members.Load(); ms != nil {
		return *ms
	}
	return nil
}

// Changed returns a channel that is closed at the next change of Members. Call
// it before Members.
func (p *Pool) Changed() <-chan struct{} { return p.changed.Wait() }

// Refused returns the number of refused packets, messages and state exchanges
// by reason, since New.
func (p *Pool) Refused() map[string]uint64 { return p.refusals.counts() }

// Join exchanges state with the members at addrs. It returns nil if at least
// one member responded. An address is "name/host:port", or "host:port" if the
// transport permits it. ctx limits only the wait for the start of Run. After
// that, Join blocks until the transport has dialed all addresses or is shut
// down.
func (p *Pool) Join(ctx context.Context, addrs ...string) error {
	select {
	case <-p.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	s := p.serf.Load()
	if s.State() != serf.SerfAlive {
		return ErrNotRunning
	}
	_, err := s.Join(addrs, true)
	return oneLine(err, addrs)
}

// oneLine returns a list of errors from memberlist in one line. It omits the
// address of a member that addrs names, because the address may be of another
// datacenter's network.
func oneLine(err error, addrs []string) error {
	list, ok := err.(interface{ WrappedErrors() []error })
	if !ok {
		return err
	}
	var texts []string
	for _, e := range list.WrappedErrors() {
		text := e.Error()
		for _, addr := range addrs {
			if _, hostport, ok := strings.Cut(addr, "/"); ok {
				text = strings.TrimPrefix(text, "failed to join "+hostport+": ")
			}
		}
		texts = append(texts, text)
	}
	return errors.New(strings.Join(texts, "; "))
}

// Querying reports whether this member has news about a member of another group
// that are not confirmed yet. It is querying the member, whose answer makes it
// known.
func (p *Pool) Querying(group string) bool {
	if !p.hearsay.enabled() {
		return false
	}
	p.hearsay.mu.Lock()
	defer p.hearsay.mu.Unlock()
	return p.hearsay.perGroup[group] > 0
}

// SetTags replaces this member's tags and broadcasts them. It also sends them to
// each member that is alive: see announce. It blocks until the broadcast has
// ended or timed out, which takes half a second.
func (p *Pool) SetTags(ctx context.Context, tags map[string]string) error {
	select {
	case <-p.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	p.mu.Lock()
	p.tags = maps.Clone(tags)
	p.mu.Unlock()
	p.announce(func(Member) bool { return true }, time.Now().Add(refuteDelay))
	defer p.hearsay.ownChanged()
	return p.serf.Load().SetTags(tags)
}

// Announce sends the state of this member, with its tags, to the members of a
// group that are alive. It is for the time after an outage of the path to the
// group, in which broadcasts may be lost. It does not block.
func (p *Pool) Announce(group string) {
	if p.hearsay.enabled() {
		p.announce(func(m Member) bool { return p.cfg.GroupOf(m.Name) == group }, time.Now())
	}
}

// Refresh queries the members of a group that have not left, as after news about
// them. It is for the time after an outage of the path to the group, in which
// their broadcasts may have been lost. It does not block.
func (p *Pool) Refresh(group string) {
	h := p.hearsay
	if !h.enabled() {
		return
	}
	members, now := p.Members(), time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range members {
		if p.cfg.GroupOf(m.Name) != group || m.Status == StatusLeft {
			continue
		}
		if r := h.rumor(m.Name, now); r != nil {
			r.member, r.addr = true, m.Addr
		}
	}
	h.notify()
}

// announce sends the alive message of this member, as it is at a time, to other
// members. memberlist broadcasts it too, but loses the broadcast if another
// message of the same size arrives while it replaces an earlier one in the queue
// (https://github.com/hashicorp/memberlist/pull/263). Members would then learn
// the tags in a state exchange, a minute later.
func (p *Pool) announce(to func(Member) bool, at time.Time) {
	h := p.hearsay
	members := p.Members()
	h.mu.Lock()
	defer h.mu.Unlock()
	if at.After(h.changed) { // an answer that waits for a refutation reads the state then
		h.changed = at
	}
	for _, m := range members {
		if m.Name != p.cfg.Name && m.Alive() && to(m) && h.answers[m.Name].Before(at) { // not before a refutation
			h.answer(m.Name, at)
		}
	}
}

func (p *Pool) currentTags() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.tags)
}

// RTT estimates the round-trip time to another member from network coordinates
// (Vivaldi). ok is false if an estimate does not exist.
func (p *Pool) RTT(name string) (d time.Duration, ok bool) {
	select {
	case <-p.ready:
	default:
		return 0, false
	}
	s := p.serf.Load()
	local, err := s.GetCoordinate()
	if err != nil {
		return 0, false
	}
	remote, ok := s.GetCachedCoordinate(name)
	if !ok {
		return 0, false
	}
	return local.DistanceTo(remote), true
}

// Coordinate is the network coordinate of a member.
type Coordinate struct {
	Name string
	coordinate.Coordinate
}

// Coordinates returns the coordinates of the members that are alive, ordered by
// name. A member without an exchange of coordinates is left out.
func (p *Pool) Coordinates() []Coordinate {
	select {
	case <-p.ready:
	default:
		return nil
	}
	s := p.serf.Load()
	var out []Coordinate
	for _, m := range p.Members() {
		if !m.Alive() {
			continue
		}
		c, ok := s.GetCachedCoordinate(m.Name)
		if m.Name == p.cfg.Name {
			var err error
			c, err = s.GetCoordinate()
			ok = err == nil
		}
		if ok && c != nil {
			out = append(out, Coordinate{m.Name, *c.Clone()})
		}
	}
	return out
}

// A member leaves with two messages. Serf's leave message announces the end,
// and memberlist's message marks the member as dead. A member that receives
// only the second message lists the leaving member as failed. Between
// datacenters, gossip needs at least two seconds to send all copies of the
// first message. Therefore leave sends the first message directly to all
// members, and the second message follows in the next gossip round.

const (
	// leavePropagateDelay is the time during which this member still responds
	// after it has sent both messages.
	leavePropagateDelay = 300 * time.Millisecond
	// maxLeaveTargets limits the direct recipients of a leave message. In a
	// larger pool without groups, randomly chosen members forward the message. In
	// a pool with groups, only a member itself can announce its departure.
	maxLeaveTargets      = 32
	maxLeaveTargetsGroup = 1024
	// queuePollInterval is the interval at which sendQueued reads the queue of
	// serf. Serf does not report when its leave message is in the queue.
	queuePollInterval = 5 * time.Millisecond
	// departureInterval is the interval at which sendDeparture reads the state of
	// memberlist.
	departureInterval = 50 * time.Millisecond
)

// stop leaves the pool and shuts down s and the transport.
func (p *Pool) stop(s instance) error {
	if err := p.leave(s); err != nil {
		p.cfg.Logger.Warn("cannot leave gossip pool", "err", err)
	}
	if err := errors.Join(p.cfg.Transport.Shutdown(), s.Shutdown()); err != nil {
		return fmt.Errorf("stop gossip pool of %s: %w", p.cfg.Name, err)
	}
	return nil
}

// leave sends the messages that this member leaves. It takes up to a second and
// a half, or no time if no other member is alive.
func (p *Pool) leave(s instance) error {
	limit := maxLeaveTargets
	if p.hearsay.enabled() {
		limit = maxLeaveTargetsGroup
	}
	targets := s.leaveTargets(limit)
	if len(targets) == 0 {
		s.cfg.LeavePropagateDelay = 0 // only Leave reads it
		return s.Leave()
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(done)
	wg.Go(func() { s.sendQueued(targets, done) })
	if p.hearsay.enabled() {
		wg.Go(func() { p.sendDeparture(s, targets, done) })
	}
	return s.Leave()
}

// sendDeparture sends memberlist's message that this member has left to all
// targets, as soon as memberlist has it, until done is closed. Between groups,
// gossip does not forward it.
func (p *Pool) sendDeparture(s instance, targets []memberlist.Address, done <-chan struct{}) {
	tick := time.NewTicker(departureInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-done:
			return
		}
		own, ok := p.inspector.readOwnState(done)
		if !ok || own.State != memberlist.StateLeft {
			continue
		}
		for _, to := range targets {
			p.inspector.send(to, deadMessage(own.Name, own.Incarnation))
		}
		return
	}
}

// leaveTargets returns the addresses of up to limit alive members.
func (s instance) leaveTargets(limit int) []memberlist.Address {
	var out []memberlist.Address
	for _, m := range s.Members() {
		if m.Status == serf.StatusAlive && m.Name != s.cfg.NodeName {
			out = append(out, memberlist.Address{Addr: addrOf(m), Name: m.Name})
		}
	}
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out[:min(len(out), limit)]
}

// sendQueued reads messages from the queue of serf, as gossip rounds do, and
// sends each message once to all targets, until done is closed. After enough
// reads of the leave message, serf counts the message as sent, and Leave
// continues.
func (s instance) sendQueued(targets []memberlist.Address, done <-chan struct{}) {
	const messageOverhead, packetOverhead = 3, 100 // bytes
	ml := s.cfg.MemberlistConfig
	sent := map[string]bool{}
	tick := time.NewTicker(queuePollInterval)
	defer tick.Stop()
	for {
		for _, msg := range ml.Delegate.GetBroadcasts(messageOverhead, ml.UDPBufferSize-packetOverhead) {
			if sent[string(msg)] {
				continue
			}
			sent[string(msg)] = true
			for _, to := range targets {
				_ = s.Memberlist().SendToAddress(to, msg) // after an error, gossip delivers the message
			}
		}
		select {
		case <-tick.C:
		case <-done:
			return
		}
	}
}
