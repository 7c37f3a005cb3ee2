// SPDX-License-Identifier: MPL-2.0

package wan

import (
	"errors"
	"fmt"
	"time"
)

// Link describes how one direction between two ports treats packets. The zero
// value delivers them unchanged and at once.
type Link struct {
	// Delay is one-way.
	Delay time.Duration
	// Jitter is the upper bound of a random time that is added to the Delay of
	// each packet, uniformly distributed. Packets of one direction stay in
	// order.
	Jitter time.Duration
	// Loss is the probability, 0 to 1, that a packet is lost in transit.
	Loss float64
	// Rate limits IP packets, in bit/s. 0: no limit.
	Rate int64
	// Queue is how many bytes may wait to be sent at Rate. Packets that arrive
	// when it is full are dropped. Default (0): 100 ms at Rate, at least 64
	// KiB.
	Queue int
	// Cut drops all packets, including those in flight. Nothing is delivered
	// while it is set.
	Cut bool
}

// minQueue is the smallest default of Link.Queue, in bytes.
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

// Stats counts the packets of one direction since its ports were attached.
// Packets that are in Sent and in no other counter are in flight.
type Stats struct {
	Sent, SentBytes           uint64 // read from the device of the sender
	Delivered, DeliveredBytes uint64
	Lost                      uint64 // dropped by Link.Loss
	Full                      uint64 // dropped because Link.Queue was full
	Cut                       uint64 // dropped by Link.Cut
	Refused                   uint64 // rejected by the device of the receiver, which is down or deleted
	// Late is the largest time between due and delivery of a packet. It is the
	// error that the emulator added.
	Late time.Duration
}
