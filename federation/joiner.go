// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/wanfed/wanfed/dcrpc"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/wanfed"
)

// JoinerConfig configures a Joiner. All fields are required.
type JoinerConfig struct {
	DC, Node string // of this server
	LAN, WAN *gossip.Pool
	Book     *wanfed.SharedAddressBook
	// WaitReachable blocks until any server of a datacenter responds, or ctx
	// ends. The Joiner calls it before a state exchange, because an exchange
	// with an unreachable datacenter would delay all other exchanges.
	WaitReachable func(ctx context.Context, dc string) error
	Logger        *slog.Logger
}

// Joiner joins this server with the members of the WAN pool that it misses. To
// join means to exchange the state of the pool with one member. A state
// exchange transfers the members of all datacenters. State exchanges run one
// after another, and the Joiner skips those that an earlier exchange made
// unnecessary. Therefore a thousand datacenters do not all exchange state with
// each other.
//
// A target of the Joiner is the WAN name of a local server, or "*.<dc>" for any
// server of a datacenter.
type Joiner struct {
	cfg       JoinerConfig
	exchanges *semaphore.Weighted // size 1; held during a state exchange

	mu       sync.Mutex
	attempts map[string]*attempt // by target
	running  int                 // running attempts at other datacenters
	started  time.Time           // start of the last attempt at another datacenter
	known    int                 // number of datacenters in the address book
	alive    int                 // last poolView.aliveRemote
	grown    time.Time           // last increase of alive
}

// attempt is the state of one target.
type attempt struct {
	since     time.Time // the target is missing since then
	running   bool
	failures  int       // consecutive
	notBefore time.Time // end of the backoff
	holdUntil time.Time // end of the hold; see poolView.hold
	err       error     // of the last attempt
	failedAt  time.Time // time of err
	reachable bool      // the last attempt failed after WaitReachable succeeded
}

// Limits of the backoff between the starts of two attempts at one target. An
// attempt joins as soon as the target is reachable.
const (
	minJoinPause = 200 * time.Millisecond
	maxJoinPause = 3 * time.Second
)

// Hold before the first attempt at a new datacenter. A datacenter that is new
// in the address book has joined some member, so gossip announces the
// datacenter soon. An attempt starts only if gossip does not announce it during
// the hold. The hold grows with the number of datacenters, because gossip takes
// longer in a large federation. It has jitter, so that not all members contact
// the new datacenter at the same time.
const (
	newcomerHold     = 2 * time.Second
	newcomerHoldEach = 20 * time.Millisecond // maximum jitter per datacenter
	// maxUnheld is the number of attempts without a hold in a server that has
	// no alive remote member. One state exchange yields all members.
	maxUnheld = 3
)

// Admission of attempts at other datacenters. When many datacenters start
// together, one exchange makes the others unnecessary, but takes long on a busy
// machine. Each further attempt would cost another handshake and keep the
// machine busy.
const (
	// joinPace is the time between two attempts while maxUnheld are running.
	joinPace = time.Second
	// In a federation of more than paceDatacenters, attempts are rarer while any
	// member is alive, because gossip then announces most of the others. The time
	// between two grows with the square of the datacenters, up to maxJoinPace, so that
	// the attempts of all servers together become rarer.
	paceDatacenters = 24
	maxJoinPace     = 30 * time.Second
	// maxPaced bounds the factor of paced.
	maxPaced = 6
	// settleTime is the time without a new alive datacenter after which gossip
	// is not expected to announce more.
	settleTime = 2 * time.Second
	// maxSettle bounds the wait of one target for settleTime, and for the answer of
	// a server that gossip has announced.
	maxSettle = 20 * time.Second
)

// NewJoiner checks cfg.
func NewJoiner(cfg JoinerConfig) (*Joiner, error) {
	if cfg.DC == "" || cfg.Node == "" || cfg.LAN == nil || cfg.WAN == nil || cfg.Book == nil ||
		cfg.WaitReachable == nil || cfg.Logger == nil {
		return nil, errors.New("federation: every field of JoinerConfig is required")
	}
	return &Joiner{cfg: cfg, exchanges: semaphore.NewWeighted(1), attempts: map[string]*attempt{}}, nil
}

