// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"
)

// lines collects log lines. A test can wait for the next line with take.
type lines struct {
	mu  sync.Mutex
	all []string
	c   chan struct{} // size 1: a wake-up that is never lost
}

func newLines() *lines { return &lines{c: make(chan struct{}, 1)} }

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	l.all = append(l.all, string(bytes.TrimSpace(b)))
	l.mu.Unlock()
	select {
	case l.c <- struct{}{}:
	default:
	}
	return len(b), nil
}

// take waits for the next line and checks that it contains want.
func (l *lines) take(t *testing.T, want string) {
	t.Helper()
	timeout := time.After(10 * time.Second)
	for {
		l.mu.Lock()
		if len(l.all) > 0 {
			line := l.all[0]
			l.all = l.all[1:]
			l.mu.Unlock()
			if !strings.Contains(line, want) {
				t.Fatalf("log line = %s, want %q in it", line, want)
			}
			return
		}
		l.mu.Unlock()
		select {
		case <-l.c:
		case <-timeout:
			t.Fatalf("no log line within 10s, want %q", want)
		}
	}
}

// none checks that there are no log lines that take has not returned.
func (l *lines) none(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) > 0 {
		t.Errorf("further log lines = %q, want none", l.all)
	}
}
