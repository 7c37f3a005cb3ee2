// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/wanfed/wanfed/gateway/internal/upstream"
	"github.com/wanfed/wanfed/internal/netaddr"
)

const (
	maxName     = 253  // bytes of a DNS name (RFC 1035, section 2.3.4)
	maxProtocol = 255  // bytes of a protocol id (RFC 7301, section 3.1)
	maxTo       = 1024 // addresses of a route; a client would time out long before the gateway has tried all
)

// Route defines the upstream addresses of one name, or of all names below a
// suffix.
type Route struct {
	// Match is an SNI ("server.dc2.wanfed"), or "*.suffix", which stands for
	// one or more labels before the suffix.
	Match string `json:"match"`
	// To are the addresses (host:port). A host name is resolved at each dial.
	To []string `json:"to"`
	// Ordered means that the first address is preferred and the next ones are
	// used when it fails. Otherwise a connection uses the address with the
	// fewest open connections. Connections that were opened for other routes
	// count too.
	Ordered bool `json:"ordered,omitempty"`
	// Protocols lists protocol ids (ALPN). A client must offer one of them.
	// Empty: a client may offer any protocol, or none.
	Protocols []string `json:"protocols,omitempty"`
	// ProxyProtocol sends a PROXY header, version 2, before the ClientHello.
	// The header contains the address of the client, which may itself come from
	// a PROXY header (see Policy.ProxyFrom).
	ProxyProtocol bool `json:"proxy_protocol,omitempty"`
	// ProxyTo sends this header only to the listed addresses of To.
	ProxyTo []string `json:"proxy_to,omitempty"`
	// Refuse has, for host names in To, the kinds of addresses that are not dialed
	// if the name resolves to them. Names without an entry may resolve to all.
	Refuse map[string]netaddr.Class `json:"-"`
}

// Table maps each SNI to its route. It is immutable. An exact name takes
// precedence over a wildcard, and a long wildcard over a short one. The zero
// Table has no routes.
type Table struct {
	exact, below map[string]*target       // below: wildcards, by what follows "*."
	refuse       map[string]netaddr.Class // of all routes
}

// target is a route in a table.
type target struct {
	Route
	next atomic.Uint32 // round-robin counter, with a random start
}

// start returns the index in To of the address that the next connection
// prefers among those with equally many connections. The index advances with
// each connection (round robin). For an ordered route start returns
// upstream.InOrder.
func (t *target) start() int {
	if n := len(t.To); !t.Ordered && n > 1 {
		return int(t.next.Add(1) % uint32(n))
	}
	return upstream.InOrder
}

