// SPDX-License-Identifier: MPL-2.0

package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
)

// ErrWatchEnded reports that the server ended a watch, or that its connection was
// lost. A new watch begins with the current state.
var ErrWatchEnded = errors.New("watch ended")

// WatchResources returns the current resources of a type as upserts, then
// EventEndOfSnapshot, and then every change, until ctx ends or the caller stops.
// Its last error is that of ctx, ErrWatchEnded with the reason, or the reason why
// the watch could not begin.
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
