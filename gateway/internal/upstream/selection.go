// SPDX-License-Identifier: MPL-2.0

package upstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// maxNewAddrs is the maximum number of addresses that are added to a selection
// after its start.
const maxNewAddrs = 16

var errTooLate = errors.New("another address answered sooner")

// Selection selects one of several addresses. It decides the order and times of
// attempts, and records their outcomes. A Selection does no I/O, starts no
// goroutine and is not safe for concurrent use. Init must be called first, and
// Won or Cancel last.
type Selection struct {
	d        *Dialer
	newAddrs func() []string
	addrs    []string // in the order in which they are tried
	tried    []trial  // of the first addresses of addrs
	pending  int      // number of trials that have not ended
	added    int      // addresses that AddNew added
	failures int      // addresses that failed or answered too late
}

// trial is an attempt to connect to one address.
type trial struct {
	began   time.Time
	err     error    // nil: not failed
	address *Address // nil: the trial has ended
}

// Init prepares s for addrs. start is the parameter of DialAny, newAddrs is
// Request.NewAddrs. Init returns an address that the caller passes to
// Dialer.Probe, or "". It reuses the memory of an earlier selection with s.
func (s *Selection) Init(d *Dialer, addrs []string, start int, newAddrs func() []string, now time.Time) (probe string) {
	sorted, probe := d.order(addrs, start, now)
	*s = Selection{d: d, newAddrs: newAddrs, addrs: sorted, tried: s.tried[:0]}
	return probe
}

// Next returns the number of the next address to try. ok is false if no address
// is left. Then the selection may be over. The caller calls Next again after
// the time wait, or when an address fails.
func (s *Selection) Next(now time.Time) (n int, wait time.Duration, ok bool) {
	for n = len(s.tried); n < len(s.addrs); n++ {
		a, wait, err := s.d.begin(s.addrs[n], now)
		s.tried = append(s.tried, trial{began: now, address: a, err: err})
		if err == nil {
			s.pending++
			return n, wait, true
		}
	}
	return 0, s.d.AttemptDelay, false
}

// Addr returns address number n.
func (s *Selection) Addr(n int) string { return s.addrs[n] }

// Over reports whether no attempt is pending and no address is left to try.
func (s *Selection) Over() bool { return s.pending == 0 && len(s.tried) == len(s.addrs) }

// Failures returns the number of addresses that failed or answered too late.
func (s *Selection) Failures() int { return s.failures }

// AddNew adds addresses that became known since the start.
func (s *Selection) AddNew() {
	if s.newAddrs == nil {
		return
	}
	for _, addr := range s.newAddrs() {
		if s.added < maxNewAddrs && !slices.Contains(s.addrs, addr) {
			s.addrs = append(slices.Clip(s.addrs), addr)
			s.added++
		}
	}
}

// Failed records that address n failed.
func (s *Selection) Failed(n int, err error, now time.Time) {
	s.pending--
	s.fail(n, err, now)
	if len(s.tried) == len(s.addrs) {
		s.AddNew()
	}
}

// Won records that address n answered, and that the addresses tried before it
// were too slow. The caller passes the result to Dialer.Closed when the
// connection ends.
func (s *Selection) Won(n int, now time.Time) *Address {
	a := s.tried[n].address
	s.tried[n].address = nil
	s.d.opened(a, now.Sub(s.tried[n].began))
	for other := range n {
		if s.tried[other].err == nil {
			s.fail(other, errTooLate, now)
		}
	}
	s.Cancel()
	return a
}

// Cancel ends attempts that are pending. It may be called again.
func (s *Selection) Cancel() {
	for n := range s.tried {
		s.cancel(n, false)
	}
}

func (s *Selection) cancel(n int, broken bool) {
	if a := s.tried[n].address; a != nil {
		s.tried[n].address = nil
		s.d.canceled(a, broken)
	}
}

func (s *Selection) fail(n int, err error, now time.Time) {
	s.tried[n].err = err
	s.cancel(n, err != errTooLate)
	s.d.failed(s.addrs[n], min(now.Sub(s.tried[n].began), s.d.AttemptDelay), now)
	s.failures++
}

// Abort ends the selection because of the error why. If why is a timeout, the
// pending addresses have failed. If the selection was canceled, Abort records
// nothing about them.
func (s *Selection) Abort(why error, now time.Time) {
	for n := range s.tried {
		if s.tried[n].err != nil {
			continue
		}
		err := fmt.Errorf("no answer from %s: %w", s.addrs[n], why)
		if errors.Is(why, context.DeadlineExceeded) {
			s.fail(n, err, now)
		} else {
			s.tried[n].err = err
			s.failures++
		}
	}
}

// Err returns the faults of all addresses. It wraps ErrFull if ErrFull is the
// fault of each address.
func (s *Selection) Err() error {
	errs, full := make([]error, len(s.tried)), 0
	for n, t := range s.tried {
		if errs[n] = t.err; errors.Is(t.err, ErrFull) {
			full++
		}
	}
	err := errors.Join(errs...)
	if full == 0 || full == len(errs) {
		return err
	}
	return errors.New(err.Error()) // does not wrap ErrFull: some addresses have other faults
}
