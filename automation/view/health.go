// SPDX-License-Identifier: MPL-2.0

package view

import "time"

// Health is the state of the data of all open views.
type Health struct {
	// Current views have the data of a source that responds. Old views keep
	// their last value, because the source does not respond. Absent views never
	// had a value.
	Current, Old, Absent int
	// Age is the longest time for which the data of an old view has not been
	// current.
	Age time.Duration
}

// Health returns the state of the views at the time now.
func (v *Views) Health(now time.Time) (h Health) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, w := range v.views {
		switch {
		case !w.complete:
			h.Absent++
		case w.feed.connected:
			h.Current++
		default:
			h.Old++
			h.Age = max(h.Age, now.Sub(w.feed.since))
		}
	}
	return h
}
