// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
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

// ErrNoPath says that the address book has no way to a target: Dial has tried nothing.
var ErrNoPath = errors.New("no path")

// DialError says that every hop to a target failed, and how each did.
type DialError struct {
	Target Target
	SNI    string
	Paths  []PathError // in the order tried
	own    bool        // the target's datacenter is the dialer's own
}

// PathError is how dialing through one hop failed. Err is one error, or the joined errors of all addresses of a DNS name.
type PathError struct {
	Path Path
	Err  error
}

func (e PathError) Error() string {
	what := e.Path.Via
	switch what {
	case "":
		what = "hop"
	case "own", "remote":
		what += " gateway"
	case "configured":
		what += " address"
	}
	return what + " " + e.Path.Addr + ": " + oneLine(e.Err)
}

func (e PathError) Unwrap() error { return e.Err }

func (e *DialError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "dial %s in datacenter %s: ", e.SNI, e.Target.DC)
	for i, h := range e.Paths {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(h.Error())
	}
	if hint := e.hint(); hint != "" {
		b.WriteString(": " + hint)
	}
	return b.String()
}

func (e *DialError) Unwrap() []error {
	errs := make([]error, len(e.Paths))
	for i, h := range e.Paths {
		errs[i] = h
	}
	return errs
}

// Timeout says whether time was what ran out, for every hop.
func (e *DialError) Timeout() bool {
	for _, h := range e.Paths {
		if !isTimeout(h.Err) {
			return false
		}
	}
	return true
}

// stage is a step of one attempt.
type stage string

const (
	stageResolve   stage = "resolve"
	stageConnect   stage = "connect"
	stageHandshake stage = "tls handshake"
	stageProtocol  stage = "protocol"
)

// stageError is an error with the step at which it happened.
type stageError struct {
	stage stage
	addr  string        // ip:port, if it is not the hop's own; the name when resolving
	after time.Duration // that the attempt had taken
	err   error
}

func (e *stageError) Error() string {
	text := e.err.Error()
	var errno syscall.Errno
	switch {
	case errors.Is(e.err, errOvertaken):
	case isTimeout(e.err):
		text = fmt.Sprintf("no answer within %v", e.after.Round(time.Millisecond))
	case e.stage == stageHandshake:
		text = tlsutil.DescribeError(e.err)
	case e.stage == stageConnect && errors.As(e.err, &errno):
		text = errno.Error() // what package net puts around it is named already
	}
	if e.stage == stageProtocol {
		return text
	}
	if e.addr == "" {
		return fmt.Sprintf("%s: %s", e.stage, text)
	}
	return fmt.Sprintf("%s %s: %s", e.stage, e.addr, text)
}

func (e *stageError) Unwrap() error { return e.err }

// hint tells what to do next, by the step that the last of the hops came to: the one that got furthest is told about.
func (e *DialError) hint() string {
	var best *stageError
	rank := map[stage]int{stageResolve: 0, stageConnect: 1, stageHandshake: 2, stageProtocol: 3}
	for _, h := range e.Paths {
		var s *stageError
		if errors.As(h.Err, &s) && (best == nil || rank[s.stage] > rank[best.stage]) {
			best = s
		}
	}
	if best == nil {
		return ""
	}
	there := "a gateway"
	if e.own {
		there = "the server"
	}
	switch best.stage {
	case stageResolve:
		return "check the name and the resolver"
	case stageConnect:
		return "check that " + there + " runs there and that no firewall is between"
	case stageProtocol:
		return "do both sides run versions that fit?"
	}
	var verify *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(best.err, &unknown):
		return "all datacenters need certificates of one CA"
	case errors.As(best.err, &verify):
		return "" // tlsutil.Explain told
	case isTimeout(best.err):
		return "it accepts connections but is stuck, or what is behind it is"
	case !e.own && (errors.Is(best.err, io.EOF) || isReset(best.err)):
		return fmt.Sprintf("the gateway has no route for %s, or no server there is up", e.SNI)
	}
	return ""
}

func isReset(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "read"
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &t) && t.Timeout()
}

// explain is tlsutil.DescribeError for errors that may be Dial's, which explain themselves.
func explain(err error) string {
	var de *DialError
	if errors.As(err, &de) {
		return oneLine(err)
	}
	return tlsutil.DescribeError(err)
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", ", ") }
