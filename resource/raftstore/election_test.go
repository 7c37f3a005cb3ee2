// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

// pipes returns a network in memory for tests with fake time. While a goroutine
// waits for a real socket, fake time does not advance.
func pipes() *network {
	return newNetwork(
		func(*network) net.Listener {
			return &pipeListener{connc: make(chan net.Conn), donec: make(chan struct{})}
		},
		func(l net.Listener, timeout time.Duration) (net.Conn, error) {
			near, far := net.Pipe()
			select {
			case l.(*pipeListener).connc <- far:
				return near, nil
			case <-l.(*pipeListener).donec:
				return nil, net.ErrClosed
			case <-time.After(timeout):
				return nil, errCut
			}
		})
}

type pipeListener struct {
	connc chan net.Conn
	donec chan struct{}
	once  sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.connc:
		return c, nil
	case <-l.donec:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.donec) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return nodeAddr("pipe") }

// TestElection_OnlyVoter checks that the only voter leads immediately after
// Bootstrap and after a restart, independent of Heartbeat.
func TestElection_OnlyVoter(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		nw := pipes()
		cfg := nw.config(t, "a", t.TempDir())
		cfg.Heartbeat = time.Hour
		s := mustOpen(t, cfg)
		start := time.Now()
		if err := s.Bootstrap([]string{"a"}); err != nil {
			t.Fatal(err)
		}
		awaitLeader(t, s)
		put(t, s, "x", "1")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		again := nw.config(t, "a", cfg.Dir)
		again.Heartbeat = time.Hour
		s = mustOpen(t, again)
		awaitLeader(t, s)
		if got := textOf(t, s, resource.Strong, "x"); got != "1" {
			t.Errorf("Read(x) after the restart = %q, want 1", got)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("two elections of the only voter took %v, want at most a second", took)
		}
	})
}

// TestElection_Time checks that three servers elect a leader a few round trips
// after Bootstrap, and a new leader a few heartbeats after the loss of a
// leader. A leader that is not disturbed stays.
func TestElection_Time(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		nw := pipes()
		const heartbeat = 500 * time.Millisecond
		start := time.Now()
		all := group(t, nw, func(c *Config) { c.Heartbeat = heartbeat })
		first := awaitLeader(t, values(all)...)
		if took := time.Since(start); took > heartbeat {
			t.Errorf("the first election took %v, want at most %v", took, heartbeat)
		}
		term := first.raft.CurrentTerm()
		time.Sleep(time.Minute)
		if now := first.raft.CurrentTerm(); !first.IsLeader() || now != term {
			t.Errorf("undisturbed leader: IsLeader() = %t in term %d, want true in term %d",
				first.IsLeader(), now, term)
		}

		nw.isolate(first.cfg.Node, true)
		start = time.Now()
		next := awaitLeader(t, values(all, first)...)
		if took := time.Since(start); took > 6*heartbeat {
			t.Errorf("failover took %v, want at most %v", took, 6*heartbeat)
		}
		put(t, next, "x", "1")
		until(t, "the old leader to know no leader", func() bool { _, ok := first.Leader(); return !ok })
		nw.isolate(first.cfg.Node, false)
		awaitText(t, first, "x", "1")
		if !next.IsLeader() {
			t.Errorf("IsLeader() at %s = false after %s returned, want true", next.cfg.Node, first.cfg.Node)
		}
	})
}

// TestHoldback checks that a server that was unreachable for a minute is up to
// date a second after its return. The leader does not hold calls to an
// unreachable server during a leadership transfer, or after that server was
// removed.
func TestHoldback(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		nw := pipes()
		all := group(t, nw, func(c *Config) { c.Heartbeat = 500 * time.Millisecond })
		leader := awaitLeader(t, values(all)...)
		away := values(all, leader)[0]
		put(t, leader, "x", "0")
		for i := 1; i <= 3; i++ {
			nw.isolate(away.cfg.Node, true)
			time.Sleep(time.Minute)
			put(t, leader, "x", sprint(i))
			start := time.Now()
			nw.isolate(away.cfg.Node, false)
			awaitText(t, away, "x", sprint(i))
			if took := time.Since(start); took > time.Second {
				t.Errorf("catching up took %v, want at most a second", took)
			}
		}

		nw.isolate(away.cfg.Node, true)
		time.Sleep(time.Minute)
		for range 3 { // a transfer may also try the unreachable server
			leader = write(t, values(all, away), "x", "y")
			start := time.Now()
			if err := leader.TransferLeadership(t.Context()); err != nil {
				t.Errorf("TransferLeadership() = %v, want nil", err)
			}
			next := awaitLeader(t, values(all, away, leader)...)
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("the transfer from %s to %s took %v, want at most 5 s", leader.cfg.Node, next.cfg.Node, took)
			}
		}
		leader = write(t, values(all, away), "x", "z")
		if err := leader.RemoveServer(t.Context(), away.cfg.Node); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Second)
		leader.trans.holdback.mu.Lock()
		defer leader.trans.holdback.mu.Unlock()
		if n := len(leader.trans.holdback.waiting); n != 0 {
			t.Errorf("calls to %d servers are held, want none", n)
		}
	})
}

// TestTransferLeadership checks that a transfer does not wait for an election
// timeout.
func TestTransferLeadership(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		all := group(t, pipes(), func(c *Config) { c.Heartbeat = time.Minute })
		first := awaitLeader(t, values(all)...)
		put(t, first, "x", "1")
		start := time.Now()
		if err := first.TransferLeadership(t.Context()); err != nil {
			t.Fatal(err)
		}
		next := awaitLeader(t, values(all, first)...)
		if got := textOf(t, next, resource.Strong, "x"); got != "1" {
			t.Errorf("Read(x) at the next leader = %q, want 1", got)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("the transfer took %v, want at most a second", took)
		}
	})
}

// TestStrongRead checks that every successful strong read returns all writes
// that were acknowledged before the read, while leadership is transferred.
func TestStrongRead(t *testing.T) {
	testutil.Cluster(t)
	all := group(t, loopback(t), nil)
	stores := values(all)
	awaitLeader(t, stores...)
	ctx, cancel := context.WithCancel(t.Context())
	var acked atomic.Int64
	var reads, transfers atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() { // the only writer
		for n := int64(1); ctx.Err() == nil; n++ {
			for _, s := range stores {
				if s.IsLeader() {
					if _, err := s.Commit(ctx, resource.PutOp(thing(t, "n", sprint(int(n))),
						resource.AnyVersion)); err == nil {
						acked.Store(n)
					}
				}
			}
		}
	})
	for _, s := range stores {
		wg.Go(func() {
			for ctx.Err() == nil {
				before := acked.Load()
				r, err := s.Read(ctx, resource.Strong, &pb.ID{Type: testType, Name: "n"})
				if err != nil {
					continue
				}
				reads.Add(1)
				n, err := resource.Decode[*pb.Node](r)
				if err != nil {
					t.Error(err)
				}
				if got := atoi(n.GetNode()); got < before {
					t.Errorf("strong Read() at %s = %d, want at least %d", s.cfg.Node, got, before)
				}
			}
		})
	}
	for transfers.Load() < 5 {
		if l := awaitLeader(t, stores...); l.TransferLeadership(ctx) == nil {
			transfers.Add(1)
		}
	}
	cancel()
	wg.Wait()
	if reads.Load() == 0 || acked.Load() == 0 {
		t.Errorf("%d reads and %d writes succeeded, want some of both", reads.Load(), acked.Load())
	}
}

func atoi(s string) (n int64) {
	for _, r := range s {
		n = 10*n + int64(r-'0')
	}
	return n
}
