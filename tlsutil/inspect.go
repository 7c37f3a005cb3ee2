// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"crypto/x509"
	"maps"
	"slices"
	"time"
)

// Inspection is one certificate of a file.
type Inspection struct {
	File     string `json:"file"`
	Position int    `json:"position"` // in the file, from 1
	Of       int    `json:"of"`       // number of certificates in the file
	Description
	// Verified is set if there are CA certificates, for the first certificate of
	// a file.
	Verified    *bool  `json:"verified,omitempty"`
	VerifyError string `json:"verify_error,omitempty"`
}

// RevocationInspection is a revocation list of a file, for display.
type RevocationInspection struct {
	File    string        `json:"file"`
	Number  string        `json:"number"`
	Issuer  string        `json:"issuer"`
	ID      string        `json:"id"`
	Created time.Time     `json:"created"`
	Serials []string      `json:"serials"` // hexadecimal, sorted
	Names   []RevokedName `json:"names"`
}

// InspectList describes a revocation list of a file.
func InspectList(file string, l *RevocationList) RevocationInspection {
	return RevocationInspection{
		File: file, Number: l.Number.String(), Issuer: l.Issuer.Subject.String(), ID: l.ID(), Created: l.Created,
		Serials: slices.Sorted(maps.Keys(l.Serials)), Names: l.Names,
	}
}

// Inspect describes the certificates of a file, of which there is at least one:
// see Describe. Unless cas is nil, it verifies the first certificate, with the
// others as intermediates, and returns the error of Verify.
func Inspect(file string, certs, cas []*x509.Certificate, domain string, now time.Time) ([]Inspection, error) {
	var all []Inspection
	for i, c := range certs {
		all = append(all, Inspection{File: file, Position: i + 1, Of: len(certs), Description: Describe(c, domain, now)})
	}
	if cas == nil {
		return all, nil
	}
	err := Verify(certs, cas, domain, now)
	all[0].Verified = new(err == nil)
	if err != nil {
		all[0].VerifyError = err.Error()
	}
	return all, err
}
