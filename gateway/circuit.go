// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"errors"
	"fmt"
	"time"
)

// halfOpen is how many clients at a time may ask an address that did not work when it was asked last, besides one in each stagger:
// what is under way may be lost, and take long to find out that the address is back. Others are told at once: a crowd would wait
// for it, with two files each, and would all come down on it then. As soon as it works for one it may be asked by all.
const halfOpen = 16

// Reasons why an address is not asked now.
var (
	errFull = errors.New("has as many connections as one upstream may have")
	errOpen = fmt.Errorf("did not work, and %d clients are asking it already", halfOpen)
)

// use is what a known address is used for now.
type use struct {
	dead  bool      // the last attempt failed
	tries int       // attempts under way
	last  time.Time // when the last of them began
	open  int       // connections
}

// begin notes an attempt at addr, unless it must not be asked now: the known is given back by gaveUp, or by won. wait is its
// patience, limit at most. most is how many connections it may have, with those that are being made; 0: any number.
func (e *evidence) begin(addr string, most int, limit time.Duration, now time.Time) (k *known, wait time.Duration, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k = e.getLocked(addr)
	switch {
	case most > 0 && k.tries+k.open >= most:
		return nil, 0, fmt.Errorf("%s %w", addr, errFull)
	case k.dead && k.tries >= halfOpen && now.Sub(k.last) < limit:
		return nil, 0, fmt.Errorf("%s %w", addr, errOpen)
	}
	k.tries, k.last = k.tries+1, now
	return k, k.patience(limit), nil
}

// gaveUp ends an attempt without a connection; dead: the address did not work, rather than nobody wanting it any more.
func (e *evidence) gaveUp(k *known, dead bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k.tries--
	k.dead = k.dead || dead
}

// won ends an attempt that worked after took: there is a connection, until closed.
func (e *evidence) won(k *known, took time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k.tries--
	k.open++
	k.worked(took)
}

// closed ends a connection. k may be nil.
func (e *evidence) closed(k *known) {
	if k == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	k.open--
}
