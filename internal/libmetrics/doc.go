// SPDX-License-Identifier: MPL-2.0

// Package libmetrics puts what libraries count through hashicorp/go-metrics (Raft, serf, memberlist) among a process's Prometheus metrics.
//
// go-metrics has a sink for that, which makes the metric's name anew and allocates for every count. Raft and its log count a dozen
// times for a write: that was a twentieth of what the write cost. Sink finds what has no labels by the parts of its name, without a
// lock or an allocation, and leaves the rest to go-metrics' own. Names, types and help are those of go-metrics'.
//
// It starts no goroutine. Metrics are never dropped: there are as many as the libraries have names.
package libmetrics
