// SPDX-License-Identifier: MPL-2.0

// Package ratelog limits how often one kind of event shows at its full log
// level. A peer that fails in the same way a thousand times a second must not
// fill the log.
//
// The first event of a kind is logged at its level, then one per interval. All
// other events are logged at level Debug. A line at the full level has an
// attribute "suppressed" with the number of suppressed events before it, if
// there were any.
package ratelog
