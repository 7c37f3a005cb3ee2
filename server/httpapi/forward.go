// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
)

const (
	// forwardTimeout bounds a request to another datacenter, in addition to its
	// wait. The time suffices for a dial through a second gateway.
	forwardTimeout = 10 * time.Second
	// maxForwarded bounds the body of a response to another datacenter, in
	// bytes. It leaves 64 KiB of the gRPC message for status and headers.
	maxForwarded = api.MaxMessageSize - 64<<10
	// maxHeaderValue bounds a header value that another server sent, in bytes.
	maxHeaderValue = 1024
)

// relayedHeaders are the headers that a response of another datacenter keeps on
// its way to the client, in addition to the content type.
var relayedHeaders = []string{api.HeaderIndex, api.HeaderKnownLeader, api.HeaderLastContact, api.HeaderCause}

// forward sends a request to datacenter q.dc and relays the response.
func (h *handler) forward(w http.ResponseWriter, r *http.Request, q query) {
	if isForwarded(r.Context()) {
		writeError(w, http.StatusBadRequest, fmt.Sprintf(
			"datacenter %s received a request for datacenter %s: a request is forwarded only once", h.DC, q.dc))
		return
	}
	q.values.Del("dc")
	req := &pb.QueryRequest{Path: r.URL.EscapedPath(), RawQuery: q.values.Encode(), Body: q.body, Brief: true}
	if !isRead(r.Method) {
		req.Method = r.Method
	}
	resp, err := h.Cluster.Query(r.Context(), q.dc, req, api.MaxBlockTime(q.wait)+forwardTimeout)
	switch {
	case err == nil:
		done, err := h.sendLarge(r.Context(), len(resp.GetBody()))
		if err != nil {
			writeFailure(w, r, err)
			return
		}
		defer done()
		relay(w, q.dc, resp)
	case r.Context().Err() == nil && errors.Is(err, ErrNoPath):
		writeUnreachable(w, ErrNoPath, err)
	case r.Context().Err() == nil && (errors.Is(err, ErrUnreachable) || errors.Is(err, context.DeadlineExceeded)):
		writeUnreachable(w, ErrUnreachable, err)
	default:
		writeFailure(w, r, err)
	}
}

// writeUnreachable responds with the text of known, which err wraps.
// api.HeaderCause has the rest of err.
func writeUnreachable(w http.ResponseWriter, known, err error) {
	header := w.Header()
	putMeta(header, &pb.Brief{Index: 1})
	if cause := strings.TrimPrefix(strings.TrimPrefix(err.Error(), known.Error()), ": "); cause != "" {
		header.Set(api.HeaderCause, headerValue(cause))
	}
	writeError(w, http.StatusInternalServerError, known.Error())
}

// relay writes the response of datacenter dc. The response is not trusted: a
// browser must never show it as a page.
func relay(w http.ResponseWriter, dc string, resp *pb.QueryResponse) {
	status := int(resp.GetStatus())
	if status < 200 || status > 599 {
		writeError(w, http.StatusInternalServerError, fmt.Sprintf(
			"datacenter %s responded with status %d: must be 200 to 599", dc, status))
		return
	}
	header, isJSON := w.Header(), strings.HasPrefix(resp.GetHeaders()["Content-Type"], typeJSON)
	if m := resp.GetBrief(); m != nil {
		putMeta(header, m)
		isJSON = m.GetJson()
	}
	for _, key := range relayedHeaders {
		if v, ok := resp.GetHeaders()[key]; ok {
			header.Set(key, headerValue(v))
		}
	}
	setType(header, isJSON)
	if len(resp.GetBody()) == 0 {
		header.Del("Content-Type")
	}
	w.WriteHeader(status)
	_, _ = w.Write(resp.GetBody())
}

// headerValue returns s without control characters, shortened to
// maxHeaderValue.
func headerValue(s string) string {
	s = s[:min(len(s), maxHeaderValue)]
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, s)
}

// forwardedKey marks the context of a request that another datacenter
// forwarded.
type forwardedKey struct{}

func isForwarded(ctx context.Context) bool { return ctx.Value(forwardedKey{}) != nil }

