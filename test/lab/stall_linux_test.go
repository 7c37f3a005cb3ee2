// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// A process that stands still sees the same as one whose machine does: every processor is noted, and what was before is not.
func TestStalls(t *testing.T) {
	if os.Getenv("STALLS_CHILD") != "" {
		seeStall(t)
		return
	}
	child := exec.Command(os.Args[0], "-test.run", "^TestStalls$")
	child.Env = append(os.Environ(), "STALLS_CHILD=1")
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Wait() }()
	defer child.Process.Kill()
	lines := bufio.NewScanner(out)
	lines.Scan() // it watches
	const stood = 200 * time.Millisecond
	for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		if err := child.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		time.Sleep(stood)
	}
	in.Close()
	var seen, after Stall
	lines.Scan()
	if err := json.Unmarshal(lines.Bytes(), &seen); err != nil {
		t.Fatalf("%q: %v", lines.Bytes(), err)
	}
	if seen.Took < stood-20*time.Millisecond {
		t.Errorf("stood still for %v; seen: %v", stood, seen)
	}
	lines.Scan()
	if err := json.Unmarshal(lines.Bytes(), &after); err != nil || after.Took > 0 {
		t.Errorf("after that: %v, %v", after, err)
	}
}

// seeStall watches until its input ends, and prints the worst stall, and the one after it.
func seeStall(t *testing.T) {
	began := time.Now()
	s := WatchStalls(t)
	time.Sleep(20 * stallStep)
	print := json.NewEncoder(os.Stdout)
	_ = print.Encode("watching")
	_, _ = os.Stdin.Read(make([]byte, 1))
	_ = print.Encode(s.Worst(began))
	_ = print.Encode(s.Worst(time.Now()))
}
