// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

const typeJSON = "application/json"

// Header values that all responses share. No code changes them.
var (
	headerJSON    = []string{typeJSON}
	headerText    = []string{"text/plain; charset=utf-8"}
	headerNosniff = []string{"nosniff"}
)

const (
	// largeResponse is the size in bytes of the buffers of a connection. A
	// larger response stays in memory until the client reads it.
	largeResponse = 64 << 10
	// maxLarge bounds the large responses in flight to one peer. All clients
	// without a certificate are one peer.
	maxLarge = 256
)

// response is the result of an endpoint.
type response struct {
	body   any    // encoded, or a value to encode as JSON; nil: 404 without a body
	index  uint64 // 0: the endpoint does not support blocking
	status int    // 0: 200
	// stream writes the response instead of body. It sets its write deadlines.
	stream func(w http.ResponseWriter, r *http.Request)
}

// encoded is the body of a response that is sent without conversion. A body
// that is not JSON is a value that a client stored. A browser must therefore
// not show the body as a page.
type encoded struct {
	isJSON bool
	body   []byte
}

// badRequest is an error with the status 400.
type badRequest struct{ error }

// statusError is an error with the status and the text of its response.
type statusError struct {
	status int
	text   string
}

func (e statusError) Error() string { return e.text }

var errTooManyLarge = statusError{http.StatusServiceUnavailable,
	"too many large responses to you were not read yet: read them first, or request less"}

// sendLarge acquires a slot for a response of size bytes. It returns an error
// if all slots of the peer are in use. done releases the slot.
func (h *handler) sendLarge(ctx context.Context, size int) (done func(), err error) {
	if size <= largeResponse || isForwarded(ctx) { // package server/rpc bounds forwarded responses
		return func() {}, nil
	}
	p, _ := tlsutil.PeerFromContext(ctx)
	slot := h.large.TryAcquire(p)
	if slot == nil {
		return nil, errTooManyLarge
	}
	return slot.Release, nil
}

// write sends a response.
func (h *handler) write(w http.ResponseWriter, r *http.Request, resp response, pretty bool) {
	if resp.stream != nil {
		resp.stream(w, r)
		return
	}
	_, lastContact, known := h.Cluster.Leader()
	header := w.Header()
	putMeta(header, &pb.Brief{Index: resp.index, KnownLeader: known, LastContact: uint64(lastContact.Milliseconds())})
	if resp.body == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	e, ok := resp.body.(encoded)
	if !ok {
		body, err := json.Marshal(resp.body)
		if err != nil {
			writeError(w, http.StatusInternalServerError, err.Error())
			return
		}
		e = encoded{true, body}
	}
	if pretty && e.isJSON {
		e.body = indent(e.body)
	}
	done, err := h.sendLarge(r.Context(), len(e.body))
	if err != nil {
		writeFailure(w, r, err)
		return
	}
	defer done()
	setType(header, e.isJSON)
	if !e.isJSON {
		header.Set("Content-Security-Policy", "sandbox")
	}
	if resp.status != 0 {
		w.WriteHeader(resp.status)
	}
	_, _ = w.Write(e.body) // an error means that the client has disconnected
}

// setType sets the content type of a response: JSON or plain text.
func setType(h http.Header, isJSON bool) {
	h["Content-Type"] = headerText
	if isJSON {
		h["Content-Type"] = headerJSON
	}
	h["X-Content-Type-Options"] = headerNosniff
}

func indent(body []byte) []byte {
	out := bytes.Buffer{}
	if json.Indent(&out, body, "", "    ") != nil {
		return body
	}
	out.WriteByte('\n')
	return out.Bytes()
}

// writeError responds with text, without a newline. Clients of Consul compare
// some texts.
func writeError(w http.ResponseWriter, status int, text string) {
	setType(w.Header(), false)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

// writeFailure responds to a request that failed with err.
func writeFailure(w http.ResponseWriter, r *http.Request, err error) {
	err = resource.FromStatus(err)
	known, hasStatus := errors.AsType[statusError](err)
	_, bad := errors.AsType[badRequest](err)
	switch {
	case hasStatus:
		writeError(w, known.status, known.text)
	case bad, errors.Is(err, resource.ErrInvalid):
		writeError(w, http.StatusBadRequest, err.Error())
	case r.Context().Err() != nil: // the server stops, or the client has disconnected
		writeError(w, http.StatusServiceUnavailable,
			"the request was ended: this server is stopping; send it again, or to another server")
	case errors.Is(err, resource.ErrDenied):
		writeError(w, http.StatusForbidden, err.Error())
	case errors.Is(err, resource.ErrStarting):
		writeError(w, http.StatusServiceUnavailable, err.Error())
	case errors.Is(err, resource.ErrNotFound):
		writeError(w, http.StatusNotFound, err.Error())
	case errors.Is(err, resource.ErrConflict), errors.Is(err, resource.ErrUIDMismatch),
		errors.Is(err, resource.ErrTerminating), errors.Is(err, resource.ErrGroupVersion):
		writeError(w, http.StatusConflict, err.Error())
	default:
		writeError(w, http.StatusInternalServerError, err.Error())
	}
}

// orEmpty returns list, or an empty list for nil. JSON encodes nil as null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
