// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// AnyDatacenter stands for every datacenter in the lists of a Config.
const AnyDatacenter = "*"

// Config configures an Engine.
type Config struct {
	// DC is the datacenter of this server. Required.
	DC string
	// OperatorsFrom returns the other datacenters whose operators and users act
	// in DC with their certificates. Nil: none.
	OperatorsFrom func() []string
	// ForwardFrom returns the other datacenters whose operators and users act in
	// DC, also if only a server of their datacenter names them. Nil: none.
	ForwardFrom func() []string
	// ReadsFrom returns the other datacenters whose callers may read here what
	// they may read in their datacenter, also if only a server of their
	// datacenter names them. Nil: none.
	ReadsFrom func() []string
	// Loaded is closed when the store has applied what was committed before this
	// server started. Until Run has then read the policies, callers without a
	// certificate wait. Nil: they do not wait.
	Loaded <-chan struct{}
	// Recorder receives each write and each refused call at an edge of the
	// server. Nil: calls are not recorded.
	Recorder Recorder
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Engine decides for one server. It is safe for concurrent use.
type Engine struct {
	cfg   Config
	named atomic.Pointer[map[string]rules] // by the name of the policy; replaced, never changed
	ready chan struct{}                    // closed when named has the policies of the loaded store
	soon  time.Time                        // end of the wait for ready of reads of the federation
}

const (
	// anonymousWait is the maximum time that a caller without a certificate waits
	// for the policies.
	anonymousWait = 7 * time.Second
	// federationWait is the time from the start of the server for which such a
	// caller waits for members, status and metrics. A server without a leader
	// must show them.
	federationWait = 2 * time.Second
)

// New returns an Engine without policies.
func New(cfg Config) *Engine {
	none := func() []string { return nil }
	if cfg.OperatorsFrom == nil {
		cfg.OperatorsFrom = none
	}
	if cfg.ForwardFrom == nil {
		cfg.ForwardFrom = none
	}
	if cfg.ReadsFrom == nil {
		cfg.ReadsFrom = none
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	e := &Engine{cfg: cfg, ready: make(chan struct{}), soon: time.Now().Add(federationWait)}
	e.named.Store(&map[string]rules{})
	if cfg.Loaded == nil {
		close(e.ready)
	}
	return e
}

// Run applies the policies in b and all their changes, until ctx ends. It may be
// called once.
func (e *Engine) Run(ctx context.Context, b resource.Backend) error {
	all := resource.Query{Type: Type}
	loaded := e.cfg.Loaded
	for ctx.Err() == nil {
		policies, index, err := b.List(ctx, resource.Eventual, all)
		switch {
		case err != nil:
		case loaded != nil: // these policies may be outdated
			e.replace(policies)
			select {
			case <-loaded:
			case <-ctx.Done():
			}
			loaded = nil
			continue
		default:
			e.replace(policies)
			e.setReady()
			err = b.Wait(ctx, all, index)
		}
		switch {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, resource.ErrClosed):
			return nil
		default:
			e.cfg.Logger.Error("cannot read policies", "err", err)
			backoff.Sleep(ctx, time.Second, nil)
		}
	}
	return nil
}

func (e *Engine) setReady() {
	select {
	case <-e.ready:
	default:
		close(e.ready)
	}
}

// awaitReady returns nil when the policies are those of the loaded store. a is
// what a caller without a certificate wants to do.
func (e *Engine) awaitReady(ctx context.Context, a resource.Access) error {
	select {
	case <-e.ready:
		return nil
	default:
	}
	wait, status := anonymousWait, a.Type.GetGroup() == federationGroup && needs(a.Verb) == read
	if status {
		wait = time.Until(e.soon)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-e.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
	}
	if status {
		return nil
	}
	return fmt.Errorf("%w: it has not read the policy of callers without a certificate: try again, or use a certificate",
		resource.ErrStarting)
}

// replace applies policies. An invalid policy permits nothing.
func (e *Engine) replace(policies []*pb.Resource) {
	next := make(map[string]rules, len(policies))
	for _, r := range policies {
		data, err := resource.Decode[*pb.Policy](r)
		var rs rules
		if err == nil {
			rs, err = compile(data)
		}
		if err != nil {
			e.cfg.Logger.Error("policy is invalid and permits nothing", "policy", r.GetId().GetName(), "err", err)
		}
		next[r.GetId().GetName()] = rs
	}
	e.named.Store(&next)
}

// Decide returns an ErrDenied, or nil if the caller of ctx may do a. While the
// server starts, Decide blocks for callers without a certificate, and may return
// an ErrStarting or the error of ctx.
func (e *Engine) Decide(ctx context.Context, a resource.Access) error {
	c, ok := FromContext(ctx)
	if !ok {
		return fmt.Errorf("%w: the request has no caller", resource.ErrDenied)
	}
	note(ctx, a)
	if c.Role == tlsutil.RoleAnonymous {
		if err := e.awaitReady(ctx, a); err != nil {
			return err
		}
	}
	return e.DecideFor(c, a)
}

// DecideFor returns an ErrDenied, or nil if c may do a.
func (e *Engine) DecideFor(c Caller, a resource.Access) error {
	if !e.rightsOf(c.Peer).permits(a) {
		return e.refusal(c, a)
	}
	if e.ActsHere(c) || c.Role != tlsutil.RoleGateway && public(a) || needs(a.Verb) == read && e.readsHere(c) {
		return nil
	}
	return denied(c, describe(a)+" of "+e.cfg.DC, e.remedy(c, needs(a.Verb)))
}

// ActsHere reports whether c has the rights of its role in the datacenter of
// this server.
func (e *Engine) ActsHere(c Caller) bool {
	if c.DC == e.cfg.DC {
		return true
	}
	if c.Role != tlsutil.RoleOperator && c.Role != tlsutil.RoleUser {
		return false
	}
	return contains(e.cfg.ForwardFrom(), c.DC) || c.Via == (tlsutil.Peer{}) && contains(e.cfg.OperatorsFrom(), c.DC)
}

// readsHere reports whether c may read here what it may read in its datacenter.
// The resources of this datacenter are not for the servers of others, which only
// pass on the requests of their callers.
func (e *Engine) readsHere(c Caller) bool {
	return c.Role != tlsutil.RoleGateway && c.Role != tlsutil.RoleServer && contains(e.cfg.ReadsFrom(), c.DC)
}

// MayWrite returns an ErrDenied if c may not write any resource. url is the
// address of the server with TLS.
func (e *Engine) MayWrite(c Caller, url string) error {
	role, acts := c.Role, e.ActsHere(c)
	switch {
	case c.Peer == (tlsutil.Peer{}) || role == tlsutil.RoleAnonymous:
		return fmt.Errorf("%w: a write needs an operator's certificate: make one with %s%s, and use %s",
			resource.ErrDenied, createOperator, e.cfg.DC, url)
	case acts && slices.Contains([]tlsutil.Role{tlsutil.RoleOperator, tlsutil.RoleUser, tlsutil.RoleServer, tlsutil.RoleSync}, role):
		return nil
	case role == tlsutil.RoleOperator, role == tlsutil.RoleUser:
		return fmt.Errorf("%w: %v may not write in %s: %s", resource.ErrDenied, c, e.cfg.DC, e.Remedy(c))
	case role == tlsutil.RoleServer:
		return fmt.Errorf("%w: %v may not write in %s for itself", resource.ErrDenied, c, e.cfg.DC)
	}
	return fmt.Errorf("%w: %v may not write: create an operator's certificate with: %s%s", resource.ErrDenied, c, createOperator, e.cfg.DC)
}

func contains(list []string, dc string) bool {
	return slices.Contains(list, dc) || slices.Contains(list, AnyDatacenter)
}

// rightsOf returns the rights of p in its own datacenter.
func (e *Engine) rightsOf(p tlsutil.Peer) rules {
	switch p.Role {
	case tlsutil.RoleUser:
		named := *e.named.Load()
		if rs, ok := named[p.Node+"."+p.DC]; ok {
			return rs
		}
		return named[p.Node]
	case tlsutil.RoleAnonymous:
		if rs, ok := (*e.named.Load())[Anonymous]; ok {
			return rs
		}
	}
	return builtin[p.Role]
}

// refusal returns the error of a caller whose role or policy does not permit a.
func (e *Engine) refusal(c Caller, a resource.Access) error {
	what := describe(a)
	switch {
	case c.Role == tlsutil.RoleUser:
		return denied(c, what, fmt.Sprintf("no rule of policy %s permits it; see: wanfed policy check --as %s",
			e.policyOf(c.Peer), c.Node))
	case c.Role == tlsutil.RoleAnonymous && needs(a.Verb) == write:
		return denied(c, what, "a write needs an operator's certificate: make one with "+createOperator+c.DC+
			", and use https://")
	case c.Role == tlsutil.RoleAnonymous:
		return denied(c, what, "a caller without a certificate may not")
	case needs(a.Verb) == write:
		return denied(c, what, fmt.Sprintf("%s certificates may not; create an operator's certificate with: %s%s",
			c.Role, createOperator, e.cfg.DC))
	}
	return denied(c, what, fmt.Sprintf("%s certificates may not", c.Role))
}

const createOperator = "wanfed tls cert create --operator --datacenter "

// policyOf returns the name of the policy of user p.
func (e *Engine) policyOf(p tlsutil.Peer) string {
	if _, ok := (*e.named.Load())[p.Node+"."+p.DC]; ok {
		return p.Node + "." + p.DC
	}
	return p.Node
}

// Remedy returns what a caller of another datacenter can do who may not act in
// this datacenter.
func (e *Engine) Remedy(c Caller) string { return e.remedy(c, write) }

func (e *Engine) remedy(c Caller, needed access) string {
	dc := e.cfg.DC
	switch {
	case c.Role == tlsutil.RoleServer, c.Role == tlsutil.RoleGateway,
		needed == write && c.Role != tlsutil.RoleOperator && c.Role != tlsutil.RoleUser:
		return fmt.Sprintf("%s certificates of %s may not outside %s", c.Role, c.DC, c.DC)
	case needed == read:
		return fmt.Sprintf("outside %s it may only read the catalog and federated resources: call with a certificate of %s, "+
			"or set reads_from = [%q] on the servers of %s", c.DC, dc, c.DC, dc)
	case c.Via != (tlsutil.Peer{}):
		return fmt.Sprintf("%s does not accept writes through servers of %s: write at a server of %s, or set "+
			"allow_remote_writes_from = [%q] on its servers", dc, c.DC, dc, c.DC)
	}
	return fmt.Sprintf("%ss of %s act only in %s: use a certificate of %s, or set operators_from = [%q] on the servers of %s",
		c.Role, c.DC, c.DC, dc, c.DC, dc)
}

func denied(c Caller, what, why string) error {
	return fmt.Errorf("%w: %v may not %s: %s", resource.ErrDenied, c, what, why)
}

// describe returns the verb and the resources of a.
func describe(a resource.Access) string {
	s := string(a.Verb) + " " + resource.TypeString(a.Type)
	switch {
	case a.Name == "":
	case a.Verb == resource.VerbList:
		s += fmt.Sprintf(" with the prefix %.200q", a.Name)
	default:
		s += fmt.Sprintf(" %.200q", a.Name)
	}
	return s
}

// Names returns the names of all policies, in order.
func (e *Engine) Names() []string { return slices.Sorted(maps.Keys(*e.named.Load())) }