// Run joins missing targets until ctx ends. These targets are the datacenters
// of the address book without an alive WAN member, and the alive servers of the
// LAN pool that are not alive in the WAN pool. Run repeats the check after
// every change of the address book or a pool.
func (j *Joiner) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	done := make(chan struct{}, 1)
	for {
		lan, wan, book := j.cfg.LAN.Changed(), j.cfg.WAN.Changed(), j.cfg.Book.Changed()
		pause := time.Hour
		pool := j.view()
		for _, target := range j.missing(pool, time.Now()) {
			if wait := j.start(target, pool, time.Now()); wait > 0 {
				pause = min(pause, wait)
				continue
			}
			wg.Go(func() {
				j.join(ctx, target)
				select {
				case done <- struct{}{}:
				default:
				}
			})
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		case <-done:
		case <-lan:
		case <-wan:
		case <-book:
			j.resetBackoff()
		}
	}
}

// poolView is a snapshot of the WAN pool. The keys of its maps are the names of
// remote datacenters and the WAN names of local servers.
type poolView struct {
	known       map[string]bool // in the pool
	alive       map[string]bool // with an alive member
	aliveRemote int             // number of remote datacenters in alive
}

func (j *Joiner) view() poolView {
	members := j.cfg.WAN.Members()
	v := poolView{known: make(map[string]bool, len(members)), alive: make(map[string]bool, len(members))}
	for _, m := range members {
		_, name, ok := strings.Cut(m.Name, ".")
		if !ok {
			continue
		}
		remote := name != j.cfg.DC
		if !remote {
			name = m.Name
		}
		v.known[name] = true
		if m.Alive() && !v.alive[name] {
			v.alive[name] = true
			if remote {
				v.aliveRemote++
			}
		}
	}
	return v
}

// hold returns the hold before the first attempt at target. others is the
// number of targets with an attempt.
func (v poolView) hold(target string, others, datacenters int) time.Duration {
	dc, remote := strings.CutPrefix(target, "*.")
	if v.known[dc] || !remote || v.aliveRemote == 0 && others < maxUnheld {
		return 0
	}
	return newcomerHold + rand.N(time.Duration(datacenters)*newcomerHoldEach)
}

// isAlive reports whether target is alive in the WAN pool.
func (j *Joiner) isAlive(target string) bool {
	suffix, anyServer := strings.CutPrefix(target, "*")
	return slices.ContainsFunc(j.cfg.WAN.Members(), func(m gossip.Member) bool {
		return (m.Name == target || anyServer && strings.HasSuffix(m.Name, suffix)) && m.Alive()
	})
}

// missing returns the targets to join, and deletes the attempts at other
// targets. Datacenters are in random order, those with fewer failures first, so
// that servers that start together do not all contact the same ones.
func (j *Joiner) missing(pool poolView, now time.Time) []string {
	var targets []string
	book := j.cfg.Book.Load()
	for dc := range book.Paths {
		if !pool.alive[dc] {
			targets = append(targets, "*."+dc)
		}
	}
	rand.Shuffle(len(targets), func(a, b int) { targets[a], targets[b] = targets[b], targets[a] })
	for _, m := range j.cfg.LAN.Members() {
		if name := WANName(m.Name, j.cfg.DC); m.Alive() && m.Name != j.cfg.Node && !pool.alive[name] {
			targets = append(targets, name)
		}
	}
	missing := make(map[string]bool, len(targets))
	for _, target := range targets {
		missing[target] = true
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	maps.DeleteFunc(j.attempts, func(target string, a *attempt) bool { return !a.running && !missing[target] })
	if pool.aliveRemote > j.alive {
		j.grown = now
	}
	j.alive, j.known = pool.aliveRemote, len(book.Paths)
	failures := func(target string) int {
		if a := j.attempts[target]; a != nil {
			return a.failures
		}
		return 0
	}
	slices.SortStableFunc(targets, func(a, b string) int { return cmp.Compare(failures(a), failures(b)) })
	return targets
}

// start marks an attempt at target as running and returns 0. If the attempt
// must not run yet, start returns the time to wait.
func (j *Joiner) start(target string, pool poolView, now time.Time) time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	a := j.attempts[target]
	if a == nil {
		a = &attempt{since: now, holdUntil: now.Add(pool.hold(target, len(j.attempts), 1+len(j.cfg.Book.Load().Paths)))}
		j.attempts[target] = a
	}
	if a.running {
		return time.Hour // the end of the attempt wakes Run
	}
	if wait := max(a.notBefore.Sub(now), a.holdUntil.Sub(now)); wait > 0 {
		return wait
	}
	if dc, remote := strings.CutPrefix(target, "*."); remote {
		if now.Sub(a.since) < maxSettle && j.cfg.WAN.Querying(dc) {
			return settleTime // the answer, which changes the pool, wakes Run
		}
		if wait := j.admitLocked(a, pool.known[dc], now); wait > 0 {
			return wait
		}
		j.running++
		j.started = now
	}
	a.running = true
	return 0
}

