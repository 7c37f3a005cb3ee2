// SPDX-License-Identifier: MPL-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// ErrNeedsTLS says that a write was not sent, since the client asks by plain HTTP: who asks so has no certificate, and may only read.
var ErrNeedsTLS = errors.New("writes need https and an operator's certificate")

// ResourceOptions of a request about resources. The zero value asks the server's own datacenter for what it has applied.
type ResourceOptions struct {
	// Datacenter to ask; empty: the server's own.
	Datacenter string
	// Consistent makes a read see everything that was acknowledged before it. Not for watches.
	Consistent bool
	// Version and UID, of a write or a deletion (UID also of a read), are what must be stored. Empty: whatever is.
	Version, UID string
	// Prefix of the names that a list or a watch shows.
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

// pathOf is the path of a resource, or of a type's without a name. The upper or lower case of a kind makes no difference.
func pathOf(t ResourceTypeName, name string) string {
	path := ResourcePath + url.PathEscape(t.Group) + "/" + url.PathEscape(t.GroupVersion) + "/" + url.PathEscape(t.Kind)
	switch name {
	case "":
		return path
	case ".", "..": // a server, or what is before it, would take them for a way up
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

// ReadResource returns one resource: with o.UID, or id.UID, only that one. A *StatusError with code 404 says that it is not there.
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

// WriteResource creates r, or replaces data and metadata of what is stored. With a version, or a uid, in r or o, only of that: a
// *StatusError with code 409 says that it is another by now. It returns what is stored then.
func (c *Client) WriteResource(ctx context.Context, r Resource, o ResourceOptions) (Resource, error) {
	return c.put(ctx, r, o, nil)
}

// DryRunResource returns what WriteResource would write, or refuses what it would refuse, without writing. The stored resource is
// not looked at.
func (c *Client) DryRunResource(ctx context.Context, r Resource, o ResourceOptions) (Resource, error) {
	return c.put(ctx, r, o, url.Values{"dry-run": {"1"}})
}

func (c *Client) put(ctx context.Context, r Resource, o ResourceOptions, extra url.Values) (Resource, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return Resource{}, fmt.Errorf("resource %s %q: %w", r.ID.Type, r.ID.Name, err)
	}
	values := o.values(r.ID.Tenancy)
	for name, all := range extra {
		values[name] = all
	}
	var out Resource
	err = c.write(ctx, http.MethodPut, pathOf(r.ID.Type, r.ID.Name), values, body, &out)
	return out, err
}

// WriteResourceStatus replaces the status of one key, of the resource with the UID of id, or of o.
func (c *Client) WriteResourceStatus(ctx context.Context, id ResourceID, key string, s ResourceStatus, o ResourceOptions) (Resource, error) {
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

// DeleteResource deletes a resource and what it owns, or marks one that has finalizers. It is no error if it is not there.
func (c *Client) DeleteResource(ctx context.Context, id ResourceID, o ResourceOptions) error {
	return c.write(ctx, http.MethodDelete, pathOf(id.Type, id.Name), withUID(o, id).values(id.Tenancy), nil, nil)
}

// write sends a request that changes something, and decodes the answer into out unless that is nil.
func (c *Client) write(ctx context.Context, method, path string, values url.Values, body []byte, out any) error {
	if !strings.HasPrefix(c.base, "https://") {
		return fmt.Errorf("%s %s: %w", c.base, path, ErrNeedsTLS)
	}
	rctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	resp, err := c.send(rctx, method, path, values, body)
	if err != nil {
		return c.noAnswer(ctx, rctx, c.timeout, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch {
	case err != nil:
		return c.noAnswer(ctx, rctx, c.timeout, err)
	case resp.StatusCode/100 != 2:
		return c.refused(resp, answer)
	case out == nil:
		return nil
	}
	return c.decoded(path, json.Unmarshal(answer, out))
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

func (c *Client) decoded(path string, err error) error {
	if err != nil {
		return fmt.Errorf("answer of %s to %s is not what a wanfed server sends: %w; is something else listening there?", c.base, path, err)
	}
	return nil
}

// Resources returns the resources of a type, by tenancy and name, as they come: a list may be of any size. "*" as partition or
// namespace is every one. It ends with the first error.
func (c *Client) Resources(ctx context.Context, t ResourceTypeName, in Tenancy, o ResourceOptions) iter.Seq2[Resource, error] {
	return c.list(ctx, pathOf(t, ""), o.values(in))
}

// OwnedResources returns what a resource owns. With a UID also what one that is deleted has left.
func (c *Client) OwnedResources(ctx context.Context, owner ResourceID, o ResourceOptions) iter.Seq2[Resource, error] {
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
					return c.decoded(path, errors.Join(fmt.Errorf("it has %v where %v is", got, want), err))
				}
			}
			for dec.More() {
				var r Resource
				if err := dec.Decode(&r); err != nil {
					return c.cut(path, err)
				}
				if !yield(r, nil) {
					return errStop
				}
			}
			_, err := dec.Token() // of a list that was cut there is none
			return c.cut(path, err)
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(Resource{}, err)
		}
	}
}

// cut is decoded for what may also have ended early: its server stopped, or could not go on.
func (c *Client) cut(path string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("answer of %s to %s ended early: %w; ask again", c.base, path, io.ErrUnexpectedEOF)
	}
	return c.decoded(path, err)
}

// errStop says that the caller wants no more.
var errStop = errors.New("stopped")

// stream gets path and gives read the body, however long that takes, as long as something comes within the client's timeout.
func (c *Client) stream(ctx context.Context, path string, values url.Values, read func(io.Reader) error) error {
	rctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	alive := time.AfterFunc(c.timeout, func() { cancel(context.DeadlineExceeded) })
	defer alive.Stop()
	resp, err := c.send(rctx, http.MethodGet, path, values, nil)
	if err != nil {
		return c.noAnswer(ctx, rctx, c.timeout, err)
	}
	defer resp.Body.Close()
	body := &patientReader{resp.Body, alive, max(c.timeout, quiet)}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(body, maxMessage))
		return c.refused(resp, text)
	}
	if err = read(body); err != nil && rctx.Err() != nil {
		return c.noAnswer(ctx, rctx, body.patience, err)
	}
	return err
}

// quiet is how long nothing may come of a watch before its server is held to be gone: it sends a comment every 15 seconds.
const quiet = 40 * time.Second

// patientReader puts off the end of a request whenever something comes.
type patientReader struct {
	io.Reader
	alive    *time.Timer
	patience time.Duration
}

func (r *patientReader) Read(b []byte) (int, error) {
	r.alive.Reset(r.patience)
	return r.Reader.Read(b)
}
