// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/wanfed/wanfed/kv"
	"github.com/wanfed/wanfed/resource"
)

// kvPath is what the paths of keys begin with. A key is the rest of the path, whatever it has of "//" and "..".
const kvPath = "/v1/kv/"

// kvFirst answers for keys itself and leaves the rest to next: a ServeMux would clean their paths.
func (h *handler) kvFirst(next http.Handler) http.Handler {
	methods := map[string]http.Handler{
		http.MethodGet: h.serve(h.kvGet), http.MethodHead: h.serve(h.kvGet),
		http.MethodPut: h.serve(h.kvPut), http.MethodDelete: h.serve(h.kvDelete),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, kvPath) {
			next.ServeHTTP(w, r)
			return
		}
		if m, ok := methods[r.Method]; ok {
			m.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Allow", "GET, HEAD, PUT, DELETE")
		fail(w, http.StatusMethodNotAllowed, "method "+r.Method+" not allowed")
	})
}

var errNoKey = badRequest{errors.New("Missing key name")} //lint:ignore ST1005 Consul's text

// flags reads switches, of which at most one may be given.
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

// unknown refuses parameters that would change the answer if they were understood: to ignore them would be a wrong answer.
func (q query) unknown(names ...string) error {
	for _, name := range names {
		if q.values.Get(name) != "" {
			return badRequest{fmt.Errorf("parameter %s is not supported: leave it out", name)}
		}
	}
	return nil
}

func (h *handler) kvGet(r *http.Request, q query) (answer, error) {
	if err := q.unknown("ns", "partition", "peer"); err != nil {
		return answer{}, err
	}
	how, err := q.oneOf("recurse", "keys", "raw")
	if err != nil {
		return answer{}, err
	}
	name := r.URL.Path[len(kvPath):]
	switch how {
	case "keys":
		return h.kvKeys(r.Context(), q, name)
	case "recurse":
		return h.kvList(r.Context(), q, name)
	}
	if name == "" {
		return answer{}, errNoKey
	}
	e, index, err := blocking(r.Context(), q,
		func(ctx context.Context, c resource.Consistency) (*kv.Entry, uint64, error) {
			return h.kv.Get(ctx, c, name)
		},
		func(ctx context.Context, after uint64) error { return h.kv.WaitKey(ctx, name, after) },
		func(a, b *kv.Entry) bool { return modified(a) == modified(b) })
	switch {
	case err != nil:
		return answer{}, err
	case e == nil:
		return answer{index: index}, nil
	case how == "raw":
		return answer{body: encoded{"", e.Value}, index: index}, nil
	}
	b := append(make([]byte, 0, 128+len(name)+base64.StdEncoding.EncodedLen(len(e.Value))), '[')
	return answer{body: encoded{typeJSON, append(appendEntry(b, e), ']')}, index: index}, nil
}

func modified(e *kv.Entry) uint64 {
	if e == nil {
		return 0
	}
	return e.ModifyIndex
}

func (h *handler) kvList(ctx context.Context, q query, prefix string) (answer, error) {
	entries, index, err := blocking(ctx, q,
		func(ctx context.Context, c resource.Consistency) ([]kv.Entry, uint64, error) {
			return h.kv.List(ctx, c, prefix)
		},
		func(ctx context.Context, after uint64) error { return h.kv.WaitPrefix(ctx, prefix, after) },
		func(a, b []kv.Entry) bool {
			return slices.EqualFunc(a, b, func(x, y kv.Entry) bool { return x.Key == y.Key && x.ModifyIndex == y.ModifyIndex })
		})
	if err != nil || len(entries) == 0 {
		return answer{index: index}, err
	}
	b := []byte{'['}
	for i := range entries {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendEntry(b, &entries[i])
	}
	return answer{body: encoded{typeJSON, append(b, ']')}, index: index}, nil
}

func (h *handler) kvKeys(ctx context.Context, q query, prefix string) (answer, error) {
	keys, index, err := blocking(ctx, q,
		func(ctx context.Context, c resource.Consistency) ([]string, uint64, error) {
			return h.kv.Keys(ctx, c, prefix, q.values.Get("separator"))
		},
		func(ctx context.Context, after uint64) error { return h.kv.WaitPrefix(ctx, prefix, after) },
		// Who blocks on keys is told of changed values too, as by Consul.
		func(a, b []string) bool { return false })
	if err != nil || len(keys) == 0 {
		return answer{index: index}, err
	}
	return answer{body: keys, index: index}, nil
}

