// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/resource"
)

// ErrNoDatacenter says that no datacenter of a name is known. It answers 404.
var ErrNoDatacenter = errors.New("no such datacenter")

// errTooLarge is of a body above MaxBody.
var errTooLarge = errors.New("request is too large")

func badRequest(format string, args ...any) error {
	return fmt.Errorf("%w "+format, append([]any{resource.ErrInvalid}, args...)...)
}

// statuses maps errors to HTTP. The first that matches counts.
var statuses = []struct {
	err  error
	code int
}{
	{resource.ErrUnknownOutcome, http.StatusGatewayTimeout},
	{errTooLarge, http.StatusRequestEntityTooLarge},
	{ErrNoDatacenter, http.StatusNotFound},
	{resource.ErrGroupVersion, http.StatusConflict},
	{resource.ErrInvalid, http.StatusBadRequest},
	{resource.ErrDenied, http.StatusForbidden},
	{resource.ErrNotLeader, http.StatusServiceUnavailable},
	{resource.ErrUnsupported, http.StatusServiceUnavailable},
	{resource.ErrReadOnly, http.StatusServiceUnavailable},
	{resource.ErrUnreachable, http.StatusServiceUnavailable},
	{resource.ErrClosed, http.StatusServiceUnavailable},
	{resource.ErrWatchReset, http.StatusServiceUnavailable},
	{resource.ErrConflict, http.StatusConflict},
	{resource.ErrUIDMismatch, http.StatusConflict},
	{resource.ErrTerminating, http.StatusConflict},
	{resource.ErrFederated, http.StatusConflict},
	{resource.ErrNotFound, http.StatusNotFound},
	{context.DeadlineExceeded, http.StatusGatewayTimeout},
	{context.Canceled, http.StatusServiceUnavailable},
}

// StatusOf returns the HTTP status for an error of a resource service or a Backend, wherever it came from: 400 for what breaks a rule, 403,
// 404, 409 for what is stored otherwise than expected, 413 for what is too large, 503 when nothing was done and it may be
// tried again, 504 when nobody knows whether it was done, 501 for what an older server does not know, else 500.
func StatusOf(err error) int {
	err = resource.FromStatus(err)
	for _, s := range statuses {
		if errors.Is(err, s.err) {
			return s.code
		}
	}
	switch status.Code(err) {
	case codes.InvalidArgument, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.PermissionDenied, codes.Unauthenticated:
		return http.StatusForbidden
	case codes.ResourceExhausted:
		return http.StatusRequestEntityTooLarge
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	case codes.Unimplemented:
		return http.StatusNotImplemented
	}
	return http.StatusInternalServerError
}

// outcome says of a call that failed on its way, and had been sent to at, that nobody knows whether it was done. What a server answered stays
// as it is.
func (q *request) outcome(at net.Addr, err error) error {
	if err == nil || at == nil {
		return err
	}
	known := resource.FromStatus(err)
	for _, s := range statuses {
		if errors.Is(known, s.err) {
			return err
		}
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.Unknown, codes.Internal:
		return fmt.Errorf("%w: %s; read it before you write again", resource.ErrUnknownOutcome, textOf(err))
	}
	return err
}

// textOf returns what to tell of err, in one line.
func textOf(err error) string {
	text := err.Error()
	if st, ok := status.FromError(err); ok {
		text = st.Message() // without the code, which stands in front of it
	}
	return strings.Join(strings.FieldsFunc(resource.ErrorText(text), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// failed answers for a request that could not be done and has had no other answer.
func failed(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, http.ErrAbortHandler) {
		panic(http.ErrAbortHandler) // half of it is written: the client must see that it is not whole
	}
	if r.Context().Err() != nil { // the server stops, or the client has gone
		fail(w, http.StatusServiceUnavailable, "the request was ended: this server is stopping; ask again, or another server")
		return
	}
	fail(w, StatusOf(err), textOf(err))
}
