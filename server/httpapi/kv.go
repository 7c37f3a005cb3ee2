// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/wanfed/wanfed/kv"
	"github.com/wanfed/wanfed/resource"
)

var errNoKey = badRequest{errors.New("Missing key name")} //lint:ignore ST1005 Consul's text

// kvEntry is a key in Consul's JSON. An empty value is null.
type kvEntry struct {
	LockIndex   uint64
	Key         string
	Flags       uint64
	Value       []byte
	Session     string `json:",omitempty"`
	CreateIndex uint64
	ModifyIndex uint64
}

func kvEntryOf(e *kv.Entry) kvEntry {
	out := kvEntry{
		Key: e.Key, Flags: e.Flags, LockIndex: e.LockIndex, Session: e.Session,
		CreateIndex: e.CreateIndex, ModifyIndex: e.ModifyIndex,
	}
	if len(e.Value) > 0 {
		out.Value = e.Value
	}
	return out
}

func (h *handler) kvGet(r *http.Request, q query) (response, error) {
	if err := q.reject("ns", "partition", "peer"); err != nil {
		return response{}, err
	}
	form, err := q.oneOf("recurse", "keys", "raw")
	if err != nil {
		return response{}, err
	}
	name := r.URL.Path[len(kvPath):]
	switch form {
	case "keys":
		return h.kvKeys(r.Context(), q, name)
	case "recurse":
		return h.kvList(r.Context(), q, name)
	}
	if name == "" {
		return response{}, errNoKey
	}
	e, index, err := blocking(r.Context(), q,
		func(ctx context.Context, c resource.Consistency) (*kv.Entry, uint64, error) {
			return h.kv.Get(ctx, c, name)
		},
		func(ctx context.Context, after uint64) error { return h.kv.WaitKey(ctx, name, after) },
		func(a, b *kv.Entry) bool { return modifyIndex(a) == modifyIndex(b) })
	switch {
	case err != nil:
		return response{}, err
	case e == nil:
		return response{index: index}, nil
	case form == "raw":
		return response{body: encoded{false, e.Value}, index: index}, nil
	}
	return response{body: []kvEntry{kvEntryOf(e)}, index: index}, nil
}

// modifyIndex returns the index of the last change of e, or 0 for nil.
func modifyIndex(e *kv.Entry) uint64 {
	if e == nil {
		return 0
	}
	return e.ModifyIndex
}

func (h *handler) kvList(ctx context.Context, q query, prefix string) (response, error) {
	entries, index, err := blocking(ctx, q,
		func(ctx context.Context, c resource.Consistency) ([]kv.Entry, uint64, error) {
			return h.kv.List(ctx, c, prefix)
		},
		func(ctx context.Context, after uint64) error { return h.kv.WaitPrefix(ctx, prefix, after) },
		func(a, b []kv.Entry) bool {
			return slices.EqualFunc(a, b, func(x, y kv.Entry) bool {
				return x.Key == y.Key && x.ModifyIndex == y.ModifyIndex
			})
		})
	if err != nil || len(entries) == 0 {
		return response{index: index}, err
	}
	out := make([]kvEntry, len(entries))
	for i := range entries {
		out[i] = kvEntryOf(&entries[i])
	}
	return response{body: out, index: index}, nil
}

func (h *handler) kvKeys(ctx context.Context, q query, prefix string) (response, error) {
	keys, index, err := blocking(ctx, q,
		func(ctx context.Context, c resource.Consistency) ([]string, uint64, error) {
			return h.kv.Keys(ctx, c, prefix, q.values.Get("separator"))
		},
		func(ctx context.Context, after uint64) error { return h.kv.WaitPrefix(ctx, prefix, after) },
		// As in Consul, a changed value also ends the wait.
		func(a, b []string) bool { return false })
	if err != nil || len(keys) == 0 {
		return response{index: index}, err
	}
	return response{body: keys, index: index}, nil
}

func (h *handler) kvPut(r *http.Request, q query) (response, error) {
	e, condition, err := kvWrite(r, q)
	if err != nil {
		return response{}, err
	}
	if e.Key == "" {
		return response{}, errNoKey
	}
	if n := len(q.body); n > kv.MaxValue {
		return response{}, errValueTooLarge(n)
	}
	e.Value = q.body
	done := false
	err = untilLeader(r.Context(), func(ctx context.Context) (err error) {
		switch {
		case q.values.Has("acquire"):
			done, err = h.kv.Lock(ctx, e)
		case q.values.Has("release"):
			done, err = h.kv.Unlock(ctx, e)
		default:
			done, err = h.kv.Put(ctx, e, condition)
		}
		return err
	})
	if errors.Is(err, kv.ErrNoSession) { // clients of Consul expect this status
		err = statusError{http.StatusInternalServerError, err.Error()}
	}
	return response{body: done}, err
}

func errValueTooLarge(n int) error {
	return statusError{http.StatusRequestEntityTooLarge,
		fmt.Sprintf("Request body(%d bytes) too large, max size: %d bytes.", n, kv.MaxValue)}
}

// kvWrite returns the key, its flags and the condition of a write.
func kvWrite(r *http.Request, q query) (e kv.Entry, condition kv.Precondition, err error) {
	e.Key = r.URL.Path[len(kvPath):]
	if err := q.reject("ns", "partition"); err != nil {
		return e, condition, err
	}
	given := slices.DeleteFunc([]string{"cas", "acquire", "release"}, func(name string) bool { return !q.values.Has(name) })
	switch {
	case len(given) > 1:
		return e, condition, badRequest{fmt.Errorf("conflicting flags: %s", strings.Join(given, ", "))}
	case q.values.Has("acquire"), q.values.Has("release"):
		e.Session = q.values.Get(given[0])
		if err := resource.CheckName(e.Session); err != nil {
			return e, condition, badRequest{fmt.Errorf("bad %s: the id of a session is required: %w", given[0], err)}
		}
	}
	if q.values.Has("flags") {
		s := q.values.Get("flags")
		if e.Flags, err = strconv.ParseUint(s, 10, 64); err != nil {
			return e, condition, badRequest{fmt.Errorf("bad flags %q: must be a number from 0 to 2^64-1", s)}
		}
	}
	if q.values.Has("cas") {
		s := q.values.Get("cas")
		index, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return e, condition, badRequest{fmt.Errorf(
				"bad cas %q: must be the ModifyIndex of the key, or 0 for a new one", s)}
		}
		condition = kv.IfIndex(index)
	}
	return e, condition, nil
}

func (h *handler) kvDelete(r *http.Request, q query) (response, error) {
	e, condition, err := kvWrite(r, q)
	if err != nil {
		return response{}, err
	}
	recurse, err := q.flag("recurse")
	switch {
	case err != nil:
		return response{}, err
	case e.Session != "":
		return response{}, badRequest{errors.New("acquire and release need the method PUT")}
	case recurse && condition.Required:
		return response{}, badRequest{errors.New("conflicting flags: recurse, cas")}
	case e.Key == "" && !recurse:
		return response{}, errNoKey
	}
	done := true
	err = untilLeader(r.Context(), func(ctx context.Context) (err error) {
		if recurse {
			return h.kv.DeleteTree(ctx, e.Key)
		}
		done, err = h.kv.Delete(ctx, e.Key, condition)
		return err
	})
	return response{body: done}, err
}
