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
)

// maxName is the length of the longest DNS name, in bytes (RFC 1035, section 2.3.4).
const maxName = 253

// maxProtocol is the length of the longest protocol id, in bytes (RFC 7301, section 3.1).
const maxProtocol = 255

// maxTo bounds the addresses of a route: an attempt goes through them in turn, and nobody waits for so many.
const maxTo = 1024

// Route says where connections for one name, or for all names below one, go.
type Route struct {
	// Match is an SNI ("server.dc2.wanfed") or "*.suffix", which stands for one or more labels before the suffix.
	Match string `json:"match"`
	// To are the addresses, host:port; the host is an IP address or a DNS name, resolved at each dial.
	To []string `json:"to"`
	// Ordered says that the first address is the best and the others are for when it fails. Else each connection goes to
	// the one that has the fewest open, of all routes of this gateway that lead there.
	Ordered bool `json:"ordered,omitempty"`
	// Protocols are ids of which a client must offer one (ALPN). Empty: it may offer what it likes.
	Protocols []string `json:"protocols,omitempty"`
	// ProxyProtocol says that the addresses want a PROXY header, version 2, before the hello. Of the client's address they
	// are told what this gateway knows.
	ProxyProtocol bool `json:"proxy_protocol,omitempty"`
}

// Table maps each SNI to its route. It is immutable. An exact name takes
// precedence over a wildcard, and a long wildcard over a short one.
type Table struct {
	exact, below map[string]*target // below: wildcards, by what follows "*."
}

// target is a route in a table.
type target struct {
	Route
	turn atomic.Uint32 // counts connections; who of equal addresses comes first moves on with it. It begins anywhere.
}

// start is the number of the address that is the next connection's first, if none has fewer connections, or inOrder.
func (t *target) start() int {
	if n := len(t.To); !t.Ordered && n > 1 {
		return int(t.turn.Add(1) % uint32(n))
	}
	return inOrder
}

// NewTable builds a table. Its error lists every fault of the routes, each with
// the name of the route.
func NewTable(routes []Route) (*Table, error) {
	t := &Table{exact: make(map[string]*target, len(routes)), below: map[string]*target{}}
	var errs []error
	for _, r := range routes {
		if err := CheckRoute(r); err != nil {
			errs = append(errs, err)
			continue
		}
		r.Match, r.To, r.Protocols = normalName(r.Match), slices.Clone(r.To), slices.Clone(r.Protocols)
		names, key := t.exact, r.Match
		if suffix, ok := strings.CutPrefix(r.Match, "*."); ok {
			names, key = t.below, suffix
		}
		if names[key] != nil {
			errs = append(errs, fmt.Errorf("route %q is there twice", r.Match))
			continue
		}
		e := &target{Route: r}
		e.turn.Store(rand.Uint32())
		names[key] = e
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return t, nil
}

// Lookup returns the route for an SNI, which need not be in normal form. Its cost does not depend on the number of routes.
// The caller must not change the addresses.
func (t *Table) Lookup(sni string) (Route, bool) {
	if e := t.find(normalBytes([]byte(sni))); e != nil {
		return e.Route, true
	}
	return Route{}, false
}

// find looks up a name in normal form.
func (t *Table) find(sni []byte) *target {
	if len(sni) > maxName { // it would cost a hash of the rest for each dot
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

// Len is the number of routes.
func (t *Table) Len() int { return len(t.exact) + len(t.below) }

// Routes lists the routes, sorted by name. The caller must not change the addresses.
func (t *Table) Routes() []Route {
	all := make([]Route, 0, t.Len())
	for _, in := range []map[string]*target{t.exact, t.below} {
		for _, e := range in {
			all = append(all, e.Route)
		}
	}
	slices.SortFunc(all, func(a, b Route) int { return strings.Compare(a.Match, b.Match) })
	return all
}

// CheckRoute returns everything that is wrong with one route, each fault naming it.
func CheckRoute(r Route) error {
	var errs []error
	if err := checkMatch(r.Match); err != nil {
		errs = append(errs, fmt.Errorf("route %q: %w", r.Match, err))
	}
	if len(r.To) == 0 {
		errs = append(errs, fmt.Errorf("route %q leads nowhere: give it at least one host:port", r.Match))
	}
	if len(r.To) > maxTo {
		return errors.Join(append(errs, fmt.Errorf("route %q has %d addresses: at most %d", r.Match, len(r.To), maxTo))...)
	}
	for i, to := range r.To {
		if err := CheckAddr(to); err != nil {
			errs = append(errs, fmt.Errorf("route %q: %w", r.Match, err))
		} else if slices.Contains(r.To[:i], to) {
			errs = append(errs, fmt.Errorf("route %q has address %q twice", r.Match, to))
		}
	}
	for _, id := range r.Protocols {
		if id == "" || len(id) > maxProtocol {
			errs = append(errs, fmt.Errorf("route %q: protocol %q has %d bytes; an id (ALPN) has 1 to %d", r.Match, id, len(id), maxProtocol))
		}
	}
	return errors.Join(errs...)
}

func checkMatch(m string) error {
	name := strings.TrimPrefix(normalName(m), "*.")
	if _, err := netip.ParseAddr(name); err == nil {
		return errors.New("clients name no IP address in a ClientHello; write a DNS name")
	}
	if err := checkName(name); err != nil {
		return fmt.Errorf("%w; write a name as clients ask for it, or *.suffix", err)
	}
	return nil
}

// CheckAddr says whether an address can be dialled: host:port with a port of 1 to 65535 and a host that is a DNS name or an
// IP address, but not an unspecified one.
func CheckAddr(addr string) error {
	i := strings.LastIndexByte(addr, ':')
	if i < 0 {
		return fmt.Errorf("address %q has no port: write host:port", addr)
	}
	host, port := addr[:i], addr[i+1:]
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("address %q: port %q is not a number from 1 to 65535", addr, port)
	}
	inner, bracketed := strings.CutPrefix(host, "[")
	if bracketed {
		inner, bracketed = strings.CutSuffix(inner, "]")
	}
	ip, err := netip.ParseAddr(inner)
	switch {
	case err == nil && ip.IsUnspecified():
		return fmt.Errorf("address %q stands for no machine: write the IP address or DNS name to dial", addr)
	case err == nil && ip.Is6() == bracketed:
		return nil
	case err == nil || strings.Contains(host, ":"):
		return fmt.Errorf("address %q: write IPv6 as [address]:port, and nothing else in brackets", addr)
	}
	if err := checkName(normalName(host)); err != nil {
		return fmt.Errorf("address %q: %w", addr, err)
	}
	return nil
}

// checkName wants a DNS name in normal form. Underscores are allowed: names of services have them.
func checkName(s string) error {
	if s == "" || len(s) > maxName {
		return fmt.Errorf("a name has 1 to %d characters", maxName)
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.IndexFunc(label, notInLabel) >= 0 {
			return fmt.Errorf("%q is not a DNS label: 1 to 63 of a-z, 0-9, \"-\" and \"_\", with no \"-\" at its ends", label)
		}
	}
	return nil
}

func notInLabel(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
}
