// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wanfed/wanfed/internal/broadcast"
)

// Files are the paths of the PEM files of an Identity. A further file is
// optional: the revocation lists next to the CA file (RevocationFile).
type Files struct {
	// CA is a file with one or more CA certificates. While a CA is replaced, it
	// has the old and the new CA.
	CA string
	// Cert is a file with the certificate, followed by its intermediates.
	Cert string
	// Key is a file with the private key.
	Key string
}

// Identity has the certificate of a process, its key, and the trusted CAs. It
// can be reloaded at any time. Each handshake uses the credentials of the last
// reload. All methods may be called from any goroutine.
type Identity struct {
	files  Files
	domain string
	logger *slog.Logger

	applying sync.Mutex                  // held by ApplyTrust and IfTrust, before reload
	reload   sync.Mutex                  // held during a reload, not during handshakes
	current  atomic.Pointer[credentials] // written with reload held
	changed  broadcast.Broadcast         // after each change of current

	revoked    atomic.Pointer[revocations] // written with reload held; nil: none
	generation atomic.Uint64               // grows after each change of current or revoked
	conns      openConns
	listed     broadcast.Broadcast          // after each change of revoked
	trust      atomic.Pointer[appliedTrust] // written with reload held; nil: none
	trusts     broadcast.Broadcast          // after each change of trust

	renewalMu sync.Mutex
	renewal   Renewal
}

// Load reads the files and checks that handshakes with them can succeed:
//
//   - The files are readable PEM, and the certificate belongs to the key.
//   - The chain verifies against the CA now, for the uses of the role: servers
//     and gateways accept and dial, clients and operators dial.
//   - The certificate identifies one peer of domain.
//
// An error has the file, the fault and the remedy. If group or others may read
// the key file, Load logs a warning. A nil logger logs nothing.
func Load(f Files, domain string, logger *slog.Logger) (*Identity, error) {
	if err := CheckDomain(domain); err != nil {
		return nil, fmt.Errorf("domain: %w", err)
	}
	logger = cmp.Or(logger, slog.New(slog.DiscardHandler))
	i := &Identity{files: f, domain: strings.ToLower(domain), logger: logger}
	i.conns.sooner = make(chan struct{}, 1)
	raw, err := readRaw(f)
	if err != nil {
		return nil, err
	}
	m, err := i.parse(raw)
	if err != nil {
		return nil, err
	}
	i.current.Store(m)
	if len(raw.crl) > 0 {
		if _, err := i.addRevocations(raw.crl); err != nil {
			return nil, fmt.Errorf("revocation list file %s %w", RevocationFile(f.CA), err)
		}
	}
	i.warnKeyMode()
	return i, nil
}

// Peer returns the peer that the certificate identifies.
func (i *Identity) Peer() Peer { return i.current.Load().peer }

// Leaf returns the certificate. The caller must not change it.
func (i *Identity) Leaf() *x509.Certificate { return i.current.Load().cert.Leaf }

// Expiry returns the time at which no chain from the current certificate to a
// CA is valid any more.
func (i *Identity) Expiry() time.Time { return i.current.Load().ends.NotAfter }

// Domain returns the domain of names, in lower case.
func (i *Identity) Domain() string { return i.domain }

// VerifySubject returns an error unless the certificate identifies the peer of
// role, node and dc. The certificate of a server or gateway must also have the
// shared name <role>.<dc>.<domain>. The error has the command that creates the
// right certificate.
func (i *Identity) VerifySubject(role Role, node, dc string) error {
	return i.current.Load().verifySubject(filepath.Base(i.files.Cert), Peer{Role: role, Node: node, DC: dc}, i.domain)
}

func (m *credentials) verifySubject(file string, want Peer, domain string) error {
	reason := ""
	shared := name(want.Role, "", want.DC, domain)
	switch {
	case m.peer == want && want.Role.accepts() && !hasName(m.cert.Leaf, shared):
		return fmt.Errorf("cert %s has no SAN %q; make one with: %s", file, shared, createCommand(want, domain))
	case m.peer == want:
		return nil
	case m.peer.DC != want.DC:
		reason = fmt.Sprintf(" (it is for datacenter %s: %v)", m.peer.DC, m.peer)
	case m.peer.Role != want.Role:
		reason = fmt.Sprintf(" (its role is %s: %v)", m.peer.Role, m.peer)
	default:
		reason = fmt.Sprintf(" (it is for node %s: %v)", m.peer.Node, m.peer)
	}
	return fmt.Errorf("cert %s has no SAN %q%s; make one with: %s",
		file, name(want.Role, want.Node, want.DC, domain), reason, createCommand(want, domain))
}

func hasName(leaf *x509.Certificate, want string) bool {
	return slices.ContainsFunc(leaf.DNSNames, func(s string) bool {
		return strings.EqualFold(strings.TrimSuffix(s, "."), want)
	})
}

// createCommand returns the command that creates a certificate for p.
func createCommand(p Peer, domain string) string {
	return fmt.Sprintf("wanfed tls cert create --%s --datacenter %s --node %s%s", p.Role, p.DC, p.Node,
		domainFlag(domain))
}

func domainFlag(domain string) string {
	if domain == DefaultDomain {
		return ""
	}
	return " --domain " + domain
}

// Changed returns a channel that is closed when new credentials are in use.
func (i *Identity) Changed() <-chan struct{} { return i.changed.Wait() }

// Reload reads the files again. After an error the old credentials stay in use.
// Reload closes the open connections of peers whose certificates are no longer
// valid. A certificate of another peer is an error, because a process cannot
// change its identity. A certificate without the shared name (see VerifySubject) is an
// error if the old certificate had that name.
func (i *Identity) Reload() error {
	_, err := i.reloadChanged()
	return err
}

// reloadChanged implements Reload. changed reports whether new credentials are
// in use.
func (i *Identity) reloadChanged() (changed bool, err error) {
	i.reload.Lock()
	defer i.reload.Unlock()
	raw, err := readRaw(i.files)
	if err != nil {
		return false, err
	}
	changed, err = i.reloadCredentials(raw)
	listed := false
	if err == nil && len(raw.crl) > 0 {
		if listed, err = i.addRevocations(raw.crl); err != nil {
			err = fmt.Errorf("revocation list file %s %w", RevocationFile(i.files.CA), err)
		}
	}
	if changed || listed {
		i.trustChanged()
	}
	if changed {
		i.conns.refreshAll(time.Now())
	}
	return changed, err
}

// trustChanged closes the open connections of peers that the present CAs and
// revocation lists refuse.
func (i *Identity) trustChanged() {
	i.generation.Add(1)
	i.closeInvalid(time.Now())
}

// reloadCredentials uses the CA, certificate and key of raw if they differ from
// the current ones.
func (i *Identity) reloadCredentials(raw rawFiles) (changed bool, err error) {
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
		return false, fmt.Errorf("cert %s is now that of %v, not of %v: kept the old one; "+
			"restart the process if that is intended", file, m.peer, old.peer)
	}
	if old.verifySubject(file, old.peer, i.domain) == nil {
		if err := m.verifySubject(file, m.peer, i.domain); err != nil {
			return false, fmt.Errorf("kept the old certificate: %w", err)
		}
	}
	m.retire(old, time.Now())
	i.current.Store(m)
	i.changed.Notify()
	return true, nil
}
