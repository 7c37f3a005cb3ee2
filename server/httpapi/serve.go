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
	"strings"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
)

// maxBody bounds an answer to another datacenter, in bytes: a gRPC message with room for status and headers.
const maxBody = api.MaxMessageSize - 64<<10

var errTooLarge = errors.New("answer is too large")

// forwardedKey marks the context of a request that another datacenter's server sent on.
type forwardedKey struct{}

func isForwarded(ctx context.Context) bool { return ctx.Value(forwardedKey{}) != nil }

// Serve answers a query of another datacenter's server through h, a handler of New: the same answer as over HTTP. It blocks
// as the query asks; ctx ends it. Refusals (no such path, malformed query, answer above api.MaxMessageSize) are answers,
// not errors; the only error is that of ctx.
func Serve(ctx context.Context, h http.Handler, req *pb.QueryRequest) (*pb.QueryResponse, error) {
	w := &recorder{header: http.Header{}}
	r, err := requestOf(ctx, req)
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return w.response(req.GetBrief()), nil
	}
	h.ServeHTTP(w, r)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if w.tooLarge {
		w = &recorder{header: http.Header{}}
		fail(w, http.StatusInternalServerError, fmt.Sprintf(
			"answer is larger than %d bytes, the most that goes to another datacenter; ask a server there by HTTP", maxBody))
	}
	return w.response(req.GetBrief()), nil
}

// requestOf makes the HTTP request that req stands for. Only the API may be asked, not metrics.
func requestOf(ctx context.Context, req *pb.QueryRequest) (*http.Request, error) {
	path, err := url.PathUnescape(req.GetPath())
	if err != nil || !strings.HasPrefix(path, "/v1/") || strings.ContainsAny(req.GetPath(), "?#") {
		return nil, fmt.Errorf("bad path %.100q: it must be one of the HTTP API, under /v1/", req.GetPath())
	}
	u := &url.URL{Path: path, RawPath: req.GetPath(), RawQuery: req.GetRawQuery()}
	method := cmp.Or(req.GetMethod(), http.MethodGet)
	if !slices.Contains([]string{http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete}, method) {
		return nil, fmt.Errorf("bad method %.20q", method)
	}
	r := &http.Request{
		Method: method, URL: u, Host: "localhost",
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody,
	}
	if len(req.GetBody()) > 0 {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(req.GetBody())), int64(len(req.GetBody()))
	}
	return r.WithContext(context.WithValue(ctx, forwardedKey{}, true)), nil
}

// recorder keeps an answer of at most maxBody bytes.
type recorder struct {
	header   http.Header
	status   int
	body     bytes.Buffer
	tooLarge bool
}

func (r *recorder) Header() http.Header { return r.header }

// SetWriteDeadline does nothing: to write here never blocks.
func (r *recorder) SetWriteDeadline(time.Time) error { return nil }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

func (r *recorder) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if r.tooLarge || r.body.Len()+len(b) > maxBody {
		r.tooLarge = true
		return 0, errTooLarge
	}
	return r.body.Write(b)
}

func (r *recorder) response(brief bool) *pb.QueryResponse {
	resp := &pb.QueryResponse{Status: int32(max(r.status, http.StatusOK)), Body: r.body.Bytes()}
	if brief {
		resp.Brief = briefOf(r.header)
	}
	if resp.Brief == nil {
		resp.Headers = r.headers()
	}
	return resp
}

func (r *recorder) headers() map[string]string {
	headers := make(map[string]string, len(relayed)+1)
	for key := range r.header {
		if key == "Content-Type" || slices.Contains(relayed, key) { // of the rest nothing would be taken over
			headers[key] = r.header.Get(key)
		}
	}
	return headers
}
