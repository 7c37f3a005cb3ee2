// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/tlsutil"
)

// PathStatus contains the measurements of dials, probes and echoes over one
// path.
type PathStatus struct {
	DC    string
	Addr  string // Path.Addr
	Via   string // Path.Via; "server" for a server of the local datacenter
	Local bool   // Path.Local

	Health      PathHealth
	LastSuccess time.Time     // zero: never
	LastError   string        // error of the last failure; stays set when the path works again
	LastErrorAt time.Time     // zero: never failed
	Failure     FailureClass  // of LastError
	Probed      bool          // the last failure was a failed probe
	RTT         time.Duration // of the last TLS handshake: one or two network round trips
	SmoothedRTT time.Duration // round trip to a server, from echoes and half of each handshake; 0: not measured
	Remote      string        // ip:port of the last success: Addr, or a resolved address of Addr; "" if none
	Attempts    uint64        // dials
	Failures    uint64        // failed dials; excludes dials cancelled because another path was faster

	Probes        uint64
	ProbeFailures uint64
	// ProbeInterval is the longest time between two results of the path, if a
	// Prober with the default configuration runs.
	ProbeInterval time.Duration
}

// PathHealth is the summary of a PathStatus.
type PathHealth string

const (
	PathUntested PathHealth = "untested" // neither succeeded nor failed yet
	PathOK       PathHealth = "ok"       // the last dial, probe or echo succeeded
	PathFailing  PathHealth = "failing"  // the last dial or probe failed
	PathSlow     PathHealth = "slow"     // another path, dialed later, was faster
)

type pathKey struct{ dc, addr string }

// pathTable holds the state of each path that was used. It removes a path that
// left the address book.
type pathTable struct {
	book    *SharedAddressBook
	localDC string
	mode    Mode

	// recovered is notified when a path becomes PathOK. The key is the
	// datacenter of the path.
	recovered     broadcast.Keyed[string]
	healthChanged broadcast.Broadcast // notified when the health of any path changes

	mu      sync.Mutex
	known   map[pathKey]*pathState
	current *AddressBook  // the address book with which pruneLocked was called last
	penalty time.Duration // see pathHistory.isPenalized
}

type pathState struct {
	PathStatus
	pathHistory
	lastProbe time.Time // end of the last probe
	suspected time.Time // an echo over the path was late; zero: never
	// rejected means that the peer sent an alert after the last handshake. In
	// TLS 1.3 a server rejects the certificate of a client in this way. The next
	// handshake is then not a success; a response of the server is.
	rejected bool
	jitter   float64 // 0 to 1: random part of the time until the next probe
}

func newPathTable(book *SharedAddressBook, localDC string, mode Mode) *pathTable {
	return &pathTable{
		book: book, localDC: localDC, mode: mode, known: map[pathKey]*pathState{}, penalty: failurePenalty,
	}
}

// stateLocked returns the state of a path to dc. It returns nil if the address
// book does not list the path.
func (t *pathTable) stateLocked(dc string, path Path) *pathState {
	t.pruneLocked()
	k := pathKey{dc, path.Addr}
	s := t.known[k]
	if s == nil && t.isListed(t.current, k) {
		s = &pathState{PathStatus: PathStatus{DC: dc, Addr: path.Addr}}
		t.known[k] = s
	}
	if s != nil {
		s.Via, s.Local = path.Via, path.Local
	}
	return s
}

// pruneLocked removes the paths that left the address book.
func (t *pathTable) pruneLocked() {
	book := t.book.Load()
	if book == t.current {
		return
	}
	maps.DeleteFunc(t.known, func(k pathKey, _ *pathState) bool { return !t.isListed(book, k) })
	t.current = book
}

func (t *pathTable) isListed(b *AddressBook, k pathKey) bool {
	if k.dc != t.localDC {
		return slices.ContainsFunc(b.Paths[k.dc], func(p Path) bool { return p.Addr == k.addr })
	}
	return slices.Contains(slices.Collect(maps.Values(b.Servers)), k.addr)
}

// update calls change with the state of a path to dc, if the address book lists
// the path. If the health of the path changes, update notifies all subscribers.
func (t *pathTable) update(dc string, path Path, change func(*pathState)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.stateLocked(dc, path)
	if s == nil {
		return
	}
	before := s.health()
	change(s)
	after := s.health()
	if after == before {
		return
	}
	t.healthChanged.Notify()
	if after == PathOK {
		t.recovered.Notify(dc)
	}
}