// admitLocked returns the time for which an attempt at another datacenter must
// wait, because other attempts run or gossip may make it unnecessary. known
// reports whether the datacenter is in the pool.
func (j *Joiner) admitLocked(a *attempt, known bool, now time.Time) time.Duration {
	if !known && j.alive > 0 && now.Sub(a.since) < maxSettle {
		if wait := settleTime - now.Sub(j.grown); wait > 0 {
			return wait
		}
	}
	switch {
	case j.alive > 0 && j.known > paceDatacenters:
		return min(paced(paced(joinPace, j.known), j.known), maxJoinPace) - now.Sub(j.started)
	case j.running >= maxUnheld:
		return joinPace - now.Sub(j.started)
	}
	return 0
}

// paced returns a time that is d with few datacenters, 2*d from paceDatacenters on, 3*d
// from twice as many on, and so on, up to maxPaced*d. On a busy machine, the attempts of
// all servers would otherwise keep it busy.
func paced(d time.Duration, datacenters int) time.Duration {
	return d * time.Duration(min(1+datacenters/paceDatacenters, maxPaced))
}

// resetBackoff ends the backoff of every target, but not the hold. Run calls it
// after a change of the address book.
func (j *Joiner) resetBackoff() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, a := range j.attempts {
		a.notBefore = time.Time{}
		a.failures = 0
	}
}

// join makes one attempt at target.
func (j *Joiner) join(ctx context.Context, target string) {
	start := time.Now()
	err := j.waitReachable(ctx, target)
	reachable := err == nil
	if reachable {
		err = j.exchange(ctx, j.joinAddr(target), func() bool { return !j.isAlive(target) })
	}
	level := j.recordResult(target, start, reachable, err)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		j.cfg.Logger.Log(ctx, level, "cannot join in the WAN pool", "peer", target, "err", err)
	default:
		j.cfg.Logger.Info("joined in the WAN pool", "peer", target)
	}
}

// recordResult ends an attempt. It returns the log level of err: a warning
// unless the previous attempt failed in the same step.
func (j *Joiner) recordResult(target string, start time.Time, reachable bool, err error) slog.Level {
	j.mu.Lock()
	defer j.mu.Unlock()
	a := j.attempts[target]
	a.running = false
	if strings.HasPrefix(target, "*.") {
		j.running--
	}
	if err == nil {
		a.failures, a.err = 0, nil
		// If the pool rejects the member, the next attempt must not start at
		// once.
		a.notBefore = time.Now().Add(maxJoinPause)
		return slog.LevelInfo
	}
	level := slog.LevelWarn
	if a.failures > 0 && a.reachable == reachable {
		level = slog.LevelDebug
	}
	a.failures++
	a.reachable, a.err, a.failedAt = reachable, err, time.Now()
	a.notBefore = start.Add(backoff.Delay(a.failures, minJoinPause, maxJoinPause))
	return level
}

// exchange exchanges the pool's state with the member at addr. It first waits
// for the end of earlier exchanges. If needed returns false after them,
// exchange does nothing.
func (j *Joiner) exchange(ctx context.Context, addr string, needed func() bool) error {
	if err := j.exchanges.Acquire(ctx, 1); err != nil {
		return err
	}
	defer j.exchanges.Release(1)
	if !needed() {
		return nil
	}
	return j.cfg.WAN.Join(ctx, addr)
}

// joinAddr returns the address of target for gossip.Pool.Join.
func (j *Joiner) joinAddr(target string) string {
	if dc, ok := strings.CutPrefix(target, "*."); ok {
		return wanfed.AnyServer(dc)
	}
	addr := ""
	for _, m := range j.cfg.LAN.Members() {
		if WANName(m.Name, j.cfg.DC) == target {
			addr = m.Addr
		}
	}
	return target + "/" + addr
}

// reachTimeout limits one call of JoinerConfig.WaitReachable.
const reachTimeout = 10 * time.Second

