// SPDX-License-Identifier: MPL-2.0

package load

import (
	"slices"
	"time"
)

// Figures are what was measured, by name; the unit is part of the name.
type Figures map[string]float64

// Names of figures. Which kinds of load give which is said at Kind.
const (
	MBPerS      = "MB/s"
	CPUPerGB    = "CPU s/GB"
	ConnPerS    = "conn/s"
	CPUPerConn  = "CPU µs/conn"
	CPUPerMsg   = "CPU µs/msg"
	P50         = "p50 µs"
	P99         = "p99 µs"
	BaseP99     = "p99 µs before"
	P99Ratio    = "p99 / before"
	RSSPerConn  = "RSS KB/conn"
	FDsPerConn  = "files/conn"
	Held        = "held"
	GoneAfter   = "gone after s"
	Left        = "left"
	Lost        = "lost"
	Refused     = "refused"
	HotRestarts = "handovers"
	Sent        = "sent" // connections that were tried
	// UserPart is how much of the proxy's CPU time was its own code, the rest being the kernel's for it; 0 to 1.
	UserPart = "user part"
	// Others is how many cores other processes, and other machines on the same hardware, used meanwhile: noise.
	Others = "others"
)

// samples are durations of one kind.
type samples []time.Duration

func newSamples() samples { return make(samples, 0, 1<<16) }

// quantile returns the q-quantile in µs; 0 if there is no sample.
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
