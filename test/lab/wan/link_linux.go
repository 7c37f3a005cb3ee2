// SPDX-License-Identifier: MPL-2.0

package wan

import (
	"errors"
	"fmt"
	"time"
)

// Link says what one direction between two ports does to packets. The zero value does nothing to them.
type Link struct {
	// Delay is one-way.
	Delay time.Duration
	// Jitter is the most that is added to a packet's Delay, evenly distributed. Packets of one direction stay in order.
	Jitter time.Duration
	// Loss is the probability, 0 to 1, that a packet is lost on the way.
	Loss float64
	// Rate is in bit/s of IP packets. 0: no limit.
	Rate int64
	// Queue is how many bytes may wait for their turn at Rate; what comes when it is full is dropped. Default (0): 100 ms of
	// Rate, at least 64 KiB.
	Queue int
	// Cut drops everything, also what is under way: nothing is delivered while it is set.
	Cut bool
}

// minQueue is the least default of Link.Queue.
const minQueue = 64 << 10

func (l Link) queue() int {
	if l.Queue > 0 {
		return l.Queue
	}
	return max(minQueue, int(l.Rate/8/10))
}

func (l Link) validate() error {
	var errs []error
	if l.Delay < 0 || l.Jitter < 0 {
		errs = append(errs, fmt.Errorf("delay %v or jitter %v is negative", l.Delay, l.Jitter))
	}
	if !(l.Loss >= 0 && l.Loss <= 1) { // also for NaN
		errs = append(errs, fmt.Errorf("loss %v is not a probability from 0 to 1", l.Loss))
	}
	if l.Rate < 0 || l.Queue < 0 {
		errs = append(errs, fmt.Errorf("rate %d bit/s or queue of %d bytes is negative", l.Rate, l.Queue))
	}
	return errors.Join(errs...)
}

// Stats counts the packets of one direction since its ports were attached. Those not yet counted elsewhere are under way.
type Stats struct {
	Sent, SentBytes           uint64 // that the sender gave to its device
	Delivered, DeliveredBytes uint64
	Lost                      uint64 // by Link.Loss
	Full                      uint64 // found Link.Queue full
	Cut                       uint64 // by Link.Cut
	Refused                   uint64 // by the receiver's device: it is down, or gone
	// Late is how much later than due the worst packet was delivered: what the emulator, in a busy process, added.
	Late time.Duration
}
