// SPDX-License-Identifier: MPL-2.0

package federation

import (
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
	DC, Node string
	LAN, WAN *gossip.Pool
	Book     *wanfed.SharedAddressBook
	// WaitReachable waits until any server of a datacenter answers, or ctx ends.
	// State exchanges run one after another, so an unreachable datacenter must
	// not start one.
	WaitReachable func(ctx context.Context, dc string) error
	Logger        *slog.Logger
}

// Joiner keeps this server in the WAN pool. A target is the WAN name of a
// server, or "*.<dc>" for any server of a datacenter.
type Joiner struct {
	cfg       JoinerConfig
	exchanges *semaphore.Weighted // size 1; held during a state exchange

	mu       sync.Mutex
	attempts map[string]*attempt // by target
}

// attempt is the state of one target.
type attempt struct {
	running   bool
	failures  int       // consecutive
	notBefore time.Time // end of the backoff
	holdUntil time.Time // see poolView.hold; not shortened by reset
	err       error     // of the last attempt
	failedAt  time.Time // time of err
	reachable bool      // the target was reachable, although err is not nil
}

// Backoff between the starts of two attempts at one target. An attempt waits for
// JoinerConfig.WaitReachable, so it joins as soon as the target is reachable.
const (
	minJoinPause = 200 * time.Millisecond
	maxJoinPause = 3 * time.Second
)

// A datacenter that is new in the address book has joined some member, so gossip
// announces it soon. The Joiner contacts the new datacenter only if gossip does
// not announce it within the hold time. The hold time grows with the number of
// datacenters, because gossip takes longer in a large federation. It is random,
// so that not all members contact the new datacenter at once. A server without
// an alive remote member holds all but a few targets, because one exchange
// yields all members.
const (
	newcomerHold     = 2 * time.Second
	newcomerHoldEach = 20 * time.Millisecond // at most, per datacenter
	maxUnheld        = 3
)

// NewJoiner checks cfg.
func NewJoiner(cfg JoinerConfig) (*Joiner, error) {
	if cfg.DC == "" || cfg.Node == "" || cfg.LAN == nil || cfg.WAN == nil || cfg.Book == nil ||
		cfg.WaitReachable == nil || cfg.Logger == nil {
		return nil, errors.New("federation: every field of JoinerConfig is required")
	}
	return &Joiner{cfg: cfg, exchanges: semaphore.NewWeighted(1), attempts: map[string]*attempt{}}, nil
}

// Run joins missing targets until ctx ends: every datacenter of the address book
// without an alive member, and every alive server of the LAN pool that is not
// alive in the WAN pool. It repeats the check after every change of the address
// book or a pool.
func (j *Joiner) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	done := make(chan struct{}, 1)
	for {
		lan, wan, book := j.cfg.LAN.Changed(), j.cfg.WAN.Changed(), j.cfg.Book.Changed()
		pause := time.Hour
		pool := j.view()
		for _, target := range j.missing(pool) {
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
	known, alive map[string]bool
	aliveRemote  int // remote datacenters with an alive member
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

// hold returns the time to wait before the first attempt at target, given the
// number of other attempts.
func (v poolView) hold(target string, others, datacenters int) time.Duration {
	dc, remote := strings.CutPrefix(target, "*.")
	if v.known[dc] || !remote || v.aliveRemote == 0 && others < maxUnheld {
		return 0
	}
	return newcomerHold + rand.N(time.Duration(datacenters)*newcomerHoldEach)
}

// isAlive reports whether target is alive in the WAN pool.
func (j *Joiner) isAlive(target string) bool {
	suffix, any := strings.CutPrefix(target, "*")
	return slices.ContainsFunc(j.cfg.WAN.Members(), func(m gossip.Member) bool {
		return (m.Name == target || any && strings.HasSuffix(m.Name, suffix)) && m.Alive()
	})
}

// missing returns the targets to join, and drops the state of all others.
func (j *Joiner) missing(pool poolView) []string {
	var targets []string
	for dc := range j.cfg.Book.Load().Paths {
		if !pool.alive[dc] {
			targets = append(targets, "*."+dc)
		}
	}
	slices.Sort(targets)
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
	return targets
}

// start marks an attempt as running and returns 0. If the attempt must not run
// yet, start returns the time to wait.
func (j *Joiner) start(target string, pool poolView, now time.Time) time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	a := j.attempts[target]
	if a == nil {
		a = &attempt{holdUntil: now.Add(pool.hold(target, len(j.attempts), 1+len(j.cfg.Book.Load().Paths)))}
		j.attempts[target] = a
	}
	if a.running {
		return time.Hour // its end wakes Run
	}
	if wait := max(a.notBefore.Sub(now), a.holdUntil.Sub(now)); wait > 0 {
		return wait
	}
	a.running = true
	return 0
}

// resetBackoff ends the backoff of every target, because paths have changed.
func (j *Joiner) resetBackoff() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, a := range j.attempts {
		a.notBefore = time.Time{}
		a.failures = 0
	}
}

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

