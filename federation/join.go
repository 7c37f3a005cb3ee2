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

	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/wanfed"
)

// JoinerConfig configures a Joiner.
type JoinerConfig struct {
	DC, Node string
	LAN, WAN *gossip.Pool
	Book     *wanfed.SharedAddressBook
	// Reach returns nil when any server of a datacenter answers; it waits for that until ctx ends. Joins are one after
	// another: only a datacenter that answers may take its turn, so that a dead one does not hold up the others.
	WaitReachable func(ctx context.Context, dc string) error
	Logger        *slog.Logger
}

// Joiner keeps this server in the WAN pool.
type Joiner struct {
	cfg  JoinerConfig
	turn chan struct{} // size 1: who holds the token joins

	mu       sync.Mutex
	attempts map[string]*attempt // by join address
}

// attempt is what the Joiner remembers of one address it wants to join.
type attempt struct {
	running bool
	failed  int       // in a row
	next    time.Time // not before
	hold    time.Time // not before, whatever happens
	err     error     // the last
	at      time.Time // of err
	reached bool      // the datacenter answered, and still there was err
}

// Back-off between the beginnings of attempts to join one address, before jitter. An attempt waits for Reach, and so joins at
// once when the datacenter can be reached.
const (
	minJoinBackoff = 200 * time.Millisecond
	maxJoinBackoff = 3 * time.Second
)

// A datacenter that is new in the book has joined somebody, so gossip tells of it in a moment; only if it does not, it is joined.
// The time gossip takes grows with the federation, and the others must not all come to the newcomer at once. A server that
// is not in the pool itself holds off too, but for a few: with one of them it gets all.
const (
	newcomerHold     = 2 * time.Second
	newcomerHoldEach = 20 * time.Millisecond // of each datacenter, at most
	eager            = 3
)

// NewJoiner checks cfg.
func NewJoiner(cfg JoinerConfig) (*Joiner, error) {
	if cfg.DC == "" || cfg.Node == "" || cfg.LAN == nil || cfg.WAN == nil || cfg.Book == nil || cfg.WaitReachable == nil || cfg.Logger == nil {
		return nil, errors.New("federation: every field of JoinerConfig is required")
	}
	return &Joiner{cfg: cfg, turn: make(chan struct{}, 1), attempts: map[string]*attempt{}}, nil
}

// Run joins what is missing until ctx ends: every datacenter of the book without an alive member, and every alive server of
// the LAN pool that is no alive member. A change of the book or of a pool makes it look, and try, at once.
func (j *Joiner) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	done := make(chan struct{}, 1)
	for {
		lan, wan, book := j.cfg.LAN.Changed(), j.cfg.WAN.Changed(), j.cfg.Book.Changed()
		next := time.Hour
		pool := j.look()
		for _, name := range j.missing(pool) {
			wait := j.begin(name, pool, time.Now())
			if wait > 0 {
				next = min(next, wait)
				continue
			}
			wg.Go(func() {
				j.join(ctx, name)
				select {
				case done <- struct{}{}:
				default:
				}
			})
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-done:
		case <-lan:
		case <-wan:
		case <-book:
			j.forgive()
		}
		timer.Stop()
	}
}

// missing returns member names to join: "*.<dc>" for any server of a datacenter.
func (j *Joiner) missing(pool seen) []string {
	var out []string
	for dc := range j.cfg.Book.Load().Paths {
		if !pool.alive[dc] {
			out = append(out, "*."+dc)
		}
	}
	slices.Sort(out)
	for _, m := range j.cfg.LAN.Members() {
		if name := WANName(m.Name, j.cfg.DC); m.Alive() && m.Name != j.cfg.Node && !pool.alive[name] {
			out = append(out, name)
		}
	}
	j.prune(out)
	return out
}

