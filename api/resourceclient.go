// SPDX-License-Identifier: MPL-2.0

package api

import (
	"bufio"
	"cmp"
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

// ErrNeedsTLS reports that a write was not sent because the client uses plain
// HTTP. A client without a certificate may only read.
var ErrNeedsTLS = errors.New("writes need https and an operator's certificate")

// ResourceOptions are the options of a resource request. The zero value reads
// the state that the called server has applied, in the server's own datacenter.
type ResourceOptions struct {
	// Datacenter is the datacenter to call. Default: the server's own.
	Datacenter string
	// Consistent makes a read linearizable. A watch ignores Consistent.
	Consistent bool
	// Version is the version that a write or a deletion requires. Default: any.
	Version string
	// UID is the uid that a read, a write or a deletion requires. Default: any.
	UID string
	// Prefix is the prefix of the names in a list or a watch. Default: all
	// names.
	Prefix string
}

func (o ResourceOptions) values(t Tenancy) url.Values {
	v := url.Values{}
	for name, value := range map[string]string{
		"dc": o.Datacenter, "version": o.Version, "uid": o.UID, "prefix": o.Prefix, "partition": t.Partition,
		"namespace": t.Namespace,
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

// pathOf returns the path of a resource, or of a type if name is "".
func pathOf(t ResourceTypeName, name string) string {
	path := ResourcePath + url.PathEscape(t.Group) + "/" + url.PathEscape(t.GroupVersion) + "/" + url.PathEscape(t.Kind)
	switch name {
	case "":
		return path
	case ".", "..": // a server or proxy would resolve a relative path
		return path + "/" + strings.ReplaceAll(name, ".", "%2E")
	}
	return path + "/" + url.PathEscape(name)
}

// ResourceTypes returns the types that the server supports.
func (c *Client) ResourceTypes(ctx context.Context) ([]ResourceType, error) {
	var out []ResourceType
	_, err := c.get(ctx, ResourceTypesPath, QueryOptions{}, nil, &out)
	return out, err
}

// ReadResource returns one resource. If o.UID or id.UID is set, the resource
// must have that uid. The error for an absent resource is a *StatusError with
// code 404.
func (c *Client) ReadResource(ctx context.Context, id ResourceID, o ResourceOptions) (Resource, error) {
	var out Resource
	_, err := c.get(ctx, pathOf(id.Type, id.Name), QueryOptions{}, withUID(o, id).values(id.Tenancy), &out)
	return out, err
}

// withUID returns o with the uid of id, unless o has a uid.
func withUID(o ResourceOptions, id ResourceID) ResourceOptions {
	o.UID = cmp.Or(o.UID, id.UID)
	return o
}

// WriteResource creates r, or replaces data and metadata of the stored
// resource. It returns the stored resource. A version or uid in r or o must
// match the stored resource. Otherwise the error is a *StatusError with code
// 409.
func (c *Client) WriteResource(ctx context.Context, r Resource, o ResourceOptions) (Resource, error) {
	return c.put(ctx, r, o, nil)
}

// DryRunResource validates r and returns the resource that WriteResource would
// write. It writes nothing and does not compare r with the stored resource.
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

// DeleteResource deletes a resource and the resources that it owns. A resource
// with finalizers is marked for deletion. DeleteResource returns nil for an
// absent resource.
func (c *Client) DeleteResource(ctx context.Context, id ResourceID, o ResourceOptions) error {
	return c.write(ctx, http.MethodDelete, pathOf(id.Type, id.Name), withUID(o, id).values(id.Tenancy), nil, nil)
}

// write sends a request that changes resources, and decodes the response into
// out, unless out is nil.
func (c *Client) write(ctx context.Context, method, path string, values url.Values, body []byte, out any) error {
	if !strings.HasPrefix(c.base, "https://") {
		return fmt.Errorf("%s %s: %w", c.base, path, ErrNeedsTLS)
	}
	_, err := c.call(ctx, c.timeout, method, path, values, body, out)
	return err
}

// Resources returns the resources of a type, ordered by tenancy and name. "*"
// as partition or namespace selects all. The list is streamed and may have any
// size. The sequence ends with the first error.
func (c *Client) Resources(
	ctx context.Context, t ResourceTypeName, in Tenancy, o ResourceOptions,
) iter.Seq2[Resource, error] {
	return c.list(ctx, pathOf(t, ""), o.values(in))
}

// OwnedResources returns the resources that owner owns. If owner has a uid, it
// need not exist any more.
func (c *Client) OwnedResources(
	ctx context.Context, owner ResourceID, o ResourceOptions,
) iter.Seq2[Resource, error] {
	values := withUID(o, owner).values(owner.Tenancy)
	values.Set("owned", "1")
	return c.list(ctx, pathOf(owner.Type, owner.Name), values)
}

// list decodes the streamed list at path.
func (c *Client) list(ctx context.Context, path string, values url.Values) iter.Seq2[Resource, error] {
	return func(yield func(Resource, error) bool) {
		err := c.stream(ctx, path, values, func(r io.Reader) error {
			dec := json.NewDecoder(r)
			for _, expected := range []any{json.Delim('{'), "resources", json.Delim('[')} {
				if token, err := dec.Token(); err != nil || token != expected {
					return c.decodeError(path, errors.Join(fmt.Errorf("found %v instead of %v", token, expected), err))
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
			if _, err := dec.Token(); err != nil { // the list is truncated
				return c.listError(path, err)
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(Resource{}, err)
		}
	}
}

// listError is decodeError for a list that may be truncated.
func (c *Client) listError(path string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("response of %s to %s ended early: %w; try again", c.base, path, io.ErrUnexpectedEOF)
	}
	return c.decodeError(path, err)
}

// errStop ends a stream when the caller stops the iteration.
var errStop = errors.New("stopped")

// stream requests path and calls read with the body. The response must begin
// within the client's timeout. Then each read of the body may block for that
// timeout or for watchTimeout, whichever is longer. The total duration has no
// limit.
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

// idleTimeoutReader limits each Read of a response. The time between two Reads,
// in which the caller uses the data, does not count.
type idleTimeoutReader struct {
	io.Reader
	timer   *time.Timer
	timeout time.Duration
}

func (r *idleTimeoutReader) Read(b []byte) (int, error) {
	r.timer.Reset(r.timeout)
	defer r.timer.Stop()
	return r.Reader.Read(b)
}

// ErrWatchEnded reports that the server ended a watch, or that the connection
// was lost. A new watch begins with the current resources.
var ErrWatchEnded = errors.New("watch ended")

// WatchResources returns the current resources of a type as upserts, then
// EventEndOfSnapshot, and then every change until ctx ends or the caller stops.
// The last error is ctx.Err(), ErrWatchEnded with the reason, or the error that
// prevented the watch.
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
	case EventEndOfSnapshot:
		var end struct{ Index uint64 }
		_ = json.Unmarshal([]byte(data), &end) // without an index, it is unknown
		ev.Index = end.Index
	case EventEnd:
		var reason struct{ Error string }
		_ = json.Unmarshal([]byte(data), &reason) // the watch has ended in any case
		return ev, fmt.Errorf("%w: %s", ErrWatchEnded, reason.Error)
	}
	return ev, nil
}