// recordResult ends an attempt. It returns the log level of err: only a new kind
// of failure is a warning.
func (j *Joiner) recordResult(target string, start time.Time, reachable bool, err error) slog.Level {
	j.mu.Lock()
	defer j.mu.Unlock()
	a := j.attempts[target]
	a.running = false
	if err == nil {
		a.failures, a.err = 0, nil
		// The pool reports the new member. If the pool rejects the member, the
		// next attempt starts after maxJoinPause.
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

// exchange exchanges the pool's state with addr. It waits for the end of
// earlier exchanges and then calls needed. If needed returns false, it does
// nothing. One exchange yields the members of all datacenters, so most waiting
// attempts of a large federation are not needed any more.
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
		return nil // a local server, which is alive in the LAN pool
	}
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	return j.cfg.WaitReachable(ctx, dc)
}

// LastError returns the last error of joining datacenter dc, and its time. It
// returns nil after a success.
func (j *Joiner) LastError(dc string) (time.Time, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if a := j.attempts["*."+dc]; a != nil {
		return a.failedAt, a.err
	}
	return time.Time{}, nil
}

// ReachabilityFunc returns the state of each datacenter, and a channel that is
// closed when it has changed.
type ReachabilityFunc func() (map[string]dcrpc.Reachability, <-chan struct{})

// RunResync fetches gossip that was missed while a datacenter was unreachable,
// for example new addresses of gateways (TagGateways). Gossip does not repeat
// messages, and the pool itself exchanges state only once a minute. RunResync
// exchanges state with a datacenter when it becomes reachable. While the primary
// is unreachable, it exchanges state once with every other datacenter, because
// one of them may know new addresses. It runs until ctx ends.
func (j *Joiner) RunResync(ctx context.Context, primary string, reachability ReachabilityFunc) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	old := map[string]dcrpc.Reachability{}
	for {
		current, changed := reachability()
		for dc, r := range current {
			if r.Recoveries > old[dc].Recoveries {
				wg.Go(func() { j.resync(ctx, dc) })
			}
		}
		was, is := old[primary], current[primary]
		if is.Unreachable && (!was.Unreachable || is.Recoveries > was.Recoveries) {
			wg.Go(func() { j.resyncAll(ctx, primary, reachability) })
		}
		old = current
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// resyncAll exchanges state with the datacenters other than the primary, until
// the primary is reachable or ctx ends.
func (j *Joiner) resyncAll(ctx context.Context, primary string, reachability ReachabilityFunc) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	started := map[string]bool{}
	for {
		current, changed := reachability()
		if !current[primary].Unreachable {
			return
		}
		book := j.cfg.Book.Changed()
		for dc := range j.cfg.Book.Load().Paths {
			if dc != primary && !started[dc] {
				started[dc] = true
				wg.Go(func() { j.resync(ctx, dc) })
			}
		}
		select {
		case <-changed:
		case <-book:
		case <-ctx.Done():
			return
		}
	}
}

// resync exchanges state once with any server of dc. It retries until the
// exchange succeeds, dc is not in the address book any more, or ctx ends.
func (j *Joiner) resync(ctx context.Context, dc string) {
	retry := backoff.Backoff{Min: minJoinPause, Max: maxJoinPause}
	for ctx.Err() == nil && len(j.cfg.Book.Load().Paths[dc]) > 0 {
		start := time.Now()
		err := j.waitReachable(ctx, "*."+dc)
		if err == nil {
			err = j.exchange(ctx, wanfed.AnyServer(dc), func() bool { return true })
		}
		if err == nil {
			j.cfg.Logger.Debug("gossip state exchanged", "peer", "*."+dc)
			return
		}
		backoff.Sleep(ctx, retry.Next()-time.Since(start), nil)
	}
}
