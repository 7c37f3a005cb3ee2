// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// MaxRevocationBytes limits the size of one revocation list in PEM. It is enough
// for about 600 certificates.
const MaxRevocationBytes = 32 << 10

// maxRevocationLists limits the lists in a file, and the issuers whose lists an
// Identity has.
const maxRevocationLists = 128

// pemRevocationList is the type of the PEM block of a revocation list.
const pemRevocationList = "X509 CRL"

// oidRevokedNames is the extension of a revocation list with revoked names:
// below 2.25 (ITU-T X.667), which needs no registration.
var oidRevokedNames = asn1.ObjectIdentifier{2, 25, 1735269437, 1, 1}

// RevokedName revokes the certificates that have a DNS name and were created
// before a time.
type RevokedName struct {
	Name   string    `asn1:"utf8" json:"name"`          // in lower case
	Before time.Time `asn1:"generalized" json:"before"` // exclusive; in UTC
}

// RevocationList is a verified list of revoked certificates (RFC 5280 section
// 5). It applies to the certificates below the CA that signed it.
type RevocationList struct {
	Issuer  *x509.Certificate
	Number  *big.Int             // grows with each list of the issuer
	Created time.Time            // in UTC
	Serials map[string]time.Time // by the serial number in hexadecimal: when it was revoked
	Names   []RevokedName

	raw []byte // DER
}

// ID identifies the issuer of the list: the checksum of its public key, 32
// hexadecimal digits.
func (l *RevocationList) ID() string { return keyID(l.Issuer) }

func keyID(ca *x509.Certificate) string {
	sum := sha256.Sum256(ca.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:16])
}

// PEM returns the list with the certificate of its issuer, as
// ParseRevocationLists reads them.
func (l *RevocationList) PEM() []byte {
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: l.Issuer.Raw}),
		pem.EncodeToMemory(&pem.Block{Type: pemRevocationList, Bytes: l.raw})...)
}

// RevokedError means that a certificate is revoked.
type RevokedError struct {
	Cert *x509.Certificate // the revoked certificate: that of the peer, or an intermediate
	List *RevocationList
	Name string // the revoked name; "": the serial number is revoked
}

func (e *RevokedError) Error() string {
	what := "serial " + e.Cert.SerialNumber.Text(16)
	if e.Name != "" {
		what = "name " + e.Name
	}
	return fmt.Sprintf("certificate of %s is revoked (%s, list %v of %s)", title(e.Cert), what, e.List.Number,
		e.List.Issuer.Subject)
}

// ParseRevocationLists returns the lists of a PEM file. A list is signed by a
// certificate of cas, or by a certificate in the file that cas permits to sign
// certificates. The error has all faults of the file. The other lists of a file
// with faults are returned.
func ParseRevocationLists(b []byte, cas []*x509.Certificate, now time.Time) ([]*RevocationList, error) {
	if limit := maxRevocationLists * MaxRevocationBytes; len(b) > limit {
		return nil, fmt.Errorf("has more than %d bytes", limit)
	}
	issuers := slices.Clone(cas)
	var lists [][]byte
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case "CERTIFICATE":
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, fmt.Errorf("certificate of an issuer: %w", err)
			}
			issuers = append(issuers, c)
		case pemRevocationList:
			lists = append(lists, block.Bytes)
		}
		if len(lists)+len(issuers)-len(cas) > 2*maxRevocationLists {
			return nil, fmt.Errorf("has more than %d lists", maxRevocationLists)
		}
	}
	if len(lists) == 0 {
		return nil, errors.New("has no revocation list: no line -----BEGIN X509 CRL-----; " +
			"make one with: wanfed tls revoke")
	}
	trusted := poolOf(cas)
	var out []*RevocationList
	var errs []error
	for _, der := range lists {
		l, err := parseRevocationList(der, issuers, trusted, now)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, l)
	}
	return out, join(errs...)
}

// parseRevocationList parses a list and verifies its signature.
func parseRevocationList(
	der []byte, issuers []*x509.Certificate, trusted *x509.CertPool, now time.Time,
) (*RevocationList, error) {
	crl, err := x509.ParseRevocationList(der)
	if err != nil {
		return nil, fmt.Errorf("revocation list: %w", err)
	}
	if len(der) > MaxRevocationBytes {
		return nil, fmt.Errorf("revocation list of %s has more than %d bytes", crl.Issuer, MaxRevocationBytes)
	}
	if crl.Number == nil || crl.Number.Sign() < 0 {
		return nil, fmt.Errorf("revocation list of %s has no number", crl.Issuer)
	}
	l := &RevocationList{Number: crl.Number, Created: crl.ThisUpdate.UTC(), Serials: map[string]time.Time{}, raw: der}
	for _, e := range crl.RevokedCertificateEntries {
		l.Serials[e.SerialNumber.Text(16)] = e.RevocationTime.UTC()
	}
	for _, e := range crl.Extensions {
		switch {
		case e.Id.Equal(oidRevokedNames):
			if rest, err := asn1.Unmarshal(e.Value, &l.Names); err != nil || len(rest) > 0 {
				return nil, fmt.Errorf("revocation list of %s has an invalid list of names", crl.Issuer)
			}
		case e.Critical: // RFC 5280 section 5.2
			return nil, fmt.Errorf("revocation list of %s has an unknown critical extension %v", crl.Issuer, e.Id)
		}
	}
	for _, ca := range issuers {
		if crl.CheckSignatureFrom(ca) == nil && signsLists(ca, issuers, trusted, now) {
			l.Issuer = ca
			return l, nil
		}
	}
	return nil, fmt.Errorf("revocation list %v of %s is not signed by a CA that is trusted here", crl.Number, crl.Issuer)
}

