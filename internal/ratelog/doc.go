// SPDX-License-Identifier: MPL-2.0

// Package ratelog limits the rate of log lines for each kind of event. Without
// a limit, a peer that fails a thousand times per second would fill the log.
//
// The first event of a kind is logged at its level, then one event per
// Interval. All other events are suppressed: they are logged at level Debug.
// The next line at the original level has the attribute "suppressed" with their
// number.
//
//	log := ratelog.New[string](logger)
//	log.Log("refused", slog.LevelWarn, "connection refused", "peer", peer)
package ratelog
