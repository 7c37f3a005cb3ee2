// SPDX-License-Identifier: MPL-2.0

package lease

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// stoppedEnv makes this test binary the process that TestHeld_StoppedProcess
// stops.
const stoppedEnv = "WANFED_TEST_HELD"

// TestHeld_StoppedProcess stops a process that holds a lease for 5 s. The first
// check of its context after the stop returns an error.
func TestHeld_StoppedProcess(t *testing.T) {
	if os.Getenv(stoppedEnv) != "" {
		workUntilLost(t)
		return
	}
	testutil.Cluster(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestHeld_StoppedProcess$")
	cmd.Env = append(os.Environ(), stoppedEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	next := func() string {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("output ended: %v", lines.Err())
		}
		return lines.Text()
	}
	if got := next(); got != "working" {
		t.Fatalf("first line = %q, want working", got)
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// The tested stop. The process is stopped, so there is no event to wait for.
	time.Sleep(5 * time.Second)
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := next(); got != "ended after 0 late checks" {
		t.Errorf("line after the stop = %q, want ended after 0 late checks", got)
	}
	for lines.Scan() { // the result of the test in the process
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the process ended with %v, want nil", err)
	}
}

// workUntilLost counts the checks that began after the deadline and permitted
// work.
func workUntilLost(t *testing.T) {
	const duration = 4 * time.Second
	sent := time.Now()
	h := newHeld(t.Context(), time.Now, Grant{Token: 1, Duration: duration}, sent)
	fmt.Println("working")
	for late := 0; ; {
		begin := time.Now()
		if h.Err() != nil {
			fmt.Printf("ended after %d late checks\n", late)
			return
		}
		if begin.Sub(sent) >= duration-duration/marginPart {
			late++
		}
	}
}
