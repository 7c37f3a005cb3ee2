// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/wanfed/wanfed/resource"
)

// MaxRequestBody bounds the body of a request, in bytes: a resource, and what is around it.
const MaxRequestBody = resource.MaxSize + 64<<10

// bodyTime is how long the body of a request may take to come.
const bodyTime = 30 * time.Second

// boundBody bounds the time for a body, which net/http reads after the handler if that does not.
func boundBody(w http.ResponseWriter, body io.ReadCloser) io.ReadCloser {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTime)) // refused only where there is no connection: in tests
	return &boundedBody{body, rc}
}

type boundedBody struct {
	io.ReadCloser
	rc *http.ResponseController
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		_ = b.rc.SetReadDeadline(time.Time{}) // else it would end the request: net/http reads on, to see when the client goes
	}
	return n, err
}

// body reads that of a request which is no read.
func body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if reads(r.Method) || r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxRequestBody))
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, statusError{http.StatusRequestEntityTooLarge, fmt.Sprintf("the request's body is larger than %d bytes", tooLarge.Limit)}
	}
	if err != nil {
		return nil, badRequest{fmt.Errorf("read the request's body: %w", err)}
	}
	return b, nil
}

// statusError is an error with the status and the text of its answer.
type statusError struct {
	status int
	text   string
}

func (e statusError) Error() string { return e.text }

// failed answers for an endpoint that could not.
func (h *handler) failed(w http.ResponseWriter, r *http.Request, err error) {
	err = resource.FromStatus(err)
	known, hasStatus := errors.AsType[statusError](err)
	bad := badRequest{}
	switch {
	case hasStatus:
		fail(w, known.status, known.text)
	case errors.As(err, &bad), errors.Is(err, resource.ErrInvalid):
		fail(w, http.StatusBadRequest, err.Error())
	case r.Context().Err() != nil: // the server stops, or the client has gone
		fail(w, http.StatusServiceUnavailable, "the request was ended: this server is stopping; ask again, or another server")
	case errors.Is(err, resource.ErrDenied):
		fail(w, http.StatusForbidden, err.Error())
	case errors.Is(err, resource.ErrNotFound):
		fail(w, http.StatusNotFound, err.Error())
	case errors.Is(err, resource.ErrConflict), errors.Is(err, resource.ErrUIDMismatch), errors.Is(err, resource.ErrTerminating),
		errors.Is(err, resource.ErrGroupVersion):
		fail(w, http.StatusConflict, err.Error())
	default:
		fail(w, http.StatusInternalServerError, err.Error())
	}
}