func (j *Joiner) waitReachable(ctx context.Context, target string) error {
	dc, ok := strings.CutPrefix(target, "*.")
	if !ok {
		return nil // the target is a local server, which is alive in the LAN pool
	}
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	return j.cfg.WaitReachable(ctx, dc)
}

// LastError returns the error of the last attempt at datacenter dc, and its
// time. The error is nil after a success.
func (j *Joiner) LastError(dc string) (time.Time, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if a := j.attempts["*."+dc]; a != nil {
		return a.failedAt, a.err
	}
	return time.Time{}, nil
}

// ReachabilityFunc returns the reachability of each datacenter, and a channel
// that is closed when the reachability of one changes.
type ReachabilityFunc func() (map[string]dcrpc.Reachability, <-chan struct{})

// RunResync makes up for messages that were lost during an outage, until ctx
// ends. Such messages, for example a new gateway tag, are not repeated, and the
// pool itself exchanges state only once a minute. When a datacenter becomes
// reachable again, RunResync queries its members. When the primary is
// unreachable, RunResync exchanges state with a few other datacenters, because
// they may have new addresses of the primary.
func (j *Joiner) RunResync(ctx context.Context, primary string, reachability ReachabilityFunc) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	done := make(chan struct{})
	running, resynced := false, -1 // number of recoveries of the primary at the last resyncAll
	last := map[string]dcrpc.Reachability{}
	for {
		current, changed := reachability()
		for dc, r := range current {
			if r.Recoveries > last[dc].Recoveries {
				j.cfg.WAN.Refresh(dc)
			}
		}
		last = current
		if p := current[primary]; p.Unreachable && p.Recoveries != resynced && !running {
			running, resynced = true, p.Recoveries
			wg.Go(func() {
				j.resyncAll(ctx, primary, reachability)
				select {
				case done <- struct{}{}:
				case <-ctx.Done():
				}
			})
		}
		select {
		case <-changed:
		case <-done:
			running = false
		case <-ctx.Done():
			return nil
		}
	}
}

// Limits of resyncAll. Every exchange transfers the state of the whole pool. An
// exchange with every datacenter, by every server that does not reach a busy
// primary, would keep the primary busy.
const (
	// maxResyncs is the number of exchanges of resyncAll.
	maxResyncs = 3
	// resyncDelay is the time for which the primary must be unreachable. A busy
	// primary is unreachable for moments. It grows: see paced.
	resyncDelay = 2 * time.Second
	// resyncPause is the time from the last exchange to the next call of resyncAll.
	// It grows: see paced.
	resyncPause = 10 * time.Second
)

// resyncAll exchanges state with maxResyncs datacenters other than the primary,
// in random order, and then waits. It ends early when the primary is reachable or
// ctx ends.
func (j *Joiner) resyncAll(ctx context.Context, primary string, reachability ReachabilityFunc) {
	backoff.Sleep(ctx, paced(resyncDelay, len(j.cfg.Book.Load().Paths)), nil)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	results := make(chan error, maxResyncs) // one slot for every running exchange
	tried := map[string]bool{primary: true}
	var retry <-chan time.Time // set when every exchange has failed
	for running, succeeded := 0, 0; succeeded < maxResyncs; {
		current, changed := reachability()
		if !current[primary].Unreachable {
			return
		}
		book := j.cfg.Book.Changed()
		for dc := range j.cfg.Book.Load().Paths {
			if running+succeeded < maxResyncs && !tried[dc] {
				tried[dc] = true
				running++
				wg.Go(func() { results <- j.resyncOnce(ctx, dc) })
			}
		}
		if running == 0 && retry == nil {
			retry = time.After(backoff.Jitter(maxJoinPause))
		}
		select {
		case err := <-results:
			if running--; err == nil {
				succeeded++
			}
		case <-retry:
			tried, retry = map[string]bool{primary: true}, nil
		case <-changed:
		case <-book:
		case <-ctx.Done():
			return
		}
	}
	backoff.Sleep(ctx, paced(resyncPause, len(j.cfg.Book.Load().Paths)), nil)
}

// resyncOnce exchanges state with any server of dc.
func (j *Joiner) resyncOnce(ctx context.Context, dc string) error {
	if err := j.waitReachable(ctx, "*."+dc); err != nil {
		return err
	}
	err := j.exchange(ctx, wanfed.AnyServer(dc), func() bool { return true })
	if err == nil {
		j.cfg.Logger.Debug("gossip state exchanged", "peer", "*."+dc)
	}
	return err
}
