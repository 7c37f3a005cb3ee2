// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/wanfed/wanfed/api"
)

// query is what every endpoint understands of a request's parameters. Parameters that mean something to Consul only
// (stale, consistent, ...) are ignored: reads are always from the answering server's own store.
type query struct {
	values url.Values
	dc     string // empty: this one
	index  uint64 // 0: answer at once
	wait   time.Duration
	pretty bool
	body   []byte // of a request that is no read
}

// blocks says whether the request may wait for a change.
func (q query) blocks() bool { return q.index > 0 }

func parseQuery(raw string) (query, error) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return query{}, fmt.Errorf("bad query string: %w", err)
	}
	q := query{values: values, dc: values.Get("dc"), pretty: values.Has("pretty")}
	if s := values.Get("index"); s != "" {
		if q.index, err = strconv.ParseUint(s, 10, 64); err != nil {
			return query{}, fmt.Errorf("bad index %q: it must be a whole number, the %s of an earlier answer", s, api.HeaderIndex)
		}
	}
	var wait time.Duration
	if s := values.Get("wait"); s != "" {
		if wait, err = time.ParseDuration(s); err != nil || wait < 0 {
			return query{}, fmt.Errorf("bad wait %q: it must be a duration such as 10s or 5m", s)
		}
	}
	if q.blocks() {
		q.wait = api.EffectiveWait(wait)
	}
	return q, nil
}

// withoutToken is a query string for the log: clients of Consul may send a token, which means nothing here and is a secret elsewhere.
func withoutToken(raw string) string {
	if !strings.Contains(strings.ToLower(raw), "tok") && !strings.Contains(raw, "%") {
		return raw
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

// flag reads a parameter that is a switch: absent is false, without a value it is true.
func (q query) flag(name string) (bool, error) {
	if !q.values.Has(name) {
		return false, nil
	}
	s := q.values.Get(name)
	if s == "" {
		return true, nil
	}
	on, err := strconv.ParseBool(s)
	if err != nil {
		return false, badRequest{fmt.Errorf("bad %s %q: it must be 1 or 0", name, s)}
	}
	return on, nil
}
