// SPDX-License-Identifier: MPL-2.0

package raftstore

import "github.com/hashicorp/go-metrics"

// walMetrics hands the log's metrics to the sink that the Raft library's own go to.
type walMetrics struct{}

func (walMetrics) IncrementCounter(name string, delta uint64) {
	metrics.IncrCounter([]string{"raft", "wal", name}, float32(delta))
}

func (walMetrics) SetGauge(name string, value uint64) {
	metrics.SetGauge([]string{"raft", "wal", name}, float32(value))
}
