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

// Action is the effect of an Item on the stored resource.
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
	// Result is the stored resource if the action is Unchanged, and after
	// Write. Before Write, Result is the resource that Write would store. It
	// has the version, generation and indexes of the resource that Write would
	// replace.
	Result api.Resource `json:"resource"`

	client  *api.Client
	dc      string
	given   api.Resource  // the argument of Check
	checked api.Resource  // given, with the defaults of the server
	stored  *api.Resource // nil: not stored, or stored in another version of the type
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
// If dc is "", the server of client validates them. The errors of refused
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

// check validates the given resource and sets the fields of the item.
func (i *Item) check(ctx context.Context) (err error) {
	if i.checked, err = i.client.DryRunResource(ctx, i.given, i.options()); err != nil {
		return err
	}
	i.given.ID.Type = i.checked.ID.Type // in the spelling of the server
	if err := i.compare(ctx); err != nil {
		return err
	}
	if v := i.given.Version; v != "" && (i.stored == nil || i.stored.Version != v) {
		state := "it does not exist"
		switch {
		case i.stored != nil:
			state = "its version is " + i.stored.Version
		case i.Action == Updated:
			state = "it is stored in another version of the type"
		}
		return fmt.Errorf("%s %s %w: %s, not %s; read it and try again",
			i.given.ID.Type, i.given.ID.Name, errChanged, state, v)
	}
	return nil
}

// errChanged reports that the given version is not the stored version.
var errChanged = errors.New("was changed")

// isRefusal reports whether the server refused one resource with err. Check
// stops at any other error, such as an unreachable server, because that error
// would recur for the further resources.
func isRefusal(err error) bool {
	e, ok := errors.AsType[*api.StatusError](err)
	return errors.Is(err, errChanged) || ok && e.Message != "" && e.Code < http.StatusInternalServerError
}

// compare reads the stored resource and sets the action.
func (i *Item) compare(ctx context.Context) error {
	o := i.options()
	o.Consistent = true
	id := i.given.ID
	id.UID = ""
	stored, err := i.client.ReadResource(ctx, id, o)
	switch {
	case api.IsStatus(err, http.StatusNotFound):
		i.stored, i.Action, i.Result = nil, Created, i.checked
		return nil
	case api.IsStatus(err, http.StatusConflict): // stored in another version of the type; a write converts it
		i.stored, i.Action, i.Result = nil, Updated, i.checked
		return nil
	case err != nil:
		return err
	}
	i.stored, i.Action, i.Result = &stored, Updated, planned(i.given, i.checked, stored)
	if equal(i.given, i.checked, stored) {
		i.Action, i.Result = Unchanged, stored
	}
	return nil
}

// planned returns stored with the changes of a write of given. If given has no
// owner, the server keeps the stored one. If it has no metadata, Write does.
func planned(given, checked, stored api.Resource) api.Resource {
	out := stored
	out.Data = checked.Data
	if given.Owner != nil {
		out.Owner = checked.Owner
	}
	if given.Metadata != nil {
		out.Metadata = checked.Metadata
	}
	return out
}

// equal reports whether a write would leave data, metadata and owner unchanged.
func equal(given, checked, stored api.Resource) bool {
	if given.ID.UID != "" && given.ID.UID != stored.ID.UID {
		return false // Write then returns the refusal of the server
	}
	if o := given.Owner; o != nil && (stored.Owner == nil || o.Type != stored.Owner.Type ||
		o.Name != stored.Owner.Name ||
		o.UID != "" && o.UID != stored.Owner.UID) {
		return false
	}
	return (given.Metadata == nil || maps.Equal(given.Metadata, stored.Metadata)) &&
		equalJSON(checked.Data, stored.Data)
}

// equalJSON reports whether a and b, both encoded by the server, are equal.
func equalJSON(a, b json.RawMessage) bool {
	var ca, cb bytes.Buffer
	return json.Compact(&ca, a) == nil && json.Compact(&cb, b) == nil && bytes.Equal(ca.Bytes(), cb.Bytes())
}

// maxAttempts limits the attempts to write one resource. Only a conflict causes
// another attempt.
const maxAttempts = 5

// Write performs the action of the item and sets Result.
func (i *Item) Write(ctx context.Context) error {
	for attempt := 1; i.Action != Unchanged; attempt++ {
		r := i.given
		// A write replaces all metadata. To keep the stored metadata, Write
		// sends it with the stored version (compare and swap).
		keep := r.Metadata == nil && r.Version == "" && i.stored != nil && len(i.stored.Metadata) > 0
		if keep {
			r.Metadata, r.Version = i.stored.Metadata, i.stored.Version
		}
		var err error
		i.Result, err = i.client.WriteResource(ctx, r, i.options())
		if err == nil {
			return nil
		}
		if !keep || !api.IsStatus(err, http.StatusConflict) || attempt >= maxAttempts {
			return err
		}
		if err := i.compare(ctx); err != nil {
			return err
		}
	}
	return nil
}
