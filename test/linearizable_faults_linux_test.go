// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/test/lab"
)

// injectFaults breaks the servers of a datacenter and repairs them, with one
// random fault after the other, until ctx ends. It returns the number of faults
// by name.
func injectFaults(ctx context.Context, t *testing.T, dc *lab.Datacenter, rng *rand.Rand) map[string]int {
	t.Helper()
	ways := map[string]func(leader *lab.Node, others []*lab.Node){
		"leader killed":   func(leader *lab.Node, _ []*lab.Node) { killed(ctx, rng, leader) },
		"follower killed": func(_ *lab.Node, others []*lab.Node) { killed(ctx, rng, others[rng.IntN(len(others))]) },
		"all killed":      func(*lab.Node, []*lab.Node) { killed(ctx, rng, dc.Servers...) },
		"leader cut off": func(leader *lab.Node, others []*lab.Node) {
			leader.CutFrom(others...)
			waitSome(ctx, rng, time.Second, 3*time.Second)
			leader.Heal()
		},
		"leader suspended": func(leader *lab.Node, _ []*lab.Node) {
			leader.Suspend()
			waitSome(ctx, rng, time.Second, 3*time.Second)
			leader.Resume()
		},
		"one follower cut off": func(leader *lab.Node, others []*lab.Node) {
			leader.CutFrom(others[0])
			waitSome(ctx, rng, time.Second, 2*time.Second)
			leader.Heal()
		},
	}
	if long() {
		ways["clock set"] = func(*lab.Node, []*lab.Node) { clockJump(ctx, t, rng) }
	}
	done := map[string]int{}
	names := slices.Sorted(maps.Keys(ways))
	for {
		waitSome(ctx, rng, 200*time.Millisecond, time.Second)
		leader, others := raftLeader(ctx, dc)
		if ctx.Err() != nil {
			return done
		}
		if leader == nil {
			continue
		}
		name := names[rng.IntN(len(names))]
		ways[name](leader, others)
		done[name]++
	}
}

// waitSome waits for a random time between two bounds, or until ctx ends.
func waitSome(ctx context.Context, rng *rand.Rand, least, most time.Duration) {
	timer := time.NewTimer(least + time.Duration(rng.Int64N(int64(most-least))))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// killed kills servers with SIGKILL, waits for a random time, and starts them
// again.
func killed(ctx context.Context, rng *rand.Rand, servers ...*lab.Node) {
	for _, s := range servers {
		s.Kill()
	}
	waitSome(ctx, rng, 100*time.Millisecond, 1500*time.Millisecond)
	for _, s := range servers {
		s.StartServer()
	}
}

// raftLeader returns the leader that the first responding server reports, and
// the other servers. The leader is nil if no server reports one.
func raftLeader(ctx context.Context, dc *lab.Datacenter) (leader *lab.Node, others []*lab.Node) {
	for _, s := range dc.Servers {
		actx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		var addr string
		err := s.Get(actx, "/v1/status/leader", &addr)
		cancel()
		i := slices.IndexFunc(dc.Servers, func(n *lab.Node) bool { return n.ServerAddr() == addr })
		if err != nil || i < 0 {
			continue
		}
		return dc.Servers[i], slices.Delete(slices.Clone(dc.Servers), i, i+1)
	}
	return nil, nil
}

// clockJump shifts the clock of the machine by up to a minute, forward or
// backward, for 1 to 2 s. It affects all processes, so only the long form of
// the test uses it. If the clock cannot be set, it logs that and does nothing.
func clockJump(ctx context.Context, t *testing.T, rng *rand.Rand) {
	t.Helper()
	by := time.Duration(rng.Int64N(int64(2*time.Minute))) - time.Minute
	if err := shiftClock(by); err != nil {
		t.Logf("clock not changed: %v", err)
		return
	}
	waitSome(ctx, rng, time.Second, 2*time.Second)
	if err := shiftClock(-by); err != nil {
		t.Errorf("cannot restore the clock, which is off by %v: %v", by, err)
	}
}

// shiftClock adds by to the clock of the machine.
func shiftClock(by time.Duration) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil {
		return err
	}
	to := unix.NsecToTimespec(now.Nano() + by.Nanoseconds())
	return unix.ClockSettime(unix.CLOCK_REALTIME, &to)
}