// NewTable builds a table. Its error lists every fault of the routes, each with
// the name of the route.
func NewTable(routes []Route) (*Table, error) {
	t := &Table{exact: make(map[string]*target, len(routes)), below: map[string]*target{}, refuse: map[string]netaddr.Class{}}
	var errs []error
	for _, r := range routes {
		if err := CheckRoute(r); err != nil {
			errs = append(errs, err)
			continue
		}
		r.Match, r.To, r.Protocols = normalName(r.Match), slices.Clone(r.To), slices.Clone(r.Protocols)
		r.ProxyTo = slices.Clone(r.ProxyTo)
		names, key := t.exact, r.Match
		if suffix, ok := strings.CutPrefix(r.Match, "*."); ok {
			names, key = t.below, suffix
		}
		if names[key] != nil {
			errs = append(errs, fmt.Errorf("duplicate route %q", r.Match))
			continue
		}
		for addr, class := range r.Refuse {
			t.refuse[addr] |= class
		}
		names[key] = &target{Route: r}
		names[key].next.Store(rand.Uint32())
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return t, nil
}

// Lookup returns the route for an SNI in upper or lower case, with or without a
// final dot. The cost does not depend on the number of routes. The caller must
// not change the slices of the route.
func (t *Table) Lookup(sni string) (Route, bool) {
	if e := t.find(normalBytes([]byte(sni))); e != nil {
		return e.Route, true
	}
	return Route{}, false
}

// find returns the target of a name in the form of normalBytes, or nil.
func (t *Table) find(sni []byte) *target {
	if len(sni) > maxName { // bounds the work: each dot costs a hash of the rest
		return nil
	}
	if e := t.exact[string(sni)]; e != nil {
		return e
	}
	for len(t.below) > 0 {
		i := bytes.IndexByte(sni, '.')
		if i < 0 {
			break
		}
		if sni = sni[i+1:]; i > 0 {
			if e := t.below[string(sni)]; e != nil {
				return e
			}
		}
	}
	return nil
}

// Len returns the number of routes.
func (t *Table) Len() int { return len(t.exact) + len(t.below) }

// Routes returns the routes, sorted by name. The caller must not change their
// slices.
func (t *Table) Routes() []Route {
	all := make([]Route, 0, t.Len())
	for _, names := range []map[string]*target{t.exact, t.below} {
		for _, e := range names {
			all = append(all, e.Route)
		}
	}
	slices.SortFunc(all, func(a, b Route) int { return strings.Compare(a.Match, b.Match) })
	return all
}

// route returns the target for a ClientHello, or the refusal of the client. It
// returns both if the route exists and does not accept the client, because
// statistics need the class of the route.
func (t *Table) route(hello Hello) (*target, *refusal) {
	if len(hello.SNI) == 0 {
		return nil, &refusal{reason: ReasonNoSNI, err: errors.New("the ClientHello has no server_name")}
	}
	to := t.find(hello.SNI)
	if to == nil {
		return nil, &refusal{reason: ReasonUnknownSNI, sni: string(hello.SNI)}
	}
	if !to.accepts(hello) {
		return to, &refusal{reason: ReasonProtocol, sni: string(hello.SNI),
			err: fmt.Errorf("it offers %s", describeALPN(hello))}
	}
	return to, nil
}

// accepts reports whether the client offers a protocol of the route.
func (t *target) accepts(hello Hello) bool {
	if len(t.Protocols) == 0 {
		return true
	}
	for id := range hello.ALPN() {
		if slices.Contains(t.Protocols, string(id)) {
			return true
		}
	}
	return false
}

// describeALPN lists the first protocols that a client offers, for the log.
func describeALPN(hello Hello) string {
	const most = 4
	var ids []string
	for id := range hello.ALPN() {
		if len(ids) == most {
			ids = append(ids, "...")
			break
		}
		ids = append(ids, strconv.Quote(clip(string(id))))
	}
	if ids == nil {
		return "none"
	}
	return strings.Join(ids, ", ")
}

// CheckRoute returns every fault of a route, each with the name of the route.
func CheckRoute(r Route) error {
	var errs []error
	if err := checkMatch(r.Match); err != nil {
		errs = append(errs, fmt.Errorf("route %q: %w", r.Match, err))
	}
	if len(r.To) == 0 {
		errs = append(errs, fmt.Errorf("route %q has no address: give it at least one host:port", r.Match))
	}
	if len(r.To) > maxTo {
		return errors.Join(append(errs, fmt.Errorf("route %q has %d addresses: at most %d", r.Match, len(r.To),
			maxTo))...)
	}
	for i, to := range r.To {
		if err := netaddr.CheckHostPort(to); err != nil {
			errs = append(errs, fmt.Errorf("route %q: %w", r.Match, err))
		} else if slices.Contains(r.To[:i], to) {
			errs = append(errs, fmt.Errorf("route %q has address %q twice", r.Match, to))
		}
	}
	for _, id := range r.Protocols {
		if id == "" || len(id) > maxProtocol {
			errs = append(errs, fmt.Errorf(
				"route %q: protocol %q has %d bytes; an id (ALPN) has 1 to %d", r.Match, id, len(id), maxProtocol))
		}
	}
	return errors.Join(errs...)
}

func checkMatch(m string) error {
	name := strings.TrimPrefix(normalName(m), "*.")
	if _, err := netip.ParseAddr(name); err == nil {
		return errors.New("a ClientHello does not name an IP address; write a DNS name")
	}
	if err := netaddr.CheckDNSName(name); err != nil {
		return fmt.Errorf("%w; write a name that clients send, or *.suffix", err)
	}
	return nil
}
