// SPDX-License-Identifier: MPL-2.0

package subprocess

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// PKI is a CA for one demo or test, with a directory for its certificates.
type PKI struct {
	// Now is the time at which Issue creates certificates. Zero: the present.
	Now time.Time

	dir, domain string
	ca          tlsutil.KeyPair
}

// NewPKI creates a CA for domain (default tlsutil.DefaultDomain) in the new
// directory dir.
func NewPKI(dir, domain string) (*PKI, error) { return NewPKIAt(dir, domain, time.Time{}) }

// NewPKIAt is NewPKI at another time than the present.
func NewPKIAt(dir, domain string, now time.Time) (*PKI, error) {
	ca, err := tlsutil.CreateCA(tlsutil.CARequest{Domain: domain, Days: 30, Now: now})
	if err != nil {
		return nil, fmt.Errorf("create CA: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create directory of certificates: %w", err)
	}
	p := &PKI{Now: now, dir: dir, domain: domain, ca: ca}
	if err := os.WriteFile(p.CAFile(), ca.Cert, 0o600); err != nil {
		return nil, fmt.Errorf("write CA: %w", err)
	}
	return p, nil
}

// CAFile returns the path of the CA certificate.
func (p *PKI) CAFile() string { return filepath.Join(p.dir, "ca.pem") }

// Issue creates a certificate for loopback addresses and ips, valid for a week,
// and writes the certificate and its key to files.
func (p *PKI) Issue(role tlsutil.Role, dc, node string, ips ...net.IP) (tlsutil.Files, error) {
	pair, err := tlsutil.CreateCert(tlsutil.CertRequest{
		Role: role, DC: dc, Node: node, Domain: p.domain, IPs: ips, CA: p.ca, Days: 7, Now: p.Now,
	})
	if err != nil {
		return tlsutil.Files{}, fmt.Errorf("create certificate of %s/%s/%s: %w", role, dc, node, err)
	}
	base := filepath.Join(p.dir, fmt.Sprintf("%s-%s-%s", dc, role, node))
	f := tlsutil.Files{CA: p.CAFile(), Cert: base + ".pem", Key: base + "-key.pem"}
	for path, b := range map[string][]byte{f.Cert: pair.Cert, f.Key: pair.Key} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			return tlsutil.Files{}, fmt.Errorf("write certificate: %w", err)
		}
	}
	return f, nil
}
