// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/internal/rpctext"
	"github.com/wanfed/wanfed/resource"
)

// ErrNoDatacenter: no datacenter of the name is known. The response is 404.
var ErrNoDatacenter = errors.New("no such datacenter")

var (
	errNoPath   = errors.New("no such path")
	errTooLarge = errors.New("request is too large") // the body is larger than MaxBody
)

func badRequest(format string, args ...any) error {
	return fmt.Errorf("%w "+format, append([]any{resource.ErrInvalid}, args...)...)
}

// StatusOf returns the HTTP status of an error of package resource:
//
//	400  the request breaks a rule
//	403  the caller is not authorized
//	404  the resource or the datacenter does not exist
//	409  the stored version, uid or state is not the expected one
//	413  the request or the result is too large
//	501  the server is too old for the request
//	503  nothing was done; try again
//	504  the outcome is unknown
//	500  any other error
func StatusOf(err error) int {
	err = resource.FromStatus(err)
	switch {
	case errors.Is(err, resource.ErrUnknownOutcome):
		return http.StatusGatewayTimeout
	case errors.Is(err, errTooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, ErrNoDatacenter), errors.Is(err, errNoPath):
		return http.StatusNotFound
	case errors.Is(err, resource.ErrGroupVersion):
		return http.StatusConflict
	case errors.Is(err, resource.ErrWatchReset):
		return http.StatusServiceUnavailable
	}
	code := status.Code(resource.StatusError(err))
	if code == codes.Internal { // no error of package resource
		code = status.Code(err)
	}
	switch code {
	case codes.InvalidArgument, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.PermissionDenied, codes.Unauthenticated:
		return http.StatusForbidden
	case codes.NotFound:
		return http.StatusNotFound
	case codes.Aborted, codes.FailedPrecondition:
		return http.StatusConflict
	case codes.ResourceExhausted:
		return http.StatusRequestEntityTooLarge
	case codes.Unimplemented:
		return http.StatusNotImplemented
	case codes.Unavailable, codes.Canceled:
		return http.StatusServiceUnavailable
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout
	}
	return http.StatusInternalServerError
}

// outcome returns the error of a failed write. The address of the server to
// which the write was sent is server, or nil if the write was not sent. If the
// server has not responded, the error is an ErrUnknownOutcome. Errors of the
// server stay as they are.
func outcome(server net.Addr, err error) error {
	if server == nil || resource.FromStatus(err) != err { // not sent, or an error of package resource
		return err
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
	lines := strings.FieldsFunc(rpctext.Plain(text), func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Join(lines, "; ")
}

// failWith responds to a request that has failed.
func failWith(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, http.ErrAbortHandler) {
		panic(http.ErrAbortHandler) // the client must see that the response is incomplete
	}
	if r.Context().Err() != nil { // the server is stopping, or the client has disconnected
		fail(w, http.StatusServiceUnavailable,
			"the request was ended: this server is stopping; try again, or use another server")
		return
	}
	fail(w, StatusOf(err), textOf(err))
}
