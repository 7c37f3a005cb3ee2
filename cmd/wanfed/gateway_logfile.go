// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// logFile is where the access log goes: a file, which reopen follows after others have renamed it, or stdout or stderr, or nowhere.
type logFile struct {
	out, err io.Writer

	mu   sync.Mutex
	w    io.Writer // nil: nowhere
	file *os.File  // w, if it is to be closed
}

// reopen has lines go to path from now on. If that cannot be opened, nothing changes.
func (l *logFile) reopen(path string) error {
	var (
		file *os.File
		w    io.Writer
		err  error
	)
	switch path {
	case "":
	case "stdout":
		w = l.out
	case "stderr":
		w = l.err
	default:
		file, err = os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
		if err != nil {
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

var errNoAccessLog = errors.New("there is no access log any more")

// Write implements io.Writer. A line that comes when there is no file any more is an error.
func (l *logFile) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.w == nil {
		return 0, errNoAccessLog
	}
	return l.w.Write(b)
}

// close closes the file.
func (l *logFile) close() error { return l.reopen("") }