// appendEntry appends an entry as Consul writes it. It is by hand since this is the answer that is asked for most.
func appendEntry(b []byte, e *kv.Entry) []byte {
	b = append(b, `{"LockIndex":0,"Key":`...)
	b = appendString(b, e.Key)
	b = append(b, `,"Flags":`...)
	b = strconv.AppendUint(b, e.Flags, 10)
	b = append(b, `,"Value":`...)
	if len(e.Value) == 0 {
		b = append(b, "null"...)
	} else {
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, e.Value)
		b = append(b, '"')
	}
	b = append(b, `,"CreateIndex":`...)
	b = strconv.AppendUint(b, e.CreateIndex, 10)
	b = append(b, `,"ModifyIndex":`...)
	b = strconv.AppendUint(b, e.ModifyIndex, 10)
	return append(b, '}')
}

// appendString appends s as a JSON string.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			quoted, err := json.Marshal(s)
			if err != nil {
				panic(err) // a string always has an encoding
			}
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

func (h *handler) kvPut(r *http.Request, q query) (answer, error) {
	e, only, err := kvWrite(r, q)
	if err != nil {
		return answer{}, err
	}
	if e.Key == "" {
		return answer{}, errNoKey
	}
	if n := len(q.body); n > kv.MaxValue {
		return answer{}, tooLarge(n)
	}
	e.Value = q.body
	done := false
	err = held(r.Context(), func(ctx context.Context) (err error) {
		done, err = h.kv.Put(ctx, e, only)
		return err
	})
	return answer{body: done}, err
}

// noLocks says what to do instead.
const noLocks = "wanfed has no sessions and locks; cas writes only what nobody else has changed"

func tooLarge(n int) error {
	return statusError{http.StatusRequestEntityTooLarge, fmt.Sprintf("Request body(%d bytes) too large, max size: %d bytes.", n, kv.MaxValue)}
}

// kvWrite reads what the parameters of a write say: the key, its flags, and the condition.
func kvWrite(r *http.Request, q query) (e kv.Entry, only kv.Precondition, err error) {
	e.Key = r.URL.Path[len(kvPath):]
	if err := q.unknown("ns", "partition"); err != nil {
		return e, only, err
	}
	for _, name := range []string{"acquire", "release"} {
		if q.values.Has(name) {
			return e, only, badRequest{fmt.Errorf("no ?%s: %s", name, noLocks)}
		}
	}
	if q.values.Has("flags") {
		if e.Flags, err = strconv.ParseUint(q.values.Get("flags"), 10, 64); err != nil {
			return e, only, badRequest{fmt.Errorf("bad flags %q: must be a number from 0 to 2^64-1", q.values.Get("flags"))}
		}
	}
	if q.values.Has("cas") {
		index, err := strconv.ParseUint(q.values.Get("cas"), 10, 64)
		if err != nil {
			return e, only, badRequest{fmt.Errorf("bad cas %q: must be the ModifyIndex of the key, or 0 for a new one", q.values.Get("cas"))}
		}
		only = kv.IfIndex(index)
	}
	return e, only, nil
}

func (h *handler) kvDelete(r *http.Request, q query) (answer, error) {
	e, only, err := kvWrite(r, q)
	if err != nil {
		return answer{}, err
	}
	recurse, err := q.flag("recurse")
	switch {
	case err != nil:
		return answer{}, err
	case recurse && only.Required:
		return answer{}, badRequest{errors.New("conflicting flags: recurse, cas")}
	case e.Key == "" && !recurse:
		return answer{}, errNoKey
	}
	done := true
	err = held(r.Context(), func(ctx context.Context) (err error) {
		if recurse {
			return h.kv.DeleteTree(ctx, e.Key)
		}
		done, err = h.kv.Delete(ctx, e.Key, only)
		return err
	})
	return answer{body: done}, err
}
