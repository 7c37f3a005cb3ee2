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

// ErrNoDatacenter: no datacenter of that name is known. The response is 404.
var ErrNoDatacenter = errors.New("no such datacenter")

// errTooLarge: the body is larger than MaxBody.
var errTooLarge = errors.New("request is too large")

func badRequest(format string, args ...any) error {
	return fmt.Errorf("%w "+format, append([]any{resource.ErrInvalid}, args...)...)
}

// statuses maps errors to HTTP, in order of precedence.
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

// StatusOf returns the HTTP status of an error of a resource service or a
// Backend:
//
//	400  the request breaks a rule
//	403  the caller is not authorized
//	404  the resource or the datacenter does not exist
//	409  the stored resource is not as expected
//	413  the request or the result is too large
//	501  the server is too old for the request
//	503  nothing was done; try again
//	504  the outcome is unknown
//	500  any other error
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

// outcome returns the error of a write that was sent to at. If the server has
// not responded, the error is an ErrUnknownOutcome. Errors of the server stay
// as they are.
func outcome(at net.Addr, err error) error {
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

// textOf returns the text of err, on one line.
func textOf(err error) string {
	text := err.Error()
	if st, ok := status.FromError(err); ok {
		text = st.Message() // without the code
	}
	lines := strings.FieldsFunc(resource.ErrorText(text), func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Join(lines, "; ")
}

// failWith responds to a request that has failed.
func failWith(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, http.ErrAbortHandler) {
		panic(http.ErrAbortHandler) // the client must see that the response is incomplete
	}
	if r.Context().Err() != nil { // the server stops, or the client has disconnected
		fail(w, http.StatusServiceUnavailable, "the request was ended: this server is stopping; try again, or use another server")
		return
	}
	fail(w, StatusOf(err), textOf(err))
}
