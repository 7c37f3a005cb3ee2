// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// DefaultDomain is the default domain of names.
const DefaultDomain = "wanfed"

// Role is the role of a peer. Names in certificates contain the role:
// <node>.<role>.<dc>.<domain>.
type Role string

// The roles.
//
//   - A server has all permissions in its datacenter, and gossips with all
//     servers.
//   - A gateway may read the data that gateways need.
//   - A client may read.
//   - An operator may write.
//   - A sync daemon may read, and writes tasks, their runs and their states.
//   - A user may do what the policy with the name of the user permits. Without a
//     policy, a user may do nothing.
//
// Package policy defines the rights of each role.
const (
	RoleServer   Role = "server"
	RoleGateway  Role = "gateway"
	RoleClient   Role = "client"
	RoleOperator Role = "cli"
	RoleSync     Role = "sync"
	RoleUser     Role = "user"
)

// RoleAnonymous is the role of a caller without a certificate: a process on the
// machine of a server. No certificate has this role.
const RoleAnonymous Role = "anonymous"

// Roles lists all roles.
var Roles = []Role{RoleServer, RoleGateway, RoleClient, RoleOperator, RoleSync, RoleUser}

// String returns the name of the role in text: "operator" for RoleOperator.
// string(r) is the name in certificates.
func (r Role) String() string {
	if r == RoleOperator {
		return "operator"
	}
	return string(r)
}

// accepts reports whether peers of the role accept connections. Peers of other
// roles only dial.
func (r Role) accepts() bool { return r == RoleServer || r == RoleGateway }

// Peer is the identity in a verified certificate. No field of a message
// overrides the identity.
type Peer struct {
	Role Role
	Node string
	DC   string
}

// String returns role/dc/node.
func (p Peer) String() string { return string(p.Role) + "/" + p.DC + "/" + p.Node }

// ServerName returns the SNI and SAN of server node in datacenter dc. If node
// is empty, the name is valid for all servers of dc.
func ServerName(node, dc, domain string) string { return name(RoleServer, node, dc, domain) }

func name(role Role, node, dc, domain string) string {
	s := string(role) + "." + dc + "." + domain
	if node != "" {
		s = node + "." + s
	}
	return s
}

// ErrNoPeerName means that a certificate has no name of the form
// <node>.<role>.<dc>.<domain>.
var ErrNoPeerName = errors.New("certificate has no SAN of the form <node>.<server|gateway|client|cli|sync|user>.<dc>.<domain>")

// ErrAmbiguousPeer means that a certificate has the names of two peers.
var ErrAmbiguousPeer = errors.New("certificate names two peers")

// PeerFromCert returns the peer that a verified certificate identifies. Names
// of two different peers are an error.
func PeerFromCert(leaf *x509.Certificate, domain string) (Peer, error) {
	var found Peer
	for _, san := range leaf.DNSNames {
		p, ok := ParseName(san, domain)
		if !ok || p.Node == "" {
			continue
		}
		if found != (Peer{}) && found != p {
			return Peer{}, fmt.Errorf("%w, %v and %v", ErrAmbiguousPeer, found, p)
		}
		found = p
	}
	if found == (Peer{}) {
		return Peer{}, fmt.Errorf("%w (domain %q; its SANs: %s)", ErrNoPeerName, domain,
			strings.Join(leaf.DNSNames, ", "))
	}
	return found, nil
}

// ParseName splits a name of the form [<node>.]<role>.<dc>.<domain>. It ignores
// the case of ASCII letters and one trailing dot. ok is false for a name of
// another form.
func ParseName(s, domain string) (p Peer, ok bool) {
	if strings.ContainsFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) {
		return Peer{}, false // ToLower converts some characters to ASCII letters: the Kelvin sign becomes a k
	}
	s = strings.ToLower(strings.TrimSuffix(s, "."))
	s, ok = strings.CutSuffix(s, "."+strings.ToLower(domain))
	if !ok {
		return Peer{}, false
	}
	labels := strings.Split(s, ".")
	switch len(labels) {
	case 2:
		p = Peer{Role: Role(labels[0]), DC: labels[1]}
	case 3:
		p = Peer{Node: labels[0], Role: Role(labels[1]), DC: labels[2]}
		if CheckLabel(p.Node) != nil {
			return Peer{}, false
		}
	default:
		return Peer{}, false
	}
	if !slices.Contains(Roles, p.Role) || CheckLabel(p.DC) != nil {
		return Peer{}, false
	}
	return p, true
}

// CheckDomain returns an error unless s can be the domain of names: DNS labels
// separated by dots, in upper or lower case, without a trailing dot. A domain
// has at most 100 characters, because DNS limits the length of a name to 253.
func CheckDomain(s string) error { return checkDNSName(s, s, 100) }

// checkDNSName returns an error unless s has at most limit characters, and
// labels consists of valid labels. labels is s, in which the caller has
// replaced the further characters that it permits, such as underscores.
func checkDNSName(s, labels string, limit int) error {
	if len(s) > limit {
		return fmt.Errorf("%q is longer than %d characters", s, limit)
	}
	for label := range strings.SplitSeq(strings.ToLower(labels), ".") {
		if err := CheckLabel(label); err != nil {
			return fmt.Errorf("%q is not a DNS name: %w", s, err)
		}
	}
	return nil
}

// CheckLabel returns an error unless s can be the name of a node or a
// datacenter: a DNS label (RFC 1123 section 2.1) in lower case. A label has 1
// to 63 of the characters a-z, 0-9 and "-", and does not begin or end with "-".
func CheckLabel(s string) error {
	switch {
	case s == "":
		return errors.New("name is empty")
	case len(s) > 63:
		return fmt.Errorf("%q is longer than 63 characters", s)
	case s[0] == '-' || s[len(s)-1] == '-':
		return fmt.Errorf("%q begins or ends with \"-\"", s)
	}
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' {
			return fmt.Errorf("%q is not a DNS label: %q is not one of a-z, 0-9, \"-\"", s, r)
		}
	}
	return nil
}

type peerKey struct{}

// WithPeer returns a context in which p is the caller of a request. It must be
// called only after a certificate of p was verified, or to grant the
// permissions of p to a caller without a certificate.
func WithPeer(ctx context.Context, p Peer) context.Context {
	return context.WithValue(ctx, peerKey{}, p)
}

// PeerFromContext returns the peer of WithPeer. ok is false if ctx has no peer.
func PeerFromContext(ctx context.Context) (p Peer, ok bool) {
	p, ok = ctx.Value(peerKey{}).(Peer)
	return p, ok
}
