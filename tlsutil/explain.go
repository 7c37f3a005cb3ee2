// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"time"
)

// Explain says in a few words why a handshake, or the first read after it, failed, for log lines and errors that people
// read: "certificate of srv1.server.dc2.wanfed expired ...". An error it does not know is given as it is; nil is "".
//
// With TLS 1.3 the dialer learns only at its first read that its own certificate was refused.
func DescribeError(err error) string {
	if err == nil {
		return ""
	}
	return explained(err).Error()
}

// explained returns err behind a clearer text, or err itself.
func explained(err error) error {
	if s := explain(err); s != "" {
		return &clearer{s, err}
	}
	return err
}

type clearer struct {
	text string
	err  error
}

func (c *clearer) Error() string { return c.text }
func (c *clearer) Unwrap() error { return c.err }

func explain(err error) string {
	var (
		invalid  x509.CertificateInvalidError
		unknown  x509.UnknownAuthorityError
		hostname x509.HostnameError
		record   tls.RecordHeaderError
		op       *net.OpError
	)
	switch {
	case errors.As(err, &invalid):
		return explainInvalid(invalid)
	case errors.As(err, &unknown):
		return fmt.Sprintf("certificate of %s is signed by another CA (%s)", title(unknown.Cert), issuer(unknown.Cert))
	case errors.As(err, &hostname):
		return fmt.Sprintf("certificate of %s is not valid for %s; its names: %s",
			title(hostname.Certificate), hostname.Host, strings.Join(hostname.Certificate.DNSNames, ", "))
	case errors.As(err, &record):
		return "peer speaks plain text, not TLS"
	case errors.As(err, &op) && op.Op == "remote error":
		return explainAlert(op)
	case errors.Is(err, io.EOF):
		return "peer closed the connection"
	}
	return ""
}

func explainInvalid(e x509.CertificateInvalidError) string {
	who := title(e.Cert)
	switch e.Reason {
	case x509.Expired:
		switch now := time.Now(); {
		case now.Before(e.Cert.NotBefore):
			return fmt.Sprintf("certificate of %s is not valid before %s; check the clocks", who, stamp(e.Cert.NotBefore))
		case now.After(e.Cert.NotAfter):
			return fmt.Sprintf("certificate of %s expired at %s; make a new one", who, stamp(e.Cert.NotAfter))
		}
		return fmt.Sprintf("certificate of %s is not valid then, but from %s to %s", who, stamp(e.Cert.NotBefore), stamp(e.Cert.NotAfter))
	case x509.IncompatibleUsage:
		return fmt.Sprintf("certificate of %s has not the extended key usage for this (client or server authentication)", who)
	case x509.CANotAuthorizedForThisName:
		return fmt.Sprintf("certificate of %s has a name that the CA's name constraints do not permit: %s", who, e.Detail)
	case x509.NotAuthorizedToSign, x509.TooManyIntermediates:
		return fmt.Sprintf("certificate of %s is signed by a certificate that is no CA for it (%s)", who, issuer(e.Cert))
	}
	return ""
}

// The alerts of RFC 8446 section 6.2 that say something an operator can act on.
var alerts = map[uint8]string{
	40:  "peer refused the handshake: no common TLS parameters",
	42:  "peer refused our certificate (expired, of another CA, or not of the name it wants); its log says why",
	43:  "peer refused our certificate: wrong type",
	44:  "peer refused our certificate: revoked",
	45:  "peer says our certificate is expired or not yet valid; check both clocks",
	46:  "peer refused our certificate; its log says why",
	48:  "peer says our certificate is signed by another CA",
	70:  "no common TLS version: both sides need TLS 1.3",
	80:  "peer failed, or has no certificate for the name we asked for; see its log",
	112: "what answers there has no route to, or no certificate for, the name we asked for",
	116: "peer demands a certificate and we sent none",
	120: "no common protocol (ALPN)",
}

// explainAlert finds the alert's number. crypto/tls keeps its type to itself: an uint8 inside the error.
func explainAlert(op *net.OpError) string {
	if v := reflect.ValueOf(op.Err); v.IsValid() && v.Kind() == reflect.Uint8 {
		return alerts[uint8(v.Uint())]
	}
	return ""
}

// title is what a person calls the certificate.
func title(c *x509.Certificate) string {
	switch {
	case c == nil:
		return "the peer"
	case len(c.DNSNames) > 0:
		return c.DNSNames[0]
	case c.Subject.String() != "":
		return c.Subject.String()
	}
	return "serial " + c.SerialNumber.Text(16)
}

func issuer(c *x509.Certificate) string {
	if c == nil {
		return "unknown"
	}
	return c.Issuer.String()
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
