// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"
)

// lines is a log whose lines a test can wait for.
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
				t.Fatalf("logged %s, want %s", line, want)
			}
			return
		}
		l.mu.Unlock()
		select {
		case <-l.c:
		case <-timeout:
			t.Fatalf("no line %q", want)
		}
	}
}

func (l *lines) none(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) > 0 {
		t.Errorf("logged also %q", l.all)
	}
}