// recordSuccess records a success of a path to dc and calls change, which may
// be nil. The argument addr is the dialed address, or "" for an echo on an open
// connection. The argument rtt is the measured round trip.
func (t *pathTable) recordSuccess(dc string, path Path, addr string, rtt time.Duration, change func(*pathState)) {
	now := time.Now()
	t.update(dc, path, func(s *pathState) {
		s.pathHistory.recordSuccess(now, rtt)
		s.LastSuccess, s.rejected = now, false
		if addr != "" {
			s.Remote = addr
		}
		if change != nil {
			change(s)
		}
	})
}

// recordFailure records a failure of a path to dc and calls change.
func (t *pathTable) recordFailure(dc string, path Path, err error, change func(*pathState)) {
	now := time.Now()
	t.update(dc, path, func(s *pathState) {
		s.pathHistory.recordFailure(now)
		s.LastErrorAt, s.LastError, s.Failure, s.Probed = now, oneLine(err), failureClass(err), false
		_, isAlert := tlsutil.AlertOf(err)
		_, inDial := errors.AsType[*stageError](err)
		s.rejected = isAlert && !inDial
		change(s)
	})
}

// suspect makes the Prober probe a path to dc at once, because an echo over the
// path is late.
func (t *pathTable) suspect(dc string, path Path, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.stateLocked(dc, path); s != nil {
		s.suspected = now
		t.healthChanged.Notify()
	}
}

// setPenalty sets the penalty of failed paths. See pathHistory.isPenalized.
func (t *pathTable) setPenalty(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.penalty = d
}

// scorer returns a scorer of the paths to dc.
func (t *pathTable) scorer(dc string) scorer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return scorer{mode: t.mode, penalty: t.penalty, now: time.Now(), history: func(p Path) pathHistory {
		return t.get(dc, p.Addr).pathHistory
	}}
}

// get returns a copy of the state of a path to dc, or the zero pathState if the
// path was never used.
func (t *pathTable) get(dc, addr string) pathState {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.known[pathKey{dc, addr}]; s != nil {
		return *s
	}
	return pathState{}
}

// unreachable implements Dialer.Unreachable.
func (t *pathTable) unreachable() (dcs []string, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pruneLocked()
	works := map[string]bool{} // by datacenter, for datacenters with a used path
	for k, s := range t.known {
		if h := s.health(); k.dc != t.localDC && h != PathUntested {
			works[k.dc] = works[k.dc] || h == PathOK
		}
	}
	for dc, ok := range works {
		if !ok {
			dcs = append(dcs, dc)
		}
	}
	return dcs, t.healthChanged.Wait()
}

func (s *pathState) health() PathHealth {
	switch {
	case s.hasFailed() && s.lastFailure.After(s.LastErrorAt):
		return PathSlow
	case s.hasFailed():
		return PathFailing
	case s.lastSuccess.IsZero():
		return PathUntested
	}
	return PathOK
}

// countLocked returns the number of paths to other datacenters.
func (t *pathTable) countLocked() (n int) {
	for dc, paths := range t.current.Paths {
		if dc != t.localDC {
			n += len(paths)
		}
	}
	return n
}

// status returns the status of a path. The argument interval is the probe
// interval of working paths.
func (s *pathState) status(interval time.Duration) PathStatus {
	st := s.PathStatus
	st.Health, st.SmoothedRTT = s.health(), s.rtt
	if s.hasFailed() && s.lastSuccess.IsZero() {
		interval = max(interval, maxProbeWait)
	}
	st.ProbeInterval = time.Duration((1 + probeJitter) * float64(interval))
	return st
}

// status implements Dialer.Paths.
func (t *pathTable) status() []PathStatus {
	t.mu.Lock()
	t.pruneLocked()
	out := make([]PathStatus, 0, len(t.known))
	interval := probeInterval(ProbeInterval, t.countLocked())
	for _, s := range t.known {
		out = append(out, s.status(interval))
	}
	t.mu.Unlock()
	slices.SortFunc(out, func(a, b PathStatus) int {
		return cmp.Or(cmp.Compare(a.DC, b.DC), cmp.Compare(a.Addr, b.Addr))
	})
	return out
}

// pathsTo implements Dialer.PathsTo.
func (t *pathTable) pathsTo(dc string) []PathStatus {
	t.mu.Lock()
	t.pruneLocked()
	interval := probeInterval(ProbeInterval, t.countLocked())
	t.mu.Unlock()
	paths := t.scorer(dc).order(t.book.Load().Paths[dc])
	out := make([]PathStatus, len(paths))
	for i, p := range paths {
		s := t.get(dc, p.Addr)
		s.DC, s.Addr, s.Via, s.Local = dc, p.Addr, p.Via, p.Local
		out[i] = s.status(interval)
	}
	return out
}
