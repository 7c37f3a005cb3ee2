// SPDX-License-Identifier: MPL-2.0

package apply

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"

	"github.com/wanfed/wanfed/api"
)

// Action is the effect of an item on the store.
type Action string

// Actions.
const (
	Created   Action = "created"
	Updated   Action = "updated"
	Unchanged Action = "unchanged"
)

// Item is the plan for one resource.
type Item struct {
	Action Action `json:"action"`
	// Result is the stored resource. Before the write, it is the resource that
	// the write would store.
	Result api.Resource `json:"resource"`

	client  *api.Client
	dc      string
	given   api.Resource
	checked api.Resource  // given, with the defaults of the server
	stored  *api.Resource // nil: none
}

// RefusedError reports that the server refused resource Index.
type RefusedError struct {
	Index int
	Err   error
}

// Error implements error.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.Err }

// Check validates resources on a server of datacenter dc and returns the plan.
// If dc is empty, it is the datacenter of the client. The errors of refused
// resources, of type *RefusedError, are joined. Any other error ends the check.
func Check(ctx context.Context, client *api.Client, dc string, resources []api.Resource) ([]*Item, error) {
	var plan []*Item
	var refused []error
	for i, r := range resources {
		item := &Item{client: client, dc: dc, given: r}
		if err := item.check(ctx); err != nil {
			if !isRefusal(err) {
				return nil, err
			}
			refused = append(refused, &RefusedError{i, err})
		}
		plan = append(plan, item)
	}
	return plan, errors.Join(refused...)
}

func (i *Item) options() api.ResourceOptions { return api.ResourceOptions{Datacenter: i.dc} }

func (i *Item) check(ctx context.Context) (err error) {
	if i.checked, err = i.client.DryRunResource(ctx, i.given, i.options()); err != nil {
		return err
	}
	i.given.ID.Type = i.checked.ID.Type // in the spelling of the server
	if err := i.compare(ctx); err != nil {
		return err
	}
	if v := i.given.Version; v != "" && (i.stored == nil || i.stored.Version != v) {
		is := "it does not exist"
		if i.stored != nil {
			is = "its version is " + i.stored.Version
		}
		return &conflictError{fmt.Sprintf("%s %s was changed: %s, not %s; read it and try again",
			i.given.ID.Type, i.given.ID.Name, is, v)}
	}
	return nil
}

// conflictError reports that the version to replace is not stored.
type conflictError struct{ text string }

func (e *conflictError) Error() string { return e.text }

// isRefusal reports whether err is the refusal of one resource. After other
// errors further requests would fail as well.
func isRefusal(err error) bool {
	if _, ok := errors.AsType[*conflictError](err); ok {
		return true
	}
	e, ok := errors.AsType[*api.StatusError](err)
	return ok && e.Message != "" && e.Code < http.StatusInternalServerError
}

// compare reads the stored resource and sets the action.
func (i *Item) compare(ctx context.Context) error {
	o := i.options()
	o.Consistent = true
	id := i.given.ID
	id.UID = ""
	stored, err := i.client.ReadResource(ctx, id, o)
	switch {
	case hasStatus(err, http.StatusNotFound):
		i.stored, i.Action, i.Result = nil, Created, i.checked
		return nil
	case hasStatus(err, http.StatusConflict): // stored as another version of the type; a write converts it
		i.stored, i.Action, i.Result = nil, Updated, i.checked
		return nil
	case err != nil:
		return err
	}
	i.stored, i.Action, i.Result = &stored, Updated, stored
	if equal(i.given, i.checked, stored) {
		i.Action = Unchanged
	}
	return nil
}

func hasStatus(err error, code int) bool {
	e, ok := errors.AsType[*api.StatusError](err)
	return ok && e.Code == code
}

// equal reports whether a write would leave data, metadata and owner unchanged.
func equal(given, checked, stored api.Resource) bool {
	if given.ID.UID != "" && given.ID.UID != stored.ID.UID {
		return false // the server refuses it
	}
	if o := given.Owner; o != nil && (stored.Owner == nil || o.Type != stored.Owner.Type || o.Name != stored.Owner.Name ||
		o.UID != "" && o.UID != stored.Owner.UID) {
		return false
	}
	return (given.Metadata == nil || maps.Equal(given.Metadata, stored.Metadata)) && equalJSON(checked.Data, stored.Data)
}

// equalJSON compares JSON of the same server.
func equalJSON(a, b json.RawMessage) bool {
	var ca, cb bytes.Buffer
	return json.Compact(&ca, a) == nil && json.Compact(&cb, b) == nil && bytes.Equal(ca.Bytes(), cb.Bytes())
}

// maxAttempts limits the writes of one resource while others change it.
const maxAttempts = 5

// Write performs the action of the item and sets Result.
func (i *Item) Write(ctx context.Context) error {
	for attempt := 1; i.Action != Unchanged; attempt++ {
		r := i.given
		// A write replaces all metadata, so copy the stored metadata.
		keep := r.Metadata == nil && r.Version == "" && i.stored != nil && len(i.stored.Metadata) > 0
		if keep {
			r.Metadata, r.Version = i.stored.Metadata, i.stored.Version
		}
		var err error
		i.Result, err = i.client.WriteResource(ctx, r, i.options())
		if err == nil {
			return nil
		}
		if !keep || !hasStatus(err, http.StatusConflict) || attempt >= maxAttempts {
			return err
		}
		if err := i.compare(ctx); err != nil {
			return err
		}
	}
	return nil
}
