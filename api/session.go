// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// SessionRequest describes a session to create.
type SessionRequest struct {
	Name string // need not be unique
	// TTL is the time that the session may be without a renewal: 10 s to 24 h. An
	// expired session ends within another half of the TTL. 0: the session does
	// not expire.
	TTL time.Duration
	// LockDelay is the time after the end of the session during which its keys
	// cannot be locked, at most a minute.
	LockDelay time.Duration
}

// Key is a key of the key-value store.
type Key struct {
	Key         string
	Value       []byte
	Flags       uint64
	Session     string // id of the session that has locked the key; empty: none
	LockIndex   uint64 // number of times that the key was locked
	ModifyIndex uint64
}

// CreateSession creates a session and returns its id.
func (c *Client) CreateSession(ctx context.Context, s SessionRequest, q QueryOptions) (id string, err error) {
	body := map[string]string{"Name": s.Name, "LockDelay": s.LockDelay.String()}
	if s.TTL > 0 {
		body["TTL"] = s.TTL.String()
	}
	encoded, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	var out struct{ ID string }
	err = c.write(ctx, http.MethodPut, "/v1/session/create", q.values(), encoded, &out)
	return out.ID, err
}

// RenewSession restarts the TTL of a session. It returns ErrNoSession if the
// session does not exist.
func (c *Client) RenewSession(ctx context.Context, id string, q QueryOptions) error {
	err := c.write(ctx, http.MethodPut, "/v1/session/renew/"+url.PathEscape(id), q.values(), nil, nil)
	if IsStatus(err, http.StatusNotFound) {
		return fmt.Errorf("renew session %s: %w", id, ErrNoSession)
	}
	return err
}

// DestroySession ends a session and releases its keys.
func (c *Client) DestroySession(ctx context.Context, id string, q QueryOptions) error {
	return c.write(ctx, http.MethodPut, "/v1/session/destroy/"+url.PathEscape(id), q.values(), nil, nil)
}

// LockKey writes value and flags of k and locks the key for session k.Session.
// It returns false if another session has locked the key, or during a lock
// delay.
func (c *Client) LockKey(ctx context.Context, k Key, q QueryOptions) (locked bool, err error) {
	values := q.values()
	values.Set("flags", strconv.FormatUint(k.Flags, 10))
	values.Set("acquire", k.Session)
	err = c.write(ctx, http.MethodPut, keyPath(k.Key), values, k.Value, &locked)
	return locked, err
}

// UnlockKey writes value and flags of k and removes the lock of session
// k.Session. It returns false if the session has not locked the key.
func (c *Client) UnlockKey(ctx context.Context, k Key, q QueryOptions) (unlocked bool, err error) {
	values := q.values()
	values.Set("flags", strconv.FormatUint(k.Flags, 10))
	values.Set("release", k.Session)
	err = c.write(ctx, http.MethodPut, keyPath(k.Key), values, k.Value, &unlocked)
	return unlocked, err
}

// DeleteKey deletes a key. If index is not nil, DeleteKey deletes only if the
// ModifyIndex of the key is *index, and returns false if it is not.
func (c *Client) DeleteKey(ctx context.Context, key string, index *uint64, q QueryOptions) (deleted bool, err error) {
	values := q.values()
	if index != nil {
		values.Set("cas", strconv.FormatUint(*index, 10))
	}
	err = c.write(ctx, http.MethodDelete, keyPath(key), values, nil, &deleted)
	return deleted, err
}

// ReadKey returns a key. It returns nil if the key does not exist.
func (c *Client) ReadKey(ctx context.Context, key string, q QueryOptions) (*Key, QueryMeta, error) {
	var out []Key
	meta, err := c.get(ctx, keyPath(key), q, nil, &out)
	if isAbsent(meta, err) {
		return nil, meta, nil
	}
	if err != nil || len(out) == 0 {
		return nil, meta, err
	}
	return &out[0], meta, nil
}

func keyPath(key string) string {
	return (&url.URL{Path: "/v1/kv/" + key}).EscapedPath()
}