// prune forgets what is no longer missing.
func (j *Joiner) prune(missing []string) {
	still := make(map[string]bool, len(missing))
	for _, name := range missing {
		still[name] = true
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	maps.DeleteFunc(j.attempts, func(name string, a *attempt) bool { return !a.running && !still[name] })
}

// begin marks an attempt as running and returns 0, or returns how long to wait first.
func (j *Joiner) begin(name string, pool seen, now time.Time) time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	a := j.attempts[name]
	if a == nil {
		a = &attempt{hold: now.Add(pool.hold(name, len(j.attempts), 1+len(j.cfg.Book.Load().Paths)))}
		j.attempts[name] = a
	}
	if a.running {
		return time.Hour // its end wakes the loop
	}
	if wait := max(a.next.Sub(now), a.hold.Sub(now)); wait > 0 {
		return wait
	}
	a.running = true
	return 0
}

// forgive lets every attempt start at once: the ways have changed.
func (j *Joiner) forgive() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, a := range j.attempts {
		a.next = time.Time{}
		a.failed = 0
	}
}

func (j *Joiner) join(ctx context.Context, name string) {
	began := time.Now()
	err := j.reach(ctx, name)
	reached := err == nil
	if reached {
		err = j.joinInTurn(ctx, j.whom(name), func() bool { return !j.isAlive(name) })
	}

	j.mu.Lock()
	a := j.attempts[name]
	a.running = false
	level := slog.LevelWarn
	if err == nil {
		a.failed, a.err = 0, nil
		// The pool tells when the member is there; should it refuse it, do not try again at once.
		a.next = time.Now().Add(maxJoinBackoff)
	} else {
		if a.failed > 0 && a.reached == reached {
			level = slog.LevelDebug // no news
		}
		a.reached = reached
		a.err, a.at = err, time.Now()
		a.next = began.Add(joinBackoff(a.failed))
		a.failed++
	}
	j.mu.Unlock()

	if ctx.Err() != nil {
		return
	}
	if err != nil {
		j.cfg.Logger.Log(ctx, level, "joining the WAN pool", "peer", name, "err", err)
		return
	}
	j.cfg.Logger.Info("joined in the WAN pool", "peer", name)
}

// joinInTurn exchanges the pool's state with whom, after those that came before, if needed still says so then: one exchange
// brings the members of all datacenters, so that in a large federation most of those that wait have nothing left to do.
func (j *Joiner) joinInTurn(ctx context.Context, whom string, needed func() bool) error {
	select {
	case j.turn <- struct{}{}:
		defer func() { <-j.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if !needed() {
		return nil
	}
	return j.cfg.WAN.Join(ctx, whom)
}

// whom is what the pool joins to reach what is missing: "*.<dc>", or a server of this datacenter.
func (j *Joiner) whom(name string) string {
	if dc, ok := strings.CutPrefix(name, "*."); ok {
		return wanfed.AnyServer(dc)
	}
	addr := ""
	for _, m := range j.cfg.LAN.Members() {
		if WANName(m.Name, j.cfg.DC) == name {
			addr = m.Addr
		}
	}
	return name + "/" + addr
}

// reachTimeout bounds one question whether a datacenter answers.
const reachTimeout = 10 * time.Second

func (j *Joiner) reach(ctx context.Context, name string) error {
	dc, ok := strings.CutPrefix(name, "*.")
	if !ok {
		return nil // a server of this datacenter, alive in the LAN pool
	}
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	return j.cfg.WaitReachable(ctx, dc)
}

// joinBackoff doubles from minJoinBackoff to maxJoinBackoff and adds up to a quarter of jitter.
func joinBackoff(failed int) time.Duration {
	d := min(minJoinBackoff<<min(failed, 10), maxJoinBackoff)
	return d + rand.N(d/4)
}

// LastError returns the last error of joining datacenter dc, and when; nil when there is none since it last worked.
func (j *Joiner) LastError(dc string) (time.Time, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if a := j.attempts["*."+dc]; a != nil {
		return a.at, a.err
	}
	return time.Time{}, nil
}
