// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// DefaultDomain is the domain of names on the wire where none is configured.
const DefaultDomain = "wanfed"

// Role is what a certificate's holder is. It stands in the certificate's names: <node>.<role>.<dc>.<domain>.
type Role string

// The roles. A server may do everything inside its own datacenter and gossip with all; a gateway may read what gateways
// need; a client may read; a cli certificate is an operator's.
const (
	RoleServer   Role = "server"
	RoleGateway  Role = "gateway"
	RoleClient   Role = "client"
	RoleOperator Role = "cli"
)

// Roles lists every role, in the order of their power over a datacenter's data path.
var Roles = []Role{RoleServer, RoleGateway, RoleClient, RoleOperator}

// accepts says whether holders of the role accept connections; the others only dial.
func (r Role) accepts() bool { return r == RoleServer || r == RoleGateway }

// Peer is who a verified certificate says its holder is. Nothing in a payload overrides it.
type Peer struct {
	Role Role
	Node string
	DC   string
}

// String gives role/dc/node, as logs and errors show it.
func (p Peer) String() string { return string(p.Role) + "/" + p.DC + "/" + p.Node }

// ServerName is the SNI, and the SAN, of server node in datacenter dc; of any server there when node is empty.
func ServerName(node, dc, domain string) string { return name(RoleServer, node, dc, domain) }

func name(role Role, node, dc, domain string) string {
	s := string(role) + "." + dc + "." + domain
	if node != "" {
		s = node + "." + s
	}
	return s
}

// ErrNoPeerName says that a certificate has no name of the form <node>.<role>.<dc>.<domain>.
var ErrNoPeerName = errors.New("certificate has no SAN of the form <node>.<server|gateway|client|cli>.<dc>.<domain>")

// ErrAmbiguousPeer says that a certificate has the names of two peers.
var ErrAmbiguousPeer = errors.New("certificate names two peers")

// PeerFromCert reads role, node and datacenter from the names of a certificate that was already verified. A certificate with
// names of two different peers is refused: it would be both.
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
		return Peer{}, fmt.Errorf("%w (domain %q; its SANs: %s)", ErrNoPeerName, domain, strings.Join(leaf.DNSNames, ", "))
	}
	return found, nil
}

// ParseName splits [<node>.]<role>.<dc>.<domain>. Case (of ASCII letters) and one trailing dot do not matter. ok is false
// for any other name.
func ParseName(s, domain string) (p Peer, ok bool) {
	if strings.ContainsFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) {
		return Peer{}, false // ToLower would make ASCII letters of some: the Kelvin sign becomes a k
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
	switch p.Role {
	case RoleServer, RoleGateway, RoleClient, RoleOperator:
	default:
		return Peer{}, false
	}
	if CheckLabel(p.DC) != nil {
		return Peer{}, false
	}
	return p, true
}

// CheckDomain says whether s can be the domain of names on the wire: DNS labels joined by dots, without a trailing dot, at
// most 100 characters, so that names of the longest nodes and datacenters stay within DNS's 253. Case does not matter.
func CheckDomain(s string) error {
	if len(s) > 100 {
		return fmt.Errorf("%q is longer than 100 characters", s)
	}
	for label := range strings.SplitSeq(strings.ToLower(s), ".") {
		if err := CheckLabel(label); err != nil {
			return fmt.Errorf("%q is no DNS name: %w", s, err)
		}
	}
	return nil
}

// CheckLabel says whether s can be the name of a node or of a datacenter: one DNS label (RFC 1123 section 2.1) in lower
// case, 1 to 63 of a-z, 0-9 and "-", not beginning or ending with "-".
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
			return fmt.Errorf("%q is no DNS label: %q is not one of a-z, 0-9, \"-\"", s, r)
		}
	}
	return nil
}
