// SPDX-License-Identifier: MPL-2.0

package gatewayd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// accessLog is the destination of the access log: a file, stdout, stderr or
// none. After log rotation has renamed the file, open creates a file at the old
// path. An accessLog is safe for concurrent use.
type accessLog struct {
	stdout, stderr io.Writer

	mu   sync.Mutex
	w    io.Writer // nil: none
	file *os.File  // nil: w is not a file
}

// open sends all later lines to path. With an empty path, it closes the log. If
// open fails, the destination stays the same.
func (l *accessLog) open(path string) error {
	var file *os.File
	w, ok := map[string]io.Writer{"": nil, "stdout": l.stdout, "stderr": l.stderr}[path]
	if !ok {
		var err error
		if file, err = os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640); err != nil {
			return fmt.Errorf("access_log: %w", err)
		}
		w = file
	}
	l.mu.Lock()
	old := l.file
	l.w, l.file = w, file
	l.mu.Unlock()
	if old != nil {
		return old.Close()
	}
	return nil
}

var errNoAccessLog = errors.New("the access log is off")

// Write implements io.Writer. It fails while the log is off.
func (l *accessLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.w == nil {
		return 0, errNoAccessLog
	}
	return l.w.Write(b)
}
