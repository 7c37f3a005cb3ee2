// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
)

// PutKey writes value and flags of k. If index is not nil, PutKey writes only if
// the ModifyIndex of the key is *index, where 0 means that the key does not
// exist. It returns false if the condition is not met. A value has at most
// 512 KiB.
func (c *Client) PutKey(ctx context.Context, k Key, index *uint64, q QueryOptions) (written bool, err error) {
	values := q.values()
	values.Set("flags", strconv.FormatUint(k.Flags, 10))
	if index != nil {
		values.Set("cas", strconv.FormatUint(*index, 10))
	}
	err = c.write(ctx, http.MethodPut, keyPath(k.Key), values, k.Value, &written)
	return written, err
}

// DeleteKeys deletes all keys with a prefix. The prefix "" deletes all keys.
func (c *Client) DeleteKeys(ctx context.Context, prefix string, q QueryOptions) error {
	values := q.values()
	values.Set("recurse", "")
	return c.write(ctx, http.MethodDelete, keyPath(prefix), values, nil, nil)
}

// KeyNames returns the names of the keys with a prefix. If separator is not
// empty, names end at the first separator after the prefix, and each such name
// is returned once.
func (c *Client) KeyNames(ctx context.Context, prefix, separator string, q QueryOptions) ([]string, error) {
	extra := url.Values{"keys": {""}}
	if separator != "" {
		extra.Set("separator", separator)
	}
	var out []string
	meta, err := c.get(ctx, keyPath(prefix), q, extra, &out)
	if isAbsent(meta, err) {
		err = nil
	}
	return out, err
}
