// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"cmp"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/atomicfile"
	"github.com/wanfed/wanfed/tlsutil"
)

// Names of further files of an Authority while the CA of all datacenters is
// replaced: the new CA, and the old one after the new one issues.
const (
	nextRootCert = "root-next.pem"
	nextRootKey  = "root-next-key.pem"
	oldRootCert  = "root-old.pem"
	oldRootKey   = "root-old-key.pem"
)

// rootFiles are the pairs of files of CAs of all datacenters.
var rootFiles = [][2]string{{RootCert, RootKey}, {nextRootCert, nextRootKey}, {oldRootCert, oldRootKey}}

// rootPair is a CA of all datacenters with its key.
type rootPair struct {
	tlsutil.KeyPair
	cert   *x509.Certificate
	signer crypto.Signer
}

// parseKey returns the key in a key file.
func (a Authority) parseKey(text []byte) (crypto.Signer, error) { return a.keys().Parse(text) }

// encodeKey returns the content of a key file, like CAKeys.Encrypt.
func (a Authority) encodeKey(key crypto.Signer) ([]byte, error) {
	text, err := tlsutil.EncodeKey(key)
	if err != nil {
		return nil, err
	}
	return a.keys().Encrypt(text)
}

// roots returns the CAs of all datacenters in the files. The first one issues.
func (a Authority) roots() (all []rootPair, _ error) {
	for i, f := range rootFiles {
		p := rootPair{}
		var err error
		if p.Cert, err = readIfExists(filepath.Join(a.Dir, f[0])); err == nil {
			p.Key, err = readIfExists(filepath.Join(a.Dir, f[1]))
		}
		if err != nil {
			return nil, fmt.Errorf("read the CA: %w", err)
		}
		if (p.Cert == nil || p.Key == nil) && i > 0 {
			continue
		}
		if i == 0 {
			p.Cert, p.signer, err = a.Signer(RoleDatacenter)
		} else if p.signer, err = a.parseKey(p.Key); err != nil {
			err = fmt.Errorf("CA key %s %w", f[1], err)
		}
		if err == nil {
			p.cert, err = certOf(p.Cert, p.signer)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// StartTrust creates a new CA of all datacenters in the files, unless they have
// one, and returns the first phase of the replacement, with a number.
func (a Authority) StartTrust(number uint64) (t tlsutil.Trust, _ error) {
	all, err := a.roots()
	if err != nil {
		return t, err
	}
	if len(all) == 1 {
		p, err := tlsutil.CreateCA(tlsutil.CARequest{Domain: a.Domain})
		var text []byte
		if err == nil {
			text, err = a.keys().Encrypt(p.Key)
		}
		if err == nil { // the pair exists when the certificate does
			err = atomicfile.WriteFile(filepath.Join(a.Dir, nextRootKey), text, 0o600)
		}
		if err == nil {
			err = atomicfile.WriteFile(filepath.Join(a.Dir, nextRootCert), p.Cert, 0o644)
		}
		if err != nil {
			return t, fmt.Errorf("create the new CA: %w", err)
		}
		if all, err = a.roots(); err != nil {
			return t, err
		}
	}
	old, next := all[0], all[1]
	return tlsutil.Trust{
		Number: number, Phase: tlsutil.PhaseAdd, Datacenter: a.DC,
		Keep: tlsutil.Fingerprint(next.cert), Drop: tlsutil.Fingerprint(old.cert), Issuer: tlsutil.Fingerprint(old.cert),
		Trusted: []string{tlsutil.EncodeCert(old.cert), tlsutil.EncodeCert(next.cert)},
	}, nil
}

// SignTrust signs t with the keys of all CAs in the files.
func (a Authority) SignTrust(t tlsutil.Trust) (tlsutil.SignedTrust, error) {
	all, err := a.roots()
	if err != nil {
		return tlsutil.SignedTrust{}, err
	}
	var keys []crypto.Signer
	for i, p := range all {
		if !slices.ContainsFunc(all[:i], func(o rootPair) bool { return o.cert.Equal(p.cert) }) {
			keys = append(keys, p.signer)
		}
	}
	return tlsutil.SignTrust(t, keys...)
}

// UseRoot makes the CA with a fingerprint the one that issues. The other one
// stays in the files.
func (a Authority) UseRoot(fingerprint string) error {
	all, err := a.roots()
	if err != nil || tlsutil.Fingerprint(all[0].cert) == fingerprint {
		return err
	}
	i := slices.IndexFunc(all, func(p rootPair) bool { return tlsutil.Fingerprint(p.cert) == fingerprint })
	if i < 0 {
		return fmt.Errorf("%w CAs of datacenters below the CA %.16s…: %s has no key of it", ErrNoCA, fingerprint, a.Dir)
	}
	if !slices.ContainsFunc(all[1:], func(p rootPair) bool { return p.cert.Equal(all[0].cert) }) {
		err := atomicfile.WriteFile(filepath.Join(a.Dir, oldRootKey), all[0].Key, 0o600)
		if err == nil {
			err = atomicfile.WriteFile(filepath.Join(a.Dir, oldRootCert), all[0].Cert, 0o644)
		}
		if err != nil {
			return fmt.Errorf("keep the old CA: %w", err)
		}
	}
	return ReplaceCA(a.Dir, RootCert, RootKey, all[i].KeyPair)
}

// EndRotation deletes the files of the CA that does not issue, with its key. It is
// an error if the CA with the fingerprint keep is not the one that issues.
func (a Authority) EndRotation(keep string) error {
	all, err := a.roots()
	if err != nil {
		return err
	}
	if tlsutil.Fingerprint(all[0].cert) != keep {
		return fmt.Errorf("%s in %s is not the CA that stays; no key was deleted", RootCert, a.Dir)
	}
	var errs []error
	for _, f := range slices.Concat(rootFiles[1][:], rootFiles[2][:]) {
		if err := os.Remove(filepath.Join(a.Dir, f)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// NextTrust returns the phase after t.
func NextTrust(t tlsutil.Trust) tlsutil.Trust {
	t.Number++
	switch t.Phase {
	case tlsutil.PhaseAdd:
		t.Phase, t.Issuer = tlsutil.PhaseReissue, t.Keep
	case tlsutil.PhaseReissue:
		return remove(t)
	default:
		t.Phase = tlsutil.PhaseDone
	}
	return t
}

// remove returns t in the phase that removes t.Drop.
func remove(t tlsutil.Trust) tlsutil.Trust {
	t.Phase = tlsutil.PhaseRemove
	t.Trusted = slices.DeleteFunc(slices.Clone(t.Trusted), func(text string) bool {
		certs, err := tlsutil.ParseCerts([]byte(text))
		return err == nil && tlsutil.Fingerprint(certs[0]) == t.Drop
	})
	return t
}

// AbortTrust returns the phase after t that goes back to the old CA. It fails if
// the old CA is being removed.
func AbortTrust(t tlsutil.Trust) (tlsutil.Trust, error) {
	switch {
	case t.Aborted:
		return t, nil
	case t.Removes():
		return t, fmt.Errorf("phase %s cannot be aborted: processes do not trust the old CA any more; "+
			"complete it, and replace the new CA in turn", t.Phase)
	}
	before := t.Phase
	t.Number++
	t.Aborted, t.Keep, t.Drop, t.Issuer, t.Phase = true, t.Drop, t.Keep, t.Drop, tlsutil.PhaseReissue
	if before == tlsutil.PhaseAdd { // no certificate is below the new CA
		return remove(t), nil
	}
	return t, nil
}

// DatacenterReport is what a datacenter reports about its certificates.
type DatacenterReport struct {
	Datacenter string
	Response   *pb.ListCertificatesResponse
	Err        error // the datacenter did not respond
}

// Waiting is a process for which a phase waits.
type Waiting struct {
	Datacenter string `json:"datacenter"`
	Role       string `json:"role,omitempty"` // empty: the whole datacenter
	Node       string `json:"node,omitempty"`
	Reason     string `json:"reason"`
}

// String returns a line for display.
func (w Waiting) String() string {
	return strings.Join(strings.Fields(w.Datacenter+" "+w.Role+" "+w.Node), " ") + ": " + w.Reason
}

// Acknowledged returns the number of servers and gateways that have completed the
// phase of t, and what the phase waits for.
func Acknowledged(t tlsutil.Trust, reports []DatacenterReport) (done int, waiting []Waiting) {
	responds := map[string]bool{}
	for _, r := range reports {
		responds[r.Datacenter] = r.Err == nil
	}
	var all []*pb.CertificateInUse
	for _, r := range reports {
		if r.Err != nil {
			waiting = append(waiting, Waiting{Datacenter: r.Datacenter, Reason: "does not respond: " + r.Err.Error()})
		}
		for _, node := range r.Response.GetUnreachable() {
			waiting = append(waiting, Waiting{r.Datacenter, tlsutil.RoleServer.String(), node, "does not respond"})
		}
		for _, m := range r.Response.GetMissing() {
			if m.Role == string(tlsutil.RoleServer) && slices.Contains(r.Response.GetUnreachable(), m.Node) {
				continue
			}
			waiting = append(waiting, Waiting{r.Datacenter, tlsutil.Role(m.Role).String(), m.Node,
				"has not reported its certificate: it is down, or of an earlier version"})
		}
		for _, c := range r.Response.GetCertificates() {
			// Another datacenter cannot acknowledge for a datacenter. An operator may
			// have connections only there.
			if c.GetDatacenter() == r.Datacenter || len(c.GetTrusts()) == 0 && !responds[c.GetDatacenter()] ||
				c.GetRole() == string(tlsutil.RoleOperator) && acknowledges(t, c) != "" {
				all = append(all, c)
			}
		}
	}
	for _, c := range MergeCertificates(all) {
		reason := acknowledges(t, c)
		reporting := c.Role == string(tlsutil.RoleServer) || c.Role == string(tlsutil.RoleGateway)
		switch {
		case reporting && len(c.Trusts) == 0: // its datacenter has it among those that are missing
		case reason != "":
			waiting = append(waiting, Waiting{c.Datacenter, tlsutil.Role(c.Role).String(), c.Node, reason})
		case reporting:
			done++
		}
	}
	slices.SortStableFunc(waiting, func(a, b Waiting) int { return cmp.Compare(a.Datacenter, b.Datacenter) })
	return done, waiting
}

// acknowledges returns why the phase of t waits for the holder of c, or "".
func acknowledges(t tlsutil.Trust, c *pb.CertificateInUse) string {
	role := tlsutil.Role(c.Role)
	reports := len(c.Trusts) > 0
	switch {
	case reports && t.Phase != tlsutil.PhaseDone && c.TrustNumber < t.Number:
		return "has not applied the change yet"
	case t.Phase == tlsutil.PhaseReissue && c.Root != t.Issuer && c.Renews:
		return "its certificate is not reissued yet"
	case t.Phase == tlsutil.PhaseReissue && c.Root != t.Issuer && role == tlsutil.RoleOperator:
		return "reissue its certificate on its machine: wanfed tls renew"
	case t.Phase == tlsutil.PhaseReissue && c.Root != t.Issuer:
		return "its certificate does not renew itself: replace it (wanfed tls cert create)"
	case reports && t.Phase == tlsutil.PhaseAdd && !slices.Contains(c.Trusts, t.Keep):
		return "does not trust the new CA yet"
	case reports && t.Removes() && slices.Contains(c.Trusts, t.Drop):
		return "still trusts the CA that is removed"
	}
	return ""
}
