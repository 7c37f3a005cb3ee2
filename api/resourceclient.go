// SPDX-License-Identifier: MPL-2.0

package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// ErrNeedsTLS reports that a write was not sent because the client uses plain HTTP.
// Such a client has no certificate and may only read.
var ErrNeedsTLS = errors.New("writes need https and an operator's certificate")

// ResourceOptions are the options of a resource request. The zero value reads
// the state that the called server has applied, in the server's own datacenter.
type ResourceOptions struct {
	// Datacenter to call. Default: the server's own.
	Datacenter string
	// Consistent makes a read return everything that was acknowledged before
	// it. A watch ignores Consistent.
	Consistent bool
	// Version is the version that a write or a deletion requires. Default: any.
	Version string
	// UID is the uid that a read, a write or a deletion requires. Default: any.
	UID string
	// Prefix of the names in a list or a watch.
	Prefix string
}

func (o ResourceOptions) values(t Tenancy) url.Values {
	v := url.Values{}
	for name, value := range map[string]string{
		"dc": o.Datacenter, "version": o.Version, "uid": o.UID, "prefix": o.Prefix, "partition": t.Partition, "namespace": t.Namespace,
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	if o.Consistent {
		v.Set("consistent", "1")
	}
	return v
}

// pathOf returns the path of a resource, or of a type if name is "". The case of a
// kind does not matter.
func pathOf(t ResourceTypeName, name string) string {
	path := ResourcePath + url.PathEscape(t.Group) + "/" + url.PathEscape(t.GroupVersion) + "/" + url.PathEscape(t.Kind)
	switch name {
	case "":
		return path
	case ".", "..": // a server or proxy would interpret them as relative paths
		return path + "/" + strings.ReplaceAll(name, ".", "%2E")
	}
	return path + "/" + url.PathEscape(name)
}

// ResourceTypes returns the types that the server knows.
func (c *Client) ResourceTypes(ctx context.Context) ([]ResourceType, error) {
	var out []ResourceType
	_, err := c.get(ctx, ResourceTypesPath, QueryOptions{}, nil, &out)
	return out, err
}

// ReadResource returns one resource. If o.UID or id.UID is set, the resource
// must have that uid. If there is no such resource, the error is a *StatusError
// with code 404.
func (c *Client) ReadResource(ctx context.Context, id ResourceID, o ResourceOptions) (Resource, error) {
	var out Resource
	_, err := c.get(ctx, pathOf(id.Type, id.Name), QueryOptions{}, withUID(o, id).values(id.Tenancy), &out)
	return out, err
}

func withUID(o ResourceOptions, id ResourceID) ResourceOptions {
	if o.UID == "" {
		o.UID = id.UID
	}
	return o
}

// WriteResource creates r, or replaces data and metadata of the stored
// resource, and returns the result. A version or uid in r or o must match the
// stored resource. Otherwise the error is a *StatusError with code 409.
func (c *Client) WriteResource(ctx context.Context, r Resource, o ResourceOptions) (Resource, error) {
	return c.put(ctx, r, o, nil)
}

// DryRunResource checks r like WriteResource. It returns the resource that
// WriteResource would write, and writes nothing. It does not compare r with the
// stored resource.
func (c *Client) DryRunResource(ctx context.Context, r Resource, o ResourceOptions) (Resource, error) {
	return c.put(ctx, r, o, url.Values{"dry-run": {"1"}})
}

func (c *Client) put(ctx context.Context, r Resource, o ResourceOptions, extra url.Values) (Resource, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return Resource{}, fmt.Errorf("resource %s %q: %w", r.ID.Type, r.ID.Name, err)
	}
	values := o.values(r.ID.Tenancy)
	maps.Copy(values, extra)
	var out Resource
	err = c.write(ctx, http.MethodPut, pathOf(r.ID.Type, r.ID.Name), values, body, &out)
	return out, err
}

// WriteResourceStatus replaces the status of one key of the resource with the uid
// of id or o.
func (c *Client) WriteResourceStatus(
	ctx context.Context, id ResourceID, key string, s ResourceStatus, o ResourceOptions,
) (Resource, error) {
	body, err := json.Marshal(s)
	if err != nil {
		return Resource{}, err
	}
	values := withUID(o, id).values(id.Tenancy)
	values.Set("status", key)
	var out Resource
	err = c.write(ctx, http.MethodPut, pathOf(id.Type, id.Name), values, body, &out)
	return out, err
}

// DeleteResource deletes a resource and the resources that it owns. A resource
// with finalizers is marked instead. It returns nil if there is no such
// resource.
func (c *Client) DeleteResource(ctx context.Context, id ResourceID, o ResourceOptions) error {
	return c.write(ctx, http.MethodDelete, pathOf(id.Type, id.Name), withUID(o, id).values(id.Tenancy), nil, nil)
}

// write sends a writing request. It decodes the response into out, unless out
// is nil.
func (c *Client) write(ctx context.Context, method, path string, values url.Values, body []byte, out any) error {
	if !strings.HasPrefix(c.base, "https://") {
		return fmt.Errorf("%s %s: %w", c.base, path, ErrNeedsTLS)
	}
	rctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	resp, err := c.send(rctx, method, path, values, body)
	if err != nil {
		return c.unreachable(ctx, rctx, c.timeout, err)
	}
	defer resp.Body.Close()
	respBody, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	switch {
	case err != nil:
		return c.unreachable(ctx, rctx, c.timeout, err)
	case resp.StatusCode/100 != 2:
		return c.statusError(resp, respBody)
	case out == nil:
		return nil
	}
	return c.decodeError(path, json.Unmarshal(respBody, out))
}

func (c *Client) send(ctx context.Context, method, path string, values url.Values, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.URL.RawQuery = values.Encode()
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return c.http.Do(req)
}

