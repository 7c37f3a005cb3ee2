// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"
)

// Kind chooses the timings of a pool.
type Kind int

const (
	// LAN has short probe intervals: 1 s, 500 ms to answer.
	LAN Kind = iota
	// WAN has longer ones: 5 s, 3 s to answer.
	WAN
)

// Config of a Pool.
type Config struct {
	Kind Kind
	// Name of this member. Required.
	Name string
	// Tags that other members see; at most 512 bytes encoded.
	Tags map[string]string
	// Transport carries packets and streams. Required; it outlives the pool.
	Transport memberlist.NodeAwareTransport
	// Advertise is the address that others see. Required.
	Advertise netip.AddrPort
	// Admit, if not nil, may refuse a member by an error. It must not block and is called from serf's goroutines.
	Admit func(Member) error
	// Group says to what a member belongs, by its name: of one group at most 128 members are taken in, and 16,384 in all. Whoever is in
	// the pool may speak of others, so this is what one that was broken into cannot go beyond. nil: there is no bound.
	GroupOf func(name string) string
	// Keys encrypt gossip; nil: it is not encrypted. Changes of the ring take effect at once.
	Keyring *KeyringStore
	// AcceptPlaintext and SendPlaintext are for a pool that is becoming encrypted, member by member: with Keys, gossip that is not
	// encrypted is accepted too, and what is sent is not encrypted yet.
	AcceptPlaintext, SendPlaintext bool
	// Logger. Required.
	Logger *slog.Logger
}

// Pool is one gossip pool seen from one server.
type Pool struct {
	cfg   Config
	ready chan struct{} // closed once serf is set

	serf atomic.Pointer[serf.Serf] // set before ready is closed; replaced when the member has moved
	feed *feed                     // of serf; guarded by list

	moved time.Time // when move was last done; Run's

	former  chan netip.AddrPort // a wake-up: the address at which others have this member alive, not its own
	members atomic.Pointer[[]Member]

	list    sync.Mutex // held from reading members to publishing what takes their place
	mu      sync.Mutex
	tags    map[string]string
	changed chan struct{} // closed and replaced after members changed
}

// ErrNotRunning says that the pool is not, or no longer, running.
var ErrNotRunning = errors.New("gossip pool is not running")

// New checks cfg. It starts nothing.
func New(cfg Config) (*Pool, error) {
	if cfg.Name == "" || cfg.Transport == nil || !cfg.Advertise.IsValid() || cfg.Logger == nil {
		return nil, errors.New("gossip: Name, Transport, Advertise and Logger are required")
	}
	return &Pool{
		cfg:     cfg,
		ready:   make(chan struct{}),
		former:  make(chan netip.AddrPort, 1),
		tags:    maps.Clone(cfg.Tags),
		changed: make(chan struct{}),
	}, nil
}

// Run is the pool's life: it blocks until ctx ends, leaves the pool, and returns nil; or returns why it could not start.
// It may be called once. Leaving takes a second, and no time where nobody else is alive.
func (p *Pool) Run(ctx context.Context) error {
	f := newFeed()
	s, err := p.create(p.cfg.Advertise, f.events)
	if err != nil {
		return err
	}
	p.serf.Store(s.Serf)
	p.begin(f)
	close(p.ready)

	var wg sync.WaitGroup
	defer wg.Wait()
	stopped := make(chan struct{})
	defer close(stopped)
	follow := func(f *feed) { wg.Go(func() { p.follow(f, stopped) }) }
	follow(f)

	for {
		select {
		case <-ctx.Done():
			return p.leave(s)
		case <-s.ShutdownCh():
			return fmt.Errorf("gossip pool of %s stopped by itself", p.cfg.Name)
		case addr := <-p.former:
			if s, err = p.move(ctx, s, addr, follow); err != nil {
				return err
			}
		}
	}
}

func verb(t serf.EventType) string {
	switch t {
	case serf.EventMemberJoin:
		return "alive"
	case serf.EventMemberLeave:
		return "left"
	case serf.EventMemberFailed:
		return "failed"
	case serf.EventMemberReap:
		return "reaped"
	default:
		return "updated"
	}
}

// publish, with p.list held, replaces the member list, which nobody changes from then on.
func (p *Pool) publish(members []Member) {
	p.members.Store(&members)

	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

// Members returns all members by name, this one included; empty before Run. The caller must not change the slice.
func (p *Pool) Members() []Member {
	if ms := p.members.Load(); ms != nil {
		return *ms
	}
	return nil
}

// Changed returns a channel that is closed at the next change of Members. Take it before Members.
func (p *Pool) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// Join contacts the given members ("name/host:port", or "host:port" where the transport allows it) and exchanges state
// with them. It returns nil when at least one answered. It blocks for as long as the transport's dials do (bounded by its
// timeouts), even when ctx has ended meanwhile: serf offers no way to interrupt it but the transport's end.
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

// oneLine makes an error of memberlist, which has a list in several lines, one that people read. The address of a member
// with a name is left out: it may mean nothing.
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

// SetTags replaces this member's tags and tells the others.
func (p *Pool) SetTags(ctx context.Context, tags map[string]string) error {
	select {
	case <-p.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	p.mu.Lock()
	p.tags = maps.Clone(tags)
	p.mu.Unlock()
	return p.serf.Load().SetTags(tags)
}

// RTT estimates the round-trip time to another member from network coordinates (Vivaldi). ok is false when it is not known.
func (p *Pool) RTT(name string) (d time.Duration, ok bool) {
	select {
	case <-p.ready:
	default:
		return 0, false
	}
	s := p.serf.Load()
	own, err := s.GetCoordinate()
	if err != nil {
		return 0, false
	}
	other, ok := s.GetCachedCoordinate(name)
	if !ok {
		return 0, false
	}
	return own.DistanceTo(other), true
}
