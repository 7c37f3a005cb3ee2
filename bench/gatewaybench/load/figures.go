// SPDX-License-Identifier: MPL-2.0

package load

import (
	"slices"
	"time"
)

// Figures maps names of figures to values. The unit is part of the name.
type Figures map[string]float64

// Names of figures. The constants of Kind list the figures of each kind.
const (
	MBPerS      = "MB/s"
	CPUPerGB    = "CPU s/GB"
	ConnPerS    = "conn/s"
	CPUPerConn  = "CPU µs/conn"
	CPUPerMsg   = "CPU µs/msg"
	P50         = "p50 µs"
	P99         = "p99 µs"
	BaseP99     = "p99 µs before" // P99 before the change that is measured
	P99Ratio    = "p99 / before"  // P99 divided by BaseP99
	RSSPerConn  = "RSS KB/conn"
	FDsPerConn  = "files/conn"
	Held        = "held"         // connections that the proxy keeps open
	GoneAfter   = "gone after s" // time until the proxy has closed the last connection
	Left        = "left"         // connections still open after the deadline of the proxy
	Lost        = "lost"         // connections that failed
	Refused     = "refused"      // attempts that failed with connection refused
	HotRestarts = "hot restarts"
	Sent        = "sent" // attempted connections
	// UserPart is the part of the proxy's CPU time spent in user mode, from 0
	// to 1.
	UserPart = "user part"
	// Others is how many cores other processes used during the measurement,
	// including CPU time stolen by other virtual machines.
	Others = "others"
)

// samples are durations of the same kind, such as latencies.
type samples []time.Duration

func newSamples() samples { return make(samples, 0, 1<<16) }

// quantile sorts s and returns its q-quantile in µs; 0 if s is empty.
func (s samples) quantile(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	slices.Sort(s)
	return float64(s[min(len(s)-1, int(q*float64(len(s))))].Nanoseconds()) / 1e3
}

func (f Figures) addQuantiles(s samples) {
	f[P50], f[P99] = s.quantile(.5), s.quantile(.99)
}