// decodeError returns the error of decoding the response to path, or nil.
func (c *Client) decodeError(path string, err error) error {
	if err != nil {
		return fmt.Errorf("response of %s to %s is not that of a wanfed server: %w; check which program listens there",
			c.base, path, err)
	}
	return nil
}

// Resources returns the resources of a type, ordered by tenancy and name. It streams
// the list, which may have any size. "*" as partition or namespace selects all. It
// ends with the first error.
func (c *Client) Resources(
	ctx context.Context, t ResourceTypeName, in Tenancy, o ResourceOptions,
) iter.Seq2[Resource, error] {
	return c.list(ctx, pathOf(t, ""), o.values(in))
}

// OwnedResources returns the resources that owner owns. If owner has a uid, it
// may already be deleted.
func (c *Client) OwnedResources(
	ctx context.Context, owner ResourceID, o ResourceOptions,
) iter.Seq2[Resource, error] {
	values := withUID(o, owner).values(owner.Tenancy)
	values.Set("owned", "1")
	return c.list(ctx, pathOf(owner.Type, owner.Name), values)
}

func (c *Client) list(ctx context.Context, path string, values url.Values) iter.Seq2[Resource, error] {
	return func(yield func(Resource, error) bool) {
		err := c.stream(ctx, path, values, func(r io.Reader) error {
			dec := json.NewDecoder(r)
			for _, want := range []any{json.Delim('{'), "resources", json.Delim('[')} {
				if got, err := dec.Token(); err != nil || got != want {
					return c.decodeError(path, errors.Join(fmt.Errorf("found %v instead of %v", got, want), err))
				}
			}
			for dec.More() {
				var r Resource
				if err := dec.Decode(&r); err != nil {
					return c.listError(path, err)
				}
				if !yield(r, nil) {
					return errStop
				}
			}
			_, err := dec.Token() // a truncated list has no end
			return c.listError(path, err)
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(Resource{}, err)
		}
	}
}

// listError is like decodeError, for a list that the server may have truncated.
func (c *Client) listError(path string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("response of %s to %s ended early: %w; try again", c.base, path, io.ErrUnexpectedEOF)
	}
	return c.decodeError(path, err)
}

// errStop reports that the caller has stopped the iteration.
var errStop = errors.New("stopped")

// stream requests path and calls read with the body. It fails if no data
// arrives within the client's timeout. The total duration has no limit.
func (c *Client) stream(ctx context.Context, path string, values url.Values, read func(io.Reader) error) error {
	rctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(c.timeout, func() { cancel(context.DeadlineExceeded) })
	defer timer.Stop()
	resp, err := c.send(rctx, http.MethodGet, path, values, nil)
	if err != nil {
		return c.unreachable(ctx, rctx, c.timeout, err)
	}
	defer resp.Body.Close()
	body := &idleTimeoutReader{resp.Body, timer, max(c.timeout, watchTimeout)}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(body, maxMessage))
		return c.statusError(resp, text)
	}
	if err = read(body); err != nil && rctx.Err() != nil {
		return c.unreachable(ctx, rctx, body.timeout, err)
	}
	return err
}

// watchTimeout is the maximum time without data on a watch. The server sends a
// comment every 15 seconds.
const watchTimeout = 40 * time.Second

// idleTimeoutReader restarts the timeout of a request with each read.
type idleTimeoutReader struct {
	io.Reader
	timer   *time.Timer
	timeout time.Duration
}

func (r *idleTimeoutReader) Read(b []byte) (int, error) {
	r.timer.Reset(r.timeout)
	return r.Reader.Read(b)
}

// ErrWatchEnded reports that the server ended a watch, or that its connection was
// lost. A new watch begins with the current state.
var ErrWatchEnded = errors.New("watch ended")

// WatchResources returns the current resources of a type as upserts, then
// EventEndOfSnapshot, and then every change. It returns changes until ctx ends
// or the caller stops. The last error is ctx.Err(), ErrWatchEnded with the
// reason, or the error that prevented the watch.
func (c *Client) WatchResources(
	ctx context.Context, t ResourceTypeName, in Tenancy, o ResourceOptions,
) iter.Seq2[ResourceEvent, error] {
	path, values := pathOf(t, ""), o.values(in)
	values.Set("watch", "1")
	return func(yield func(ResourceEvent, error) bool) {
		err := c.stream(ctx, path, values, func(r io.Reader) error {
			in := bufio.NewReader(r)
			for {
				ev, err := nextEvent(in)
				if err != nil {
					return err
				}
				if !yield(ev, nil) {
					return errStop
				}
			}
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(ResourceEvent{}, err)
		}
	}
}

// nextEvent reads one server-sent event with one line of data.
func nextEvent(in *bufio.Reader) (ev ResourceEvent, err error) {
	var data string
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return ev, fmt.Errorf("%w: its connection was lost: %w", ErrWatchEnded, err)
		}
		line = strings.TrimRight(line, "\r\n")
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case name == "event":
			ev.Type = value
		case name == "data":
			data = value
		case line == "" && ev.Type != "": // the end of an event
			return decodeEvent(ev, data)
		}
	}
}

func decodeEvent(ev ResourceEvent, data string) (ResourceEvent, error) {
	switch ev.Type {
	case EventUpsert, EventDelete:
		if err := json.Unmarshal([]byte(data), &ev.Resource); err != nil {
			return ev, fmt.Errorf("event %s: %w", ev.Type, err)
		}
	case EventEnd:
		var why struct{ Error string }
		_ = json.Unmarshal([]byte(data), &why) // the watch has ended in any case
		return ev, fmt.Errorf("%w: %s", ErrWatchEnded, why.Error)
	}
	return ev, nil
}
