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
	"strings"
	"time"
)

// ErrNotFound says that a datacenter has no federation state where it was asked for.
var ErrNotFound = errors.New("no federation state")

// UnreachableError says that no HTTP answer came from Addr.
type UnreachableError struct {
	Addr string // URL
	Err  error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("no server answers at %s: %v", e.Addr, shortCause(e.Err))
}
func (e *UnreachableError) Unwrap() error { return e.Err }

// StatusError is an answer other than 200.
type StatusError struct {
	Addr    string // URL
	Code    int    // HTTP status
	Message string // the body's first line, or what stands in its place
	Cause   string // what happened, if the server said more; else empty
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

// noAnswer explains err, the failure of a request: of the caller's end of ctx, of the timeout, or of the connection.
func (c *Client) noAnswer(ctx, rctx context.Context, timeout time.Duration, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("ask %s: %w", c.base, ctx.Err())
	case rctx.Err() != nil:
		err = fmt.Errorf("nothing came within %v: %w", timeout, os.ErrDeadlineExceeded)
	}
	return &UnreachableError{Addr: c.base, Err: err}
}

// maxMessage bounds what of a refusal's body goes into an error, in bytes.
const maxMessage = 1024

func (c *Client) refused(resp *http.Response, body []byte) error {
	text, _, _ := strings.Cut(strings.TrimSpace(string(body[:min(len(body), maxMessage)])), "\n")
	if resp.StatusCode >= 300 && resp.StatusCode < 400 {
		text = "redirect to " + resp.Header.Get("Location") + ", which is no wanfed server's answer"
	}
	return &StatusError{
		Addr: c.base, Code: resp.StatusCode,
		Message: strings.ToValidUTF8(strings.TrimSpace(text), "?"),
		Cause:   resp.Header.Get(HeaderCause),
	}
}

// shortCause leaves out of an error of net/http what the reader knows: method, URL, the name of the system call.
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
