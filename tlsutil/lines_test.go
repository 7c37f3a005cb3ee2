// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"
)

// lines collects log lines.
type lines struct {
	mu  sync.Mutex
	all []string      // lines that take has not returned
	c   chan struct{} // size 1; signaled after each line
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

// take removes the next line, and checks that the line contains want. If
// necessary, take waits for the line.
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
				t.Fatalf("log line = %s, want a line with %q", line, want)
			}
			return
		}
		l.mu.Unlock()
		select {
		case <-l.c:
		case <-timeout:
			t.Fatalf("log line within 10s = none, want a line with %q", want)
		}
	}
}

// none checks that take has returned all lines.
func (l *lines) none(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) > 0 {
		t.Errorf("further log lines = %q, want none", l.all)
	}
}
