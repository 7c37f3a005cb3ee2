// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

const (
	// TypeTTL is the type of checks that somebody reports.
	TypeTTL = "ttl"
	// TTLExpiredOutput is the output of a check that nobody reported in time.
	TTLExpiredOutput = "TTL expired"
	// OutputInterval is how long a changed output waits if one was written shortly before and the status is the same.
	OutputInterval = 10 * time.Second
	// MinDeregisterAfter is the least time after which a service that is critical is deleted.
	MinDeregisterAfter = time.Minute
	// reportRetry is how long a write that failed waits.
	reportRetry = time.Second
)

// Report is what somebody says of a check.
type CheckUpdate struct {
	Node, CheckID  string
	Status, Output string
}

// Reports keeps the deadlines of the checks with a TTL, in the leader's memory: a report that changes nothing moves a deadline and
// writes nothing. A new leader gives each check its full TTL.
type TTLMonitor struct {
	backend resource.Backend
	log     *slog.Logger
	wake    chan struct{} // size 1: a deadline came nearer

	mu     sync.Mutex
	checks map[string]*reported // by the resource's name; nil while this server does not lead
}

// reported is one check with a TTL. Reports.mu guards it.
type reported struct {
	node, service string
	status        string
	ttl, gone     time.Duration // gone: DeregisterAfter; 0 never
	heard         time.Time     // the last report, or the beginning
	critical      time.Time     // since when; zero while it is not
	wrote         time.Time     // when an output was written last
	pending       string        // output to be written; empty: none
	retry         time.Time     // nothing before that: the last write failed
}

// NewTTLMonitor checks what it is given.
func NewTTLMonitor(b resource.Backend, log *slog.Logger) (*TTLMonitor, error) {
	if b == nil || log == nil {
		return nil, errors.New("catalog: Backend and Logger are required")
	}
	return &TTLMonitor{backend: b, log: log, wake: make(chan struct{}, 1)}, nil
}

// Report takes what somebody says of a check with a TTL. It writes when the status changes, and an output that changes not more
// often than every OutputInterval. It fails with resource.ErrNotLeader where Run is not running, with ErrNoCheck, and with
// resource.ErrInvalid for a status that is none, or a check without TTL. The caller has been authorized.
func (p *TTLMonitor) Update(ctx context.Context, rep CheckUpdate) error {
	switch rep.Status {
	case StatusPassing, StatusWarning, StatusCritical:
	default:
		return fmt.Errorf("%w status %.30q: must be passing, warning or critical", resource.ErrInvalid, rep.Status)
	}
	rep.Output = cut(rep.Output, MaxOutput)
	name := underNode(rep.Node, rep.CheckID)
	if !p.leading() {
		return resource.ErrNotLeader
	}
	for {
		r, c, err := p.read(ctx, name)
		if err != nil {
			return err
		}
		if c == nil || c.Type != TypeTTL {
			return fmt.Errorf("%w with a TTL: %q on node %q", ErrNoCheck, rep.CheckID, rep.Node)
		}
		write := p.heard(name, c, rep)
		if !write {
			return nil
		}
		c = proto.CloneOf(c)
		c.Status, c.Output = rep.Status, rep.Output
		if err := put(ctx, p.backend, r, c); !errors.Is(err, resource.ErrConflict) {
			return err
		}
	}
}

// cut shortens s to n bytes, and not inside a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n]
}

// heard moves the deadline and says whether the report must be written now.
func (p *TTLMonitor) heard(name string, c *pb.Check, rep CheckUpdate) (write bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.checks == nil {
		return true // no longer the leader: the write says so
	}
	now := time.Now()
	k := p.checks[name]
	if k == nil {
		k = new(reported)
		p.checks[name] = k
	}
	k.learn(c, now)
	k.heard = now
	switch {
	case rep.Status != c.Status:
		k.wrote, k.pending = now, ""
		return true
	case rep.Output == c.Output:
		k.pending = ""
		return false
	case now.Sub(k.wrote) >= OutputInterval:
		k.wrote, k.pending = now, ""
		return true
	}
	k.pending = rep.Output
	p.poke()
	return false
}

// learn takes over what is stored.
func (k *reported) learn(c *pb.Check, now time.Time) {
	k.node, k.service, k.status = c.Node, c.ServiceId, c.Status
	k.ttl, k.gone = c.GetTtl().AsDuration(), 0
	if d := c.GetDeregisterAfter().AsDuration(); d > 0 && c.ServiceId != "" {
		k.gone = max(d, MinDeregisterAfter)
	}
	switch {
	case c.Status != StatusCritical:
		k.critical = time.Time{}
	case k.critical.IsZero():
		k.critical = now
	}
}

func (p *TTLMonitor) read(ctx context.Context, name string) (*pb.Resource, *pb.Check, error) {
	r, err := p.backend.Read(ctx, resource.Eventual, resource.ID(CheckType, name))
	if errors.Is(err, resource.ErrNotFound) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	c, err := resource.Decode[*pb.Check](r)
	return r, c, err
}

func (p *TTLMonitor) leading() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.checks != nil
}

func (p *TTLMonitor) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}
