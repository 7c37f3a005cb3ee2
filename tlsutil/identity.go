// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"crypto/x509"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Files are the paths of an identity's PEM files. CA may hold several certificates, old and new, while a CA is replaced;
// Cert holds the own certificate first, then the intermediates, if any.
type Files struct{ CA, Cert, Key string }

// Identity is a process's own certificate, its key, and the CA it trusts. It can be reloaded while in use: each handshake
// takes the newest. All methods may be called from any goroutine.
type Identity struct {
	files  Files
	domain string
	logger *slog.Logger

	reload  sync.Mutex               // serializes Reload; never held by a handshake
	current atomic.Pointer[material] // written under reload
}

// Load reads the files and checks all that would make handshakes fail later: that they are readable PEM, that certificate
// and key belong together, that the chain verifies against the CA for what the certificate's role does (servers and
// gateways accept and dial, clients and operators dial), that nothing is expired or not yet valid, and that the
// certificate names one peer of domain. Errors name the file, the fault and the remedy. A key file that group or others
// may read is only logged; a nil logger logs nothing.
func Load(f Files, domain string, logger *slog.Logger) (*Identity, error) {
	if err := CheckDomain(domain); err != nil {
		return nil, fmt.Errorf("domain: %w", err)
	}
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	i := &Identity{files: f, domain: strings.ToLower(domain), logger: logger}
	raw, err := readRaw(f)
	if err != nil {
		return nil, err
	}
	m, err := i.parse(raw)
	if err != nil {
		return nil, err
	}
	i.current.Store(m)
	i.warnKeyMode()
	return i, nil
}

// Peer is who this process is to others.
func (i *Identity) Peer() Peer { return i.current.Load().peer }

// Leaf is the own certificate. The caller must not change it.
func (i *Identity) Leaf() *x509.Certificate { return i.current.Load().cert.Leaf }

// Domain is the domain of names on the wire, in lower case.
func (i *Identity) Domain() string { return i.domain }

// VerifySubject returns an error, with the command that makes the right certificate, when the certificate is not that of
// role, node and dc, or lacks the name of any server (gateway) of dc.
func (i *Identity) VerifySubject(role Role, node, dc string) error {
	return i.current.Load().checkHolder(filepath.Base(i.files.Cert), Peer{Role: role, Node: node, DC: dc}, i.domain)
}

func (m *material) checkHolder(file string, want Peer, domain string) error {
	why := ""
	anyName := name(want.Role, "", want.DC, domain)
	switch {
	case m.peer == want && want.Role.accepts() && !hasName(m.cert.Leaf, anyName):
		return fmt.Errorf("cert %s has no SAN %q; make one with: %s", file, anyName, makeCommand(want, domain))
	case m.peer == want:
		return nil
	case m.peer.DC != want.DC:
		why = fmt.Sprintf(" (it is for datacenter %s: %v)", m.peer.DC, m.peer)
	case m.peer.Role != want.Role:
		why = fmt.Sprintf(" (it is a %s's: %v)", m.peer.Role, m.peer)
	default:
		why = fmt.Sprintf(" (it is for node %s: %v)", m.peer.Node, m.peer)
	}
	return fmt.Errorf("cert %s has no SAN %q%s; make one with: %s",
		file, name(want.Role, want.Node, want.DC, domain), why, makeCommand(want, domain))
}

func hasName(leaf *x509.Certificate, want string) bool {
	return slices.ContainsFunc(leaf.DNSNames, func(s string) bool { return strings.EqualFold(strings.TrimSuffix(s, "."), want) })
}

// makeCommand is the command that makes p's certificate.
func makeCommand(p Peer, domain string) string {
	return fmt.Sprintf("wanfed tls cert create --%s --dc %s --node %s%s", p.Role, p.DC, p.Node, domainFlag(domain))
}

func domainFlag(domain string) string {
	if domain == DefaultDomain {
		return ""
	}
	return " --domain " + domain
}

// Reload reads the files again. On an error the old identity stays in use. A certificate of another peer is refused: who a
// process is does not change while it runs. So is one that lost the name of any server (gateway) of its datacenter.
func (i *Identity) Reload() error {
	_, err := i.reloadChanged()
	return err
}

// reloadChanged is Reload that also says whether the files differ from what was in use.
func (i *Identity) reloadChanged() (bool, error) {
	i.reload.Lock()
	defer i.reload.Unlock()
	raw, err := readRaw(i.files)
	if err != nil {
		return false, err
	}
	old := i.current.Load()
	if raw.sum() == old.sum {
		return false, nil
	}
	m, err := i.parse(raw)
	if err != nil {
		return false, err
	}
	file := filepath.Base(i.files.Cert)
	if m.peer != old.peer {
		return false, fmt.Errorf("cert %s is now that of %v, not of %v: kept the old one; restart the process if that is meant",
			file, m.peer, old.peer)
	}
	if old.checkHolder(file, old.peer, i.domain) == nil {
		if err := m.checkHolder(file, m.peer, i.domain); err != nil {
			return false, fmt.Errorf("kept the old certificate: %w", err)
		}
	}
	i.current.Store(m)
	return true, nil
}
