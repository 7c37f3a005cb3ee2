// SPDX-License-Identifier: MPL-2.0

package wanfed

// SetQueueBytes changes the queue size of new links. Benchmarks that must not
// drop packets call SetQueueBytes.
func SetQueueBytes(t *Tunnel, n int) { t.limits.queueBytes = n }