// signsLists reports whether ca is a trusted CA, or an intermediate below one.
// The expiry of ca does not matter: what it revoked stays revoked.
func signsLists(ca *x509.Certificate, others []*x509.Certificate, trusted *x509.CertPool, now time.Time) bool {
	if now.After(ca.NotAfter) {
		now = ca.NotAfter
	}
	_, err := ca.Verify(x509.VerifyOptions{
		Roots: trusted, Intermediates: poolOf(others), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	return err == nil
}

// revocations are the lists of an Identity by RevocationList.ID. They are
// immutable.
type revocations struct{ lists map[string]*RevocationList }

// check returns nil if one of the chains has no revoked certificate. Otherwise
// it returns a *RevokedError.
func (r *revocations) check(chains [][]*x509.Certificate) (err error) {
	if r == nil || len(r.lists) == 0 {
		return nil
	}
	for _, chain := range chains {
		if err = r.checkChain(chain); err == nil {
			return nil
		}
	}
	return err
}

func (r *revocations) checkChain(chain []*x509.Certificate) error {
	for n, ca := range chain[1:] {
		l := r.lists[keyID(ca)]
		if l == nil {
			continue
		}
		if cert := chain[n]; !l.Serials[cert.SerialNumber.Text(16)].IsZero() {
			return &RevokedError{Cert: cert, List: l}
		}
		for _, name := range l.Names {
			if chain[0].NotBefore.Before(name.Before) && hasName(chain[0], name.Name) {
				return &RevokedError{Cert: chain[0], List: l, Name: name.Name}
			}
		}
	}
	return nil
}

// AddRevocations verifies the lists of a PEM file (see ParseRevocationLists) and
// puts them in force: new handshakes with revoked certificates fail, and the
// open connections of their peers are closed. A list replaces the list of its
// issuer that has a lower number. A list with a lower number is an error.
func (i *Identity) AddRevocations(b []byte) error {
	i.reload.Lock()
	defer i.reload.Unlock()
	changed, err := i.addRevocations(b)
	if changed {
		i.trustChanged()
	}
	return err
}

// addRevocations adds lists. The caller holds i.reload, and calls trustChanged
// if the lists have changed.
func (i *Identity) addRevocations(b []byte) (changed bool, err error) {
	lists, err := ParseRevocationLists(b, i.current.Load().roots, time.Now())
	errs := []error{err}
	all := &revocations{lists: map[string]*RevocationList{}}
	if old := i.revoked.Load(); old != nil {
		maps.Copy(all.lists, old.lists)
	}
	for _, l := range lists {
		switch old := all.lists[l.ID()]; {
		case old == nil && len(all.lists) >= maxRevocationLists:
			errs = append(errs, fmt.Errorf("revocation list of %s ignored: lists of %d CAs are in force",
				l.Issuer.Subject, maxRevocationLists))
		case old != nil && old.Number.Cmp(l.Number) > 0:
			errs = append(errs, fmt.Errorf("revocation list %v of %s is older than list %v, which stays in force",
				l.Number, l.Issuer.Subject, old.Number))
		case old != nil && old.Number.Cmp(l.Number) == 0:
		default:
			all.lists[l.ID()], changed = l, true
			i.logger.Info("revocation list in force", "issuer", l.Issuer.Subject.String(), "number", l.Number.String(),
				"certificates", len(l.Serials), "names", len(l.Names), "created", stamp(l.Created))
		}
	}
	if changed {
		i.revoked.Store(all)
		i.listed.Notify()
	}
	return changed, join(errs...)
}

// CheckRevocations returns the only list of a PEM file, or the reason why
// AddRevocations would not put it in force.
func (i *Identity) CheckRevocations(b []byte) (*RevocationList, error) {
	lists, err := ParseRevocationLists(b, i.current.Load().roots, time.Now())
	if err != nil {
		return nil, err
	}
	if len(lists) != 1 {
		return nil, fmt.Errorf("has %d revocation lists, not one", len(lists))
	}
	l := lists[0]
	if r := i.revoked.Load(); r != nil {
		old := r.lists[l.ID()]
		if old != nil && old.Number.Cmp(l.Number) >= 0 && !bytes.Equal(old.raw, l.raw) {
			return nil, fmt.Errorf("revocation list %v of %s is not newer than list %v, which is in force", l.Number,
				l.Issuer.Subject, old.Number)
		}
	}
	return l, nil
}

// RevocationsChanged returns a channel that is closed when RevocationLists
// changes.
func (i *Identity) RevocationsChanged() <-chan struct{} { return i.listed.Wait() }

// RevocationLists returns the lists in force, ordered by ID. The caller must not
// change them.
func (i *Identity) RevocationLists() []*RevocationList {
	r := i.revoked.Load()
	if r == nil {
		return nil
	}
	return slices.SortedFunc(maps.Values(r.lists), func(a, b *RevocationList) int { return cmp.Compare(a.ID(), b.ID()) })
}

// RevocationFile returns the path of the revocation lists of a CA file: in the
// same directory, with the extension .crl.
func RevocationFile(ca string) string { return strings.TrimSuffix(ca, filepath.Ext(ca)) + ".crl" }

// RevokeRequest describes what Revoke adds to a revocation list.
type RevokeRequest struct {
	// CA signs the list. If its Cert contains several certificates, the one that
	// belongs to its Key signs. Required.
	CA KeyPair
	// Old is the present file of the CA, to which Revoke adds. Empty: none.
	Old []byte
	// Serials are the serial numbers of certificates that the CA has signed.
	Serials []*big.Int
	// Names are DNS names. The certificates that have such a name, that are
	// signed by the CA or an intermediate below it, and that were created before
	// Before are revoked. Default of Before: Now. It has a resolution of one
	// second.
	Names  []string
	Before time.Time
	// Now is the time of the list. Default: the current time.
	Now time.Time
}

// Revoke returns a list with all entries of the old list and those of the
// request, and with the next number.
func Revoke(r RevokeRequest) (*RevocationList, error) {
	ca, key, err := CertRequest{CA: r.CA}.signer()
	if err != nil {
		return nil, err
	}
	now := timeOf(r.Now).UTC().Truncate(time.Second)
	l := &RevocationList{Number: new(big.Int), Serials: map[string]time.Time{}}
	if len(r.Old) > 0 {
		lists, err := ParseRevocationLists(r.Old, []*x509.Certificate{ca}, now)
		if err != nil {
			return nil, fmt.Errorf("old list: %w; use the file of this CA", err)
		}
		if len(lists) != 1 || lists[0].ID() != keyID(ca) {
			return nil, errors.New("old list: the file has lists of other CAs; use the file of this CA")
		}
		l = lists[0]
	}
	t := &x509.RevocationList{
		Number: new(big.Int).Add(l.Number, big.NewInt(1)), ThisUpdate: now,
		NextUpdate: ca.NotAfter, // a list has no expiry in wanfed
	}
	if !t.NextUpdate.After(now) {
		t.NextUpdate = now.Add(day)
	}
	for _, s := range r.Serials {
		if _, ok := l.Serials[s.Text(16)]; !ok {
			l.Serials[s.Text(16)] = now
		}
	}
	for _, serial := range slices.Sorted(maps.Keys(l.Serials)) {
		n, _ := new(big.Int).SetString(serial, 16)
		t.RevokedCertificateEntries = append(t.RevokedCertificateEntries,
			x509.RevocationListEntry{SerialNumber: n, RevocationTime: l.Serials[serial]})
	}
	// Certificates are backdated. One that is created after Before therefore
	// begins at most backdate earlier.
	before := cmp.Or(r.Before, now.Add(-backdate)).UTC().Truncate(time.Second)
	for _, name := range r.Names {
		if err := checkHost(name); err != nil {
			return nil, fmt.Errorf("name: %w", err)
		}
		name = strings.ToLower(name)
		l.Names = append(slices.DeleteFunc(l.Names, func(n RevokedName) bool {
			return n.Name == name && !n.Before.After(before)
		}), RevokedName{name, before})
	}
	if len(l.Names) > 0 {
		value, err := asn1.Marshal(l.Names)
		if err != nil {
			return nil, fmt.Errorf("encode the names: %w", err)
		}
		t.ExtraExtensions = []pkix.Extension{{Id: oidRevokedNames, Value: value}}
	}
	der, err := x509.CreateRevocationList(rand.Reader, t, ca, key)
	if err != nil {
		return nil, fmt.Errorf("sign the revocation list: %w", err)
	}
	signed, err := parseRevocationList(der, []*x509.Certificate{ca}, poolOf([]*x509.Certificate{ca}), now)
	if err != nil {
		return nil, err
	}
	if n := len(signed.PEM()); n > MaxRevocationBytes {
		return nil, fmt.Errorf("the list would have %d bytes, more than %d: revoke all certificates of a name in "+
			"place of many serials, or replace the CA", n, MaxRevocationBytes)
	}
	return signed, nil
}
