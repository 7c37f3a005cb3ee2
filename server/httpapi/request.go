// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"bytes"
	"encoding/json"
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
	"github.com/wanfed/wanfed/resource"
)

// MaxRequestBody bounds the body of a request, in bytes: a resource and the
// JSON around it.
const MaxRequestBody = resource.MaxSize + 64<<10

// query is the parameters and the body of a request.
type query struct {
	values url.Values // all parameters
	dc     string     // "": the local datacenter
	index  uint64     // 0: do not block
	wait   time.Duration
	pretty bool
	body   []byte // nil for a read
}

// blocks reports whether the request may wait for a change.
func (q query) blocks() bool { return q.index > 0 }

// readRequest reads the parameters and the body of a request.
func readRequest(w http.ResponseWriter, r *http.Request) (query, error) {
	for _, name := range []string{"X-Consul-Namespace", "X-Consul-Partition"} {
		if firstValue(r.Header, name) != "" {
			return query{}, badRequest{fmt.Errorf("header %s is not supported: leave it out", name)}
		}
	}
	q, err := parseQuery(r.URL.RawQuery)
	if err != nil {
		return q, badRequest{err}
	}
	if err := rejectToken(r, q.values); err != nil {
		return q, err
	}
	q.body, err = readBody(w, r)
	return q, err
}

// rejectToken returns an error if the request has an ACL token of Consul. The
// caller expects the rights of the token, which wanfed does not know. The
// parameter counts in any case, because redactToken hides it in any case. An
// empty token is the anonymous one.
func rejectToken(r *http.Request, values url.Values) error {
	where := ""
	scheme, secret, _ := strings.Cut(firstValue(r.Header, "Authorization"), " ")
	switch {
	case firstValue(r.Header, "X-Consul-Token") != "":
		where = "header X-Consul-Token"
	case strings.EqualFold(scheme, "Bearer") && strings.TrimSpace(secret) != "":
		where = "header Authorization"
	}
	for name := range values {
		if strings.EqualFold(name, "token") && slices.ContainsFunc(values[name], func(s string) bool { return s != "" }) {
			where = "parameter token"
		}
	}
	if where == "" {
		return nil
	}
	return statusError{http.StatusForbidden, "ACL tokens are not supported: certificates decide who may do what; " +
		"leave the token out (" + where + "; clients read it from CONSUL_HTTP_TOKEN)"}
}

func parseQuery(raw string) (query, error) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return query{}, fmt.Errorf("bad query string: %w", err)
	}
	q := query{values: values, dc: values.Get("dc"), pretty: values.Has("pretty")}
	if s := values.Get("index"); s != "" {
		if q.index, err = strconv.ParseUint(s, 10, 64); err != nil {
			return query{}, fmt.Errorf("bad index %q: must be a whole number, the %s of an earlier response",
				s, api.HeaderIndex)
		}
	}
	var wait time.Duration
	if s := values.Get("wait"); s != "" {
		if wait, err = time.ParseDuration(s); err != nil || wait < 0 {
			return query{}, fmt.Errorf("bad wait %q: must be a duration such as 10s or 5m", s)
		}
	}
	if q.blocks() {
		q.wait = api.EffectiveWait(wait)
	}
	return q, nil
}

// flag returns the value of a boolean parameter: false if the parameter is
// absent, true if it has no value.
func (q query) flag(name string) (bool, error) {
	s := q.values.Get(name)
	if s == "" {
		return q.values.Has(name), nil
	}
	on, err := strconv.ParseBool(s)
	if err != nil {
		return false, badRequest{fmt.Errorf("bad %s %q: must be 1 or 0", name, s)}
	}
	return on, nil
}

// oneOf returns the name of the boolean parameter that is true, or "" if all
// are false. It returns an error if several are true.
func (q query) oneOf(names ...string) (given string, err error) {
	var all []string
	for _, name := range names {
		on, err := q.flag(name)
		if err != nil {
			return "", err
		}
		if on {
			all = append(all, name)
		}
	}
	if len(all) > 1 {
		return "", badRequest{fmt.Errorf("conflicting flags: %s", strings.Join(all, ", "))}
	}
	return strings.Join(all, ""), nil
}

// reject returns an error if one of the unsupported parameters is given.
// Ignoring them would return a wrong result.
func (q query) reject(names ...string) error {
	for _, name := range names {
		if q.values.Get(name) != "" {
			return badRequest{fmt.Errorf("parameter %s is not supported: leave it out", name)}
		}
	}
	return nil
}

// consistency returns the consistency of a read. Clients of Consul expect
// linearizable reads on any server, except with ?stale.
func (q query) consistency() (resource.Consistency, error) {
	stale, err := q.flag("stale")
	if err != nil {
		return 0, err
	}
	consistent, err := q.flag("consistent")
	switch {
	case err != nil:
		return 0, err
	case stale && consistent:
		return 0, badRequest{errors.New("cannot specify ?stale with ?consistent, conflicting semantics")}
	case stale:
		return resource.Eventual, nil
	}
	return resource.Strong, nil
}

// redactToken returns a query string for the log, without the token of clients
// of Consul. wanfed refuses the token, which may be a secret of another system.
func redactToken(raw string) string {
	if !strings.Contains(strings.ToLower(raw), "token") && !strings.Contains(raw, "%") {
		return raw // no parameter has the name token, not even with an escaped letter
	}
	parts := strings.Split(raw, "&")
	for i, part := range parts {
		name, _, _ := strings.Cut(part, "=")
		if plain, err := url.QueryUnescape(name); err != nil || strings.EqualFold(plain, "token") {
			parts[i] = name + "=..."
		}
	}
	return strings.Join(parts, "&")
}

// readBody returns the body of a request other than a read.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if isRead(r.Method) || r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxRequestBody))
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, statusError{http.StatusRequestEntityTooLarge,
			fmt.Sprintf("the request's body is larger than %d bytes", tooLarge.Limit)}
	}
	if err != nil {
		return nil, badRequest{fmt.Errorf("read the request's body: %w", err)}
	}
	return b, nil
}

// decodeBody decodes a body of one JSON value. kind names the value in errors:
// "object" or "list".
func decodeBody(body []byte, into any, kind string) error {
	dec := json.NewDecoder(bytes.NewReader(body))
	if err := dec.Decode(into); err != nil {
		return badRequest{fmt.Errorf("request decode failed: %w", err)}
	}
	if dec.More() {
		return badRequest{fmt.Errorf("request decode failed: data after the %s", kind)}
	}
	return nil
}

// isEmpty reports whether a JSON value is absent or empty.
func isEmpty(raw json.RawMessage) bool {
	switch strings.TrimSpace(string(raw)) {
	case "", "null", "{}", "[]":
		return true
	}
	return false
}
