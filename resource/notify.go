// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"errors"
	"time"
)

// Notify puts a token into wake, which has size 1, after every change of resources that q selects, until ctx ends or the backend
// is closed. Several changes may give one token; none is lost. It is for loops that read everything anew after each wake-up and need
// not know what changed.
func Notify(ctx context.Context, b Backend, q Query, wake chan<- struct{}) {
	for ctx.Err() == nil {
		w, err := b.Watch(q)
		if err == nil {
			err = notify(ctx, w, wake)
			w.Close()
		}
		if errors.Is(err, ErrClosed) {
			return
		}
		poke(wake) // what changed between two watches is unknown
		if err != nil && !errors.Is(err, ErrWatchReset) {
			select { // no watch to be had: not a state backends stay in
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

func notify(ctx context.Context, w Watch, wake chan<- struct{}) error {
	live := false
	for {
		e, err := w.Next(ctx)
		if err != nil {
			return err
		}
		switch {
		case e.GetEndOfSnapshot() != nil:
			live = true
			poke(wake)
		case live:
			poke(wake)
		}
	}
}

func poke(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
