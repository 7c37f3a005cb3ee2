// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// trialServers answer trials in fake time.
type trialServers struct {
	mu            sync.Mutex
	header, plain map[string]bool // the server answers with a header, without one
	tries         map[string]int  // trials with a header
}

func (s *trialServers) try(_ context.Context, addr string, header []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	answers := s.plain
	if header != nil {
		s.tries[addr]++
		answers = s.header
	}
	if !answers[addr] {
		return errors.New("no answer")
	}
	return nil
}

func (s *trialServers) set(addr string, header, plain bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.header[addr], s.plain[addr] = header, plain
}

func TestHeaderTrials(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		const one, two = "10.0.0.1:8300", "10.0.0.2:8300"
		s := &trialServers{header: map[string]bool{}, plain: map[string]bool{}, tries: map[string]int{}}
		trials := &headerTrials{try: s.try, log: slog.New(slog.DiscardHandler)}
		servers, changed := []Server{{Address: one}, {Address: two}}, make(chan struct{})
		var mu sync.Mutex
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			trials.run(ctx, func() (*Snapshot, <-chan struct{}) {
				mu.Lock()
				defer mu.Unlock()
				return &Snapshot{Servers: servers}, changed
			})
		}()
		after := func(d time.Duration, want ...string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got, _ := trials.addrs(); !slices.Equal(got, want) {
				t.Fatalf("servers that accept a header = %v, want %v", got, want)
			}
		}
		s.set(one, true, true)
		s.set(two, false, true) // an earlier version
		after(firstTrial - time.Millisecond)
		after(time.Millisecond, one)
		s.set(two, true, true) // upgraded
		after(trialInterval-time.Millisecond, one)
		after(time.Millisecond, one, two)
		s.set(one, false, false) // down: connections to it fail with or without a header
		s.set(two, false, true)  // downgraded
		after(trialInterval, one)
		mu.Lock()
		servers = servers[1:]
		close(changed)
		changed = make(chan struct{})
		mu.Unlock()
		after(0)
		if n := s.tries[one]; n != 3 {
			t.Errorf("trials of a server in 31 s = %d, want 3", n)
		}
		cancel()
		<-done
	})
}
