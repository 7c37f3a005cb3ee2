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

// DescribeError returns a short description of an error of a handshake, or of
// the first read after a handshake: "certificate of srv1.server.dc2.wanfed
// expired ...". It returns the text of an unknown error, and "" for nil.
//
// With TLS 1.3, if the peer rejects the certificate of a dialer, the handshake
// of the dialer succeeds and its first read fails.
func DescribeError(err error) string {
	if err == nil {
		return ""
	}
	return described(err).Error()
}

// described returns err with a clearer text, or err itself.
func described(err error) error {
	if s := describe(err); s != "" {
		return &describedError{s, err}
	}
	return err
}

type describedError struct {
	text string
	err  error
}

func (c *describedError) Error() string { return c.text }
func (c *describedError) Unwrap() error { return c.err }

// describe returns "" for an unknown error.
func describe(err error) string {
	var (
		invalid  x509.CertificateInvalidError
		unknown  x509.UnknownAuthorityError
		hostname x509.HostnameError
		record   tls.RecordHeaderError
		op       *net.OpError
	)
	switch {
	case errors.As(err, &invalid):
		return describeInvalid(invalid)
	case errors.As(err, &unknown):
		return fmt.Sprintf("certificate of %s is signed by another CA (%s)", title(unknown.Cert), issuer(unknown.Cert))
	case errors.As(err, &hostname):
		return fmt.Sprintf("certificate of %s is not valid for %s; its names: %s",
			title(hostname.Certificate), hostname.Host, strings.Join(hostname.Certificate.DNSNames, ", "))
	case errors.As(err, &record):
		return "peer uses plain text, not TLS"
	case errors.As(err, &op) && op.Op == "remote error":
		return describeAlert(op)
	case errors.Is(err, io.EOF):
		return "peer closed the connection"
	}
	return ""
}

func describeInvalid(e x509.CertificateInvalidError) string {
	subject := title(e.Cert)
	switch e.Reason {
	case x509.Expired:
		switch now := time.Now(); {
		case now.Before(e.Cert.NotBefore):
			return fmt.Sprintf("certificate of %s is not valid before %s; check the clocks", subject,
				stamp(e.Cert.NotBefore))
		case now.After(e.Cert.NotAfter):
			return fmt.Sprintf("certificate of %s expired at %s; create a new one", subject, stamp(e.Cert.NotAfter))
		}
		// The certificate is valid now, and was not at the time of the check.
		return fmt.Sprintf("certificate of %s is not valid at the time of the handshake, but from %s to %s", subject,
			stamp(e.Cert.NotBefore), stamp(e.Cert.NotAfter))
	case x509.IncompatibleUsage:
		return fmt.Sprintf("certificate of %s lacks the extended key usage for this (client or server authentication)",
			subject)
	case x509.CANotAuthorizedForThisName:
		return fmt.Sprintf("certificate of %s has a name that the CA's name constraints do not permit: %s",
			subject, e.Detail)
	case x509.NotAuthorizedToSign, x509.TooManyIntermediates:
		return fmt.Sprintf("certificate of %s is signed by a certificate that is not a CA (%s)", subject,
			issuer(e.Cert))
	}
	return ""
}

// alerts are the alerts of RFC 8446 section 6.2 that an operator can act on.
var alerts = map[uint8]string{
	40:  "peer refused the handshake: no common TLS parameters",
	42:  "peer rejected our certificate (expired, of another CA, or of another name); see its log",
	43:  "peer rejected our certificate: wrong type",
	44:  "peer rejected our certificate: revoked",
	45:  "peer rejected our certificate: expired or not yet valid; check both clocks",
	46:  "peer rejected our certificate; see its log",
	48:  "peer rejected our certificate: signed by another CA",
	70:  "no common TLS version: both sides need TLS 1.3",
	80:  "peer failed, or has no certificate for the requested name; see its log",
	112: "peer has no route to, or no certificate for, the requested name",
	116: "peer requires a certificate and we sent none",
	120: "no common protocol (ALPN)",
}

// describeAlert describes the alert in an error. The type of an alert is an
// unexported uint8 type of crypto/tls.
func describeAlert(op *net.OpError) string {
	alert, _ := AlertOf(op)
	return alerts[alert]
}

// AlertOf returns the alert that a peer sent (RFC 8446 section 6), if err
// contains an alert.
func AlertOf(err error) (alert uint8, ok bool) {
	op, isOp := errors.AsType[*net.OpError](err)
	if !isOp || op.Op != "remote error" {
		return 0, false
	}
	v := reflect.ValueOf(op.Err)
	if !v.IsValid() || v.Kind() != reflect.Uint8 {
		return 0, false
	}
	return uint8(v.Uint()), true
}

// title returns a name of c for display.
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
