// SPDX-License-Identifier: MPL-2.0

package wanfed

// SetQueueBytes changes the queue size of new links. It is for benchmarks that
// must not drop packets.
func SetQueueBytes(t *Tunnel, n int) { t.limits.queueBytes = n }
