// SPDX-License-Identifier: MPL-2.0

package process

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLimitOutput(t *testing.T) {
	dir := t.TempDir()
	log, err := OpenLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	line := []byte(strings.Repeat("x", 99) + "\n")
	write := func(b []byte) {
		t.Helper()
		if _, err := log.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	write(bytes.Repeat(line, 3*keptOutput/100))
	if err := limitOutput(dir, 4*keptOutput); err != nil {
		t.Errorf("limitOutput() = %v, want nil", err)
	}
	if info, err := os.Stat(filepath.Join(dir, LogName)); err != nil || info.Size() < 2*keptOutput {
		t.Errorf("size below the limit = %v, %v, want all", info.Size(), err)
	}
	if err := limitOutput(dir, 2*keptOutput); err != nil {
		t.Errorf("limitOutput() = %v, want nil", err)
	}
	write([]byte("end\n"))
	b, err := os.ReadFile(filepath.Join(dir, LogName))
	if err != nil || len(b) > keptOutput+200 || !bytes.HasPrefix(b, []byte("[2 MiB of output are removed: the limit is 2 MiB]\nxxx")) ||
		!bytes.HasSuffix(b, []byte("xxx\nend\n")) {
		t.Errorf("output = %d bytes, %.60q, %v, want a notice and the last MiB", len(b), b, err)
	}
	if err := limitOutput(t.TempDir(), 1); err == nil {
		t.Error("limitOutput() without an output = nil, want an error")
	}
}
