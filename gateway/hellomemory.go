// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"errors"
	"sync/atomic"
)

const (
	// freeHello is how much of a hello is nobody's business, in bytes: those of usual clients are smaller.
	freeHello = 4 << 10
	// maxHelloMemory is how much all larger ones may hold together, in bytes: 1,000 of the largest.
	maxHelloMemory = 64 << 20
)

// helloMemory bounds what hellos hold until they are forwarded, so that clients that stall with large ones, or send them to where
// nobody answers, cannot have a gateway's memory: each connection may have MaxHelloSize, and there may be very many.
type helloMemory struct {
	max  atomic.Int64 // in bytes
	held atomic.Int64
}

// share is what one hello holds of it.
type share struct{ held int64 }

var errHelloMemory = &refusal{reason: ReasonLimit, err: errors.New("its ClientHello is large, and those that are not forwarded yet hold as much memory as they may together")}

// grow makes a share that of a hello of n bytes. It returns false if there is no room for that.
func (m *helloMemory) grow(s *share, n int) bool {
	if n <= freeHello {
		return true
	}
	more := int64(n) - s.held
	if m.held.Add(more) > m.max.Load() {
		m.held.Add(-more)
		return false
	}
	s.held += more
	return true
}

// free gives a share back. It may be called again.
func (m *helloMemory) free(s *share) {
	if s.held != 0 {
		m.held.Add(-s.held)
		s.held = 0
	}
}
