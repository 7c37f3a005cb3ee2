// SPDX-License-Identifier: MPL-2.0

package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/subprocess"
)

// LogName is the name of the file with the output of a run, in the directory of
// the task.
const LogName = "run.log"

const (
	// maxOutput bounds the file with the output of a run, in bytes, apart from
	// what a program writes within outputInterval. keptOutput is the part that
	// remains of a longer output.
	maxOutput  = 64 << 20
	keptOutput = 1 << 20
	// outputInterval is the time between two checks of the size.
	outputInterval = time.Second
)

// limitOutput removes the beginning of an output that is longer than limit. The
// programs append to the file, so they continue after its new end.
func limitOutput(dir string, limit int64) error {
	path := filepath.Join(dir, LogName)
	info, err := os.Stat(path)
	if err != nil || info.Size() <= limit {
		return err
	}
	tail, err := subprocess.TailFile(path, keptOutput)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, rest, ok := bytes.Cut(tail, []byte("\n")); ok {
		tail = rest
	}
	if err = f.Truncate(0); err == nil {
		_, err = fmt.Fprintf(f, "[%d MiB of output are removed: the limit is %d MiB]\n%s", info.Size()>>20, limit>>20, tail)
	}
	return errors.Join(err, f.Close())
}

// OpenLog creates the directory of a task, with mode 0700, and an empty file for
// the output of a run in it. The caller closes the file.
func OpenLog(dir string) (*os.File, error) {
	err := os.MkdirAll(dir, 0o700)
	if err != nil {
		return nil, fmt.Errorf("create the directory of the task: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(dir, LogName), os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create the log of the run: %w", err)
	}
	return log, nil
}

// Log returns the last bytes of the output of a run, at most limit, and the time
// of the last output.
func Log(dir string, limit int64) ([]byte, time.Time) {
	path := filepath.Join(dir, LogName)
	info, err := os.Stat(path)
	if err != nil {
		return nil, time.Time{}
	}
	b, _ := subprocess.TailFile(path, limit) // what can be read
	return b, info.ModTime()
}

// Shorten returns the last lines of an output as valid UTF-8, at most
// task.MaxLog bytes.
func Shorten(output []byte) string {
	text := strings.ToValidUTF8(string(output), "?")
	if len(text) <= task.MaxLog {
		return text
	}
	text = text[len(text)-task.MaxLog:]
	if _, rest, ok := strings.Cut(text, "\n"); ok {
		text = rest
	}
	return strings.ToValidUTF8(text, "")
}

// LastLine returns the last line of an output that is not empty, for an error.
func LastLine(output []byte) string {
	output = bytes.TrimRight(output, " \t\r\n")
	line := output[bytes.LastIndexByte(output, '\n')+1:]
	return strings.ToValidUTF8(string(line[:min(len(line), 300)]), "")
}
