// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// ErrNoPath reports that the address book has no path to a target. No path was
// dialed.
var ErrNoPath = errors.New("no path")

// dialError reports that every path to a target failed.
type dialError struct {
	dc, sni string
	local   bool    // dc is the local datacenter
	errs    []error // one error per path, in the order of the dials
}

func (e *dialError) Error() string {
	causes := make([]string, len(e.errs))
	for i, err := range e.errs {
		causes[i] = oneLine(err)
	}
	text := fmt.Sprintf("dial %s in datacenter %s: %s", e.sni, e.dc, strings.Join(causes, "; "))
	if hint := e.hint(); hint != "" {
		text += ": " + hint
	}
	return text
}

func (e *dialError) Unwrap() []error { return e.errs }

// stage is a step of one attempt. A later step has a higher value.
type stage int

const (
	stageResolve stage = iota
	stageConnect
	stageHandshake
	stageProtocol
)

var stageNames = [...]string{"resolve", "connect", "tls handshake", "protocol"}

// stageError is an error with the step at which the attempt failed.
type stageError struct {
	stage stage
	addr  string        // ip:port, or the DNS name if the lookup failed; "" if the path has the same address
	after time.Duration // duration of the attempt
	err   error
}

func (e *stageError) Error() string {
	text := e.err.Error()
	errno, isErrno := errors.AsType[syscall.Errno](e.err)
	switch {
	case e.stage == stageProtocol:
		return text
	case errors.Is(e.err, errLostRace):
	case isTimeout(e.err):
		text = fmt.Sprintf("no answer within %v", e.after.Round(time.Millisecond))
	case e.stage == stageHandshake:
		text = tlsutil.DescribeError(e.err)
	case e.stage == stageConnect && isErrno:
		text = errno.Error() // without the prefix of package net, which repeats the address
	}
	if e.addr == "" {
		return fmt.Sprintf("%s: %s", stageNames[e.stage], text)
	}
	return fmt.Sprintf("%s %s: %s", stageNames[e.stage], e.addr, text)
}

func (e *stageError) Unwrap() error { return e.err }

// hint returns a remedy for the path whose attempt reached the latest stage, or
// "" if none is known.
func (e *dialError) hint() string {
	var latest *stageError
	for _, err := range e.errs {
		if s, ok := errors.AsType[*stageError](err); ok && (latest == nil || s.stage > latest.stage) {
			latest = s
		}
	}
	if latest == nil {
		return ""
	}
	listener := "a gateway"
	if e.local {
		listener = "the server"
	}
	switch latest.stage {
	case stageResolve:
		return "check the name and the resolver"
	case stageConnect:
		return "check that " + listener + " runs there and that no firewall is between"
	case stageProtocol:
		return "check that both servers run compatible versions"
	}
	_, otherCA := errors.AsType[x509.UnknownAuthorityError](latest.err)
	_, invalid := errors.AsType[*tls.CertificateVerificationError](latest.err)
	op, isOp := errors.AsType[*net.OpError](latest.err)
	switch {
	case otherCA:
		return "all datacenters need certificates of one CA"
	case invalid:
		return "" // tlsutil.DescribeError gives the remedy
	case isTimeout(latest.err):
		return "it accepts connections but is stuck, or the server behind it is"
	case !e.local && (errors.Is(latest.err, io.EOF) || isOp && op.Op == "read"):
		return fmt.Sprintf("the gateway has no route for %s, or no server there is up", e.sni)
	}
	return ""
}

// FailureClass is the kind of a failure of a path. It has no text of a peer, so
// servers of other datacenters may receive it.
type FailureClass string

const (
	FailureResolve     FailureClass = "name not resolved" // DNS
	FailureRefused     FailureClass = "connection refused"
	FailureNoRoute     FailureClass = "no route" // of the network
	FailureTimeout     FailureClass = "timeout"
	FailureClosed      FailureClass = "connection closed" // before the end of the TLS handshake or the echo
	FailureUpstream    FailureClass = "no answer behind the gateway"
	FailureUnknownName FailureClass = "unknown name" // the gateway or server does not serve the dialed name
	FailureOtherCA     FailureClass = "certificate of another CA"
	FailureCertificate FailureClass = "certificate not valid"
	FailureOther       FailureClass = "other"
)

// FailureClasses are all classes except FailureOther.
var FailureClasses = []FailureClass{
	FailureResolve, FailureRefused, FailureNoRoute, FailureTimeout, FailureClosed, FailureUpstream,
	FailureUnknownName, FailureOtherCA, FailureCertificate,
}

// alertClasses are the classes of alerts of a peer (RFC 8446 section 6.2).
var alertClasses = map[uint8]FailureClass{
	42: FailureCertificate, 45: FailureCertificate, 48: FailureOtherCA,
	80: FailureUpstream, 112: FailureUnknownName,
}

// failureClass returns the class of a failed dial, probe or echo.
func failureClass(err error) FailureClass {
	alert, isAlert := tlsutil.AlertOf(err)
	_, otherCA := errors.AsType[x509.UnknownAuthorityError](err)
	_, badCertificate := errors.AsType[*tls.CertificateVerificationError](err)
	s, isStage := errors.AsType[*stageError](err)
	switch {
	case isStage && s.stage == stageResolve:
		return FailureResolve
	case isAlert:
		return cmp.Or(alertClasses[alert], FailureOther)
	case otherCA:
		return FailureOtherCA
	case badCertificate:
		return FailureCertificate
	case errors.Is(err, syscall.ECONNREFUSED):
		return FailureRefused
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return FailureNoRoute
	case isTimeout(err), errors.Is(err, errEchoTimeout), errors.Is(err, errSessionSilent):
		return FailureTimeout
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, errClosedByPeer):
		return FailureClosed
	}
	return FailureOther
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return errors.Is(err, context.DeadlineExceeded) || ok && t.Timeout()
}

// explain returns the text of err on one line, with a remedy if one is known.
func explain(err error) string {
	if _, ok := errors.AsType[*dialError](err); ok {
		return oneLine(err)
	}
	return tlsutil.DescribeError(err)
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", ", ") }
