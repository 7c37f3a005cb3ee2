// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
)

// forwardMargin is what asking another datacenter may take besides the wait: dialing, perhaps over a second gateway.
const forwardMargin = 10 * time.Second

// forward answers with what another datacenter answers.
func (h *handler) forward(w http.ResponseWriter, r *http.Request, q query) {
	if isForwarded(r.Context()) {
		fail(w, http.StatusBadRequest, fmt.Sprintf("datacenter %s was asked about datacenter %s: a query is sent on only once", h.dc, q.dc))
		return
	}
	rest := q.values // which nobody looks at after this
	rest.Del("dc")
	req := &pb.QueryRequest{Path: r.URL.EscapedPath(), RawQuery: rest.Encode(), Body: q.body, Brief: true}
	if !reads(r.Method) {
		req.Method = r.Method
	}
	resp, err := h.src.Query(r.Context(), q.dc, req, api.MaxBlockTime(q.wait)+forwardMargin)
	switch {
	case err == nil:
		end, err := h.sendLarge(r.Context(), len(resp.GetBody()))
		if err != nil {
			h.failed(w, r, err)
			return
		}
		defer end()
		relay(w, q.dc, resp)
	case r.Context().Err() != nil:
		h.failed(w, r, err)
	case errors.Is(err, ErrNoPath):
		noPath(w, ErrNoPath, err)
	case errors.Is(err, ErrUnreachable), errors.Is(err, context.DeadlineExceeded): // or no answer in time
		noPath(w, ErrUnreachable, err)
	default:
		h.failed(w, r, err)
	}
}

// noPath answers with the text of known and puts what err says more into a header.
func noPath(w http.ResponseWriter, known, err error) {
	header := w.Header()
	header.Set(api.HeaderIndex, "1")
	header.Set(api.HeaderKnownLeader, "false")
	header.Set(api.HeaderLastContact, "0")
	if cause := strings.TrimPrefix(strings.TrimPrefix(err.Error(), known.Error()), ": "); cause != "" {
		header.Set(api.HeaderCause, oneLine(cause))
	}
	fail(w, http.StatusInternalServerError, known.Error())
}

// relayed are the headers taken over from another datacenter, besides the content type.
var relayed = []string{api.HeaderIndex, api.HeaderKnownLeader, api.HeaderLastContact, api.HeaderCause}

// relay writes the answer of datacenter dc. Nothing in it is trusted: a browser must never see it as a page.
func relay(w http.ResponseWriter, dc string, resp *pb.QueryResponse) {
	status := int(resp.GetStatus())
	if status < 200 || status > 599 {
		fail(w, http.StatusInternalServerError, fmt.Sprintf("datacenter %s answered with status %d, which HTTP does not have", dc, status))
		return
	}
	header, isJSON := w.Header(), strings.HasPrefix(resp.GetHeaders()["Content-Type"], typeJSON)
	if b := resp.GetBrief(); b != nil {
		putBrief(header, b)
		isJSON = b.GetJson()
	}
	for _, key := range relayed {
		if v, ok := resp.GetHeaders()[key]; ok {
			header.Set(key, oneLine(v))
		}
	}
	if len(resp.GetBody()) > 0 {
		contentType := ""
		if isJSON {
			contentType = typeJSON
		}
		setType(header, contentType)
	} else {
		header["X-Content-Type-Options"] = headerNosniff
	}
	w.WriteHeader(status)
	_, _ = w.Write(resp.GetBody())
}

// maxHeader bounds a header's value that others have a say in, in bytes.
const maxHeader = 1024

// oneLine makes s fit for a header.
func oneLine(s string) string {
	s = s[:min(len(s), maxHeader)]
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, s)
}
