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
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// ErrNoPath reports that the address book has no path to a target. Dial has
// tried nothing.
var ErrNoPath = errors.New("no path")

// DialError reports that every path to a target failed.
type DialError struct {
	Target Target
	SNI    string
	Paths  []PathError // in the order tried
	local  bool        // the target is in the dialer's datacenter
}

// PathError reports why a dial over one path failed. Err is one error, or the
// joined errors of all addresses of a DNS name.
type PathError struct {
	Path Path
	Err  error
}

func (e PathError) Error() string {
	return cmp.Or(e.Path.Via, "path") + " " + e.Path.Addr + ": " + oneLine(e.Err)
}

func (e PathError) Unwrap() error { return e.Err }

func (e *DialError) Error() string {
	paths := make([]string, len(e.Paths))
	for i, p := range e.Paths {
		paths[i] = p.Error()
	}
	text := fmt.Sprintf("dial %s in datacenter %s: %s", e.SNI, e.Target.DC, strings.Join(paths, "; "))
	if hint := e.hint(); hint != "" {
		text += ": " + hint
	}
	return text
}

func (e *DialError) Unwrap() []error {
	errs := make([]error, len(e.Paths))
	for i, p := range e.Paths {
		errs[i] = p
	}
	return errs
}

// Timeout reports whether every path failed by a timeout.
func (e *DialError) Timeout() bool {
	return !slices.ContainsFunc(e.Paths, func(p PathError) bool { return !isTimeout(p.Err) })
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
	addr  string        // ip:port if it differs from the path's address; the name while resolving
	after time.Duration // duration of the attempt
	err   error
}

func (e *stageError) Error() string {
	text := e.err.Error()
	var errno syscall.Errno
	switch {
	case errors.Is(e.err, errLostRace):
	case isTimeout(e.err):
		text = fmt.Sprintf("no answer within %v", e.after.Round(time.Millisecond))
	case e.stage == stageHandshake:
		text = tlsutil.DescribeError(e.err)
	case e.stage == stageConnect && errors.As(e.err, &errno):
		text = errno.Error() // without the prefix of package net, which repeats the address
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

// hint returns the remedy for the path whose attempt got furthest.
func (e *DialError) hint() string {
	var best *stageError
	rank := map[stage]int{stageResolve: 0, stageConnect: 1, stageHandshake: 2, stageProtocol: 3}
	for _, p := range e.Paths {
		var s *stageError
		if errors.As(p.Err, &s) && (best == nil || rank[s.stage] > rank[best.stage]) {
			best = s
		}
	}
	if best == nil {
		return ""
	}
	listener := "a gateway"
	if e.local {
		listener = "the server"
	}
	switch best.stage {
	case stageResolve:
		return "check the name and the resolver"
	case stageConnect:
		return "check that " + listener + " runs there and that no firewall is between"
	case stageProtocol:
		return "check that both servers run compatible versions"
	}
	var verify *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(best.err, &unknown):
		return "all datacenters need certificates of one CA"
	case errors.As(best.err, &verify):
		return "" // tlsutil.DescribeError gives the remedy
	case isTimeout(best.err):
		return "it accepts connections but is stuck, or the server behind it is"
	case !e.local && (errors.Is(best.err, io.EOF) || isReset(best.err)):
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

// explain is tlsutil.DescribeError for errors that may be a DialError.
func explain(err error) string {
	var de *DialError
	if errors.As(err, &de) {
		return oneLine(err)
	}
	return tlsutil.DescribeError(err)
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", ", ") }
