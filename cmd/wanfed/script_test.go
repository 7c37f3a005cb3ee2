// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"maps"
	"os/exec"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain lets this test binary be the command wanfed, for scripts.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"wanfed": main})
}

// TestScripts runs testdata/script/*.txtar, each in a folder of its own. Beside what testscript has, a script can say
//
//	exits 2 wanfed tls
//
// which runs the command like exec and demands the exit status, and use the commands of processes.
func TestScripts(t *testing.T) {
	cmds := maps.Clone(processes)
	cmds["exits"] = exits
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Cmds:                cmds,
		Setup: func(env *testscript.Env) error {
			env.Setenv("GORACE", "atexit_sleep_ms=0") // else each process that ends well waits a second
			setupProcesses(env)
			return nil
		},
	})
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS COMMAND [ARG...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		ee, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = ee.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}