// Serve serves a request that a server of another datacenter forwarded. It
// returns the response that h, a handler of New, would send over HTTP. Serve
// blocks for the wait of a blocking query, or until ctx ends. If the request is
// malformed or its response is above [api.MaxMessageSize], Serve returns a
// response with an error status. The only possible error is the error of ctx.
func Serve(ctx context.Context, h http.Handler, req *pb.QueryRequest) (*pb.QueryResponse, error) {
	w := &recorder{header: http.Header{}}
	r, err := requestOf(ctx, req)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return w.response(req.GetBrief()), nil
	}
	h.ServeHTTP(w, r)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if w.tooLarge {
		w = &recorder{header: http.Header{}}
		writeError(w, http.StatusInternalServerError, fmt.Sprintf(
			"response is larger than %d bytes, the most for another datacenter; send the request to a server "+
				"there by HTTP",
			maxForwarded))
	}
	return w.response(req.GetBrief()), nil
}

// requestOf returns the HTTP request for req. Only paths under /v1/ are
// allowed.
func requestOf(ctx context.Context, req *pb.QueryRequest) (*http.Request, error) {
	path, err := url.PathUnescape(req.GetPath())
	if err != nil || !strings.HasPrefix(path, "/v1/") || strings.ContainsAny(req.GetPath(), "?#") {
		return nil, fmt.Errorf("bad path %.100q: must be under /v1/", req.GetPath())
	}
	method := cmp.Or(req.GetMethod(), http.MethodGet)
	if !slices.Contains([]string{http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete}, method) {
		return nil, fmt.Errorf("bad method %.20q", method)
	}
	r := &http.Request{
		Method: method, URL: &url.URL{Path: path, RawPath: req.GetPath(), RawQuery: req.GetRawQuery()},
		Host:  "localhost",
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody,
	}
	if len(req.GetBody()) > 0 {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(req.GetBody())), int64(len(req.GetBody()))
	}
	return r.WithContext(context.WithValue(ctx, forwardedKey{}, true)), nil
}

var errTooLarge = errors.New("response is too large")

// recorder records a response of at most maxForwarded bytes.
type recorder struct {
	header   http.Header
	status   int
	body     bytes.Buffer
	tooLarge bool
}

func (r *recorder) Header() http.Header { return r.header }

// SetWriteDeadline does nothing: Write never blocks.
func (r *recorder) SetWriteDeadline(time.Time) error { return nil }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

func (r *recorder) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if r.tooLarge || r.body.Len()+len(b) > maxForwarded {
		r.tooLarge = true
		return 0, errTooLarge
	}
	return r.body.Write(b)
}

// response returns the recorded response. If brief is true, its headers are a
// pb.Brief where possible. A caller of an earlier version supports only
// Headers.
func (r *recorder) response(brief bool) *pb.QueryResponse {
	resp := &pb.QueryResponse{Status: int32(max(r.status, http.StatusOK)), Body: r.body.Bytes()}
	if brief {
		resp.Brief = metaOf(r.header)
	}
	if resp.Brief == nil {
		resp.Headers = make(map[string]string, len(relayedHeaders)+1)
		for key := range r.header {
			if key == "Content-Type" || slices.Contains(relayedHeaders, key) {
				resp.Headers[key] = r.header.Get(key)
			}
		}
	}
	return resp
}

// metaOf returns relayedHeaders as numbers, which are shorter than a map of
// strings. It returns nil unless putMeta can restore the same headers.
func metaOf(h http.Header) *pb.Brief {
	m := &pb.Brief{
		KnownLeader: firstValue(h, api.HeaderKnownLeader) == "true",
		Json:        strings.HasPrefix(firstValue(h, "Content-Type"), typeJSON),
	}
	if v := firstValue(h, api.HeaderIndex); v != "" {
		index, err := strconv.ParseUint(v, 10, 64)
		if err != nil || index == 0 {
			return nil
		}
		m.Index = index
	}
	var err error
	m.LastContact, err = strconv.ParseUint(firstValue(h, api.HeaderLastContact), 10, 64)
	if err != nil || firstValue(h, api.HeaderKnownLeader) == "" || firstValue(h, api.HeaderCause) != "" {
		return nil
	}
	return m
}

// putMeta sets the headers of m, except the content type.
func putMeta(h http.Header, m *pb.Brief) {
	values := make([]string, 0, 3) // one allocation for all
	put := func(key, v string) {
		values = append(values, v)
		h[key] = values[len(values)-1 : len(values) : len(values)]
	}
	if m.GetIndex() > 0 {
		put(api.HeaderIndex, strconv.FormatUint(m.GetIndex(), 10))
	}
	put(api.HeaderKnownLeader, strconv.FormatBool(m.GetKnownLeader()))
	put(api.HeaderLastContact, strconv.FormatUint(m.GetLastContact(), 10))
}

// firstValue is h.Get for a key in canonical form.
func firstValue(h http.Header, key string) string {
	if v := h[key]; len(v) > 0 {
		return v[0]
	}
	return ""
}
