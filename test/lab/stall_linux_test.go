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

// TestStalls_StoppedProcess stops a child process. To the child that looks like
// a stalled machine.
func TestStalls_StoppedProcess(t *testing.T) {
	if os.Getenv("STALLS_CHILD") != "" {
		seeStall(t)
		return
	}
	child := exec.Command(os.Args[0], "-test.run", "^TestStalls_StoppedProcess$")
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
	lines.Scan() // the child watches
	const stood = 200 * time.Millisecond
	for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		if err := child.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		time.Sleep(stood) // the measured time
	}
	in.Close()
	var seen, after Stall
	var awake time.Duration
	lines.Scan()
	if err := json.Unmarshal(lines.Bytes(), &awake); err != nil || awake <= 0 {
		t.Fatalf("Awake() = %q, %v, want a positive time", lines.Bytes(), err)
	}
	lines.Scan()
	if err := json.Unmarshal(lines.Bytes(), &seen); err != nil {
		t.Fatalf("decode %q: %v", lines.Bytes(), err)
	}
	if seen.Took < stood-20*time.Millisecond {
		t.Errorf("Worst(start) = %v, want about %v", seen, stood)
	}
	lines.Scan()
	if err := json.Unmarshal(lines.Bytes(), &after); err != nil || after.Took > 0 {
		t.Errorf("Worst(now) = %v, %v, want zero", after, err)
	}
}

// seeStall watches until its input ends. It prints the time awake, the worst
// stall, and the worst stall since the end of its input.
func seeStall(t *testing.T) {
	began := time.Now()
	s := WatchStalls(t)
	time.Sleep(20 * stallStep) // the measured time begins after the first step of each thread
	print := json.NewEncoder(os.Stdout)
	_ = print.Encode("watching")
	_, _ = os.Stdin.Read(make([]byte, 1))
	_ = print.Encode(s.Awake(began))
	_ = print.Encode(s.Worst(began))
	_ = print.Encode(s.Worst(time.Now()))
}

// TestStallsAwake_Overlap: overlapping stalls count once. Of a stall that began
// before from, only the rest counts.
func TestStallsAwake_Overlap(t *testing.T) {
	now := time.Now()
	at := func(d time.Duration) time.Time { return now.Add(d - 10*time.Second) }
	s := &Stalls{looks: map[int]time.Time{0: now, 1: now.Add(-time.Second - stallStep)}} // processor 1 is stalled now
	s.all = []Stall{
		{at(5 * time.Second), 2 * time.Second, 1}, // overlaps the next one by half
		{at(4 * time.Second), 2 * time.Second, 0},
		{at(time.Second), 900 * time.Millisecond, 0},
	}
	for from, want := range map[time.Duration]time.Duration{
		0: 5100 * time.Millisecond, 2500 * time.Millisecond: 4 * time.Second, 9500 * time.Millisecond: 0,
	} {
		if got := s.Awake(at(from)); got < want || got > want+time.Second/2 {
			t.Errorf("Awake(%v) = %v, want %v", from, got, want)
		}
	}
}
