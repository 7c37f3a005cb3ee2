// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// ErrNotFound reports that a datacenter has no federation state.
var ErrNotFound = errors.New("no federation state")

// ErrNoSession reports that a session does not exist.
var ErrNoSession = errors.New("the session does not exist")

// UnreachableError reports that the client got no HTTP response from Addr.
type UnreachableError struct {
	Addr string // URL, or several with commas
	// Source is ClientConfig.AddrSource.
	Source string
	Err    error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("no server answers at %s: %v", e.Where(), shortCause(e.Err))
}

// Where returns Addr and, in brackets, its Source.
func (e *UnreachableError) Where() string {
	if e.Source == "" {
		return e.Addr
	}
	return fmt.Sprintf("%s (%s)", e.Addr, e.Source)
}
func (e *UnreachableError) Unwrap() error { return e.Err }

// StatusError is an error response of a server.
type StatusError struct {
	Addr    string // URL
	Code    int    // HTTP status
	Message string // first line of the body, or a description
	Cause   string // HeaderCause, if any
	// RetryAfter is the time for which the server accepts no request of this
	// client. 0: unknown.
	RetryAfter time.Duration
}

func (e *StatusError) Error() string {
	s := fmt.Sprintf("%s answered %d", e.Addr, e.Code)
	if e.Message != "" {
		s += ": " + e.Message
	} else if text := http.StatusText(e.Code); text != "" {
		s += " (" + text + ")"
	}
	if e.Cause != "" {
		s += ": " + e.Cause
	}
	return s
}

// IsStatus reports whether err is a StatusError with the given HTTP status.
func IsStatus(err error, code int) bool {
	e, ok := errors.AsType[*StatusError](err)
	return ok && e.Code == code
}

// isAbsent reports whether err is the response to a query for an object that does
// not exist: status 404 with an index and without a body. A 404 without an index,
// or with a body, comes from another program, such as a proxy, or means that the
// endpoint does not exist.
func isAbsent(meta QueryMeta, err error) bool {
	e, ok := errors.AsType[*StatusError](err)
	return ok && e.Code == http.StatusNotFound && e.Message == "" && meta.Index > 0
}

// unreachable returns the error of a request without a response. The reason is
// the end of the caller's ctx, or the timeout of rctx, or else err.
func (c *Client) unreachable(ctx, rctx context.Context, timeout time.Duration, err error) error {
	switch {
	case errors.Is(err, errToken): // nothing was sent
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("request to %s: %w", c.base, ctx.Err())
	case rctx.Err() != nil:
		err = fmt.Errorf("no response within %v: %w", timeout, os.ErrDeadlineExceeded)
	}
	return &UnreachableError{Addr: c.addrs, Source: c.source, Err: err}
}

// maxMessage limits the bytes of an error response that a StatusError contains.
const maxMessage = 1024

func (c *Client) statusError(resp *http.Response, body []byte) error {
	text, _, _ := strings.Cut(strings.TrimSpace(string(body[:min(len(body), maxMessage)])), "\n")
	if resp.StatusCode >= 300 && resp.StatusCode < 400 {
		text = "redirect to " + resp.Header.Get("Location") + ", which is not a response of this API"
	}
	return &StatusError{
		Addr: c.base, Code: resp.StatusCode,
		Message: strings.ToValidUTF8(strings.TrimSpace(text), "?"),
		Cause:   resp.Header.Get(HeaderCause),

		RetryAfter: retryAfter(resp.Header.Get("Retry-After"), time.Now()),
	}
}

// maxRetryAfter bounds StatusError.RetryAfter. A wrong value in a response then
// does not stop a client for long.
const maxRetryAfter = 5 * time.Minute

// retryAfter parses the header Retry-After (RFC 9110): seconds, or a date.
func retryAfter(value string, now time.Time) time.Duration {
	if s, err := strconv.ParseUint(value, 10, 31); err == nil {
		return min(time.Duration(s)*time.Second, maxRetryAfter)
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(at.Sub(now), 0), maxRetryAfter)
	}
	return 0
}

// shortCause removes the method, the URL and the name of the system call from
// err, an error of net/http.
func shortCause(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	if e, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return fmt.Errorf("its certificate is signed by another CA: %w", e)
	}
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "dial" {
		err = e.Err
		if sys, ok := errors.AsType[*os.SyscallError](err); ok {
			err = sys.Err
		}
	}
	return err
}
