// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"maps"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/wanfed/wanfed/internal/subprocess"
)

// TestMain makes this test binary the command wanfed, for scripts and
// processes.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"wanfed": main})
}

// TestScripts runs testdata/script/*.txtar, each in its own directory. A script
// can use the commands of testscript and of processCommands. The command
//
//	exits 2 wanfed tls
//
// runs wanfed tls like exec and requires exit status 2.
func TestScripts(t *testing.T) {
	cmds := maps.Clone(processCommands)
	cmds["exits"] = exits
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Cmds:                cmds,
		Setup: func(env *testscript.Env) error {
			env.Setenv("GORACE", "atexit_sleep_ms=0") // the default is a sleep of one second
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
		ts.Fatalf("exit status = %d, want %d", got, want)
	}
}

// scriptTimeout limits one wait of a script.
const scriptTimeout = 30 * time.Second

// processCommands are script commands for background processes:
//
//	start NAME server|gateway ARG...
//		Start a process and wait until it is ready. Set $NAME to the address of
//		a server, $NAME_http and $NAME_https to its URLs, $NAME_lan and
//		$NAME_wan to the addresses of a gateway. NAME.log has the output.
//	halt NAME
//		Stop the process with SIGTERM. Its exit status must be 0.
//	die NAME
//		Kill the process.
//	until PATTERN COMMAND ARG...
//		Repeat the command until it succeeds and its stdout matches PATTERN.
//		"! until" repeats the command until it fails and its stderr matches.
//
// The end of the script kills the processes that still run.
var processCommands = map[string]func(*testscript.TestScript, bool, []string){
	"start": scriptStart, "halt": scriptHalt, "die": scriptDie, "until": scriptUntil,
}

type processKey struct{}

// scriptProcesses has the processes of one script by name. Only the goroutine
// of the script uses it.
type scriptProcesses map[string]*subprocess.Process

func processesOf(ts *testscript.TestScript) scriptProcesses {
	return ts.Value(processKey{}).(scriptProcesses)
}

// get returns the process that the only argument names.
func (p scriptProcesses) get(ts *testscript.TestScript, neg bool, args []string) *subprocess.Process {
	if neg || len(args) != 1 || p[args[0]] == nil {
		ts.Fatalf("usage: halt|die NAME, the name of a started process")
	}
	return p[args[0]]
}

func setupProcesses(env *testscript.Env) {
	all := scriptProcesses{}
	env.Values[processKey{}] = all
	env.Defer(func() {
		for _, p := range all {
			p.Kill()
		}
	})
}

func scriptStart(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: start NAME server|gateway ARG...")
	}
	name := args[0]
	ctx, cancel := context.WithTimeout(context.Background(), scriptTimeout)
	defer cancel()
	p, err := subprocess.Start(ctx, subprocess.Config{
		Name:    name,
		Command: append([]string{"env", "-C", ts.MkAbs("."), "wanfed"}, append(args[1:], "--"+subprocess.StopOnEOF)...),
		Env:     []string{"GORACE=atexit_sleep_ms=0"},
		LogPath: ts.MkAbs(name + ".log"),
		Ready:   func(line string) bool { return strings.HasPrefix(line, "wanfed ") },
	})
	ts.Check(err)
	processesOf(ts)[name] = p
	if s, ok := subprocess.ParseServerReady(p.Line()); ok {
		ts.Setenv(name, s.Addr)
		ts.Setenv(name+"_http", s.HTTP)
		ts.Setenv(name+"_https", "https://"+strings.TrimPrefix(s.HTTP, "http://"))
	} else if g, ok := subprocess.ParseGatewayReady(p.Line()); ok {
		ts.Setenv(name+"_lan", g.LAN)
		ts.Setenv(name+"_wan", g.WAN)
	}
}

func scriptHalt(ts *testscript.TestScript, neg bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), scriptTimeout)
	defer cancel()
	ts.Check(processesOf(ts).get(ts, neg, args).Stop(ctx))
}

func scriptDie(ts *testscript.TestScript, neg bool, args []string) {
	processesOf(ts).get(ts, neg, args).Kill()
}

func scriptUntil(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: [!] until PATTERN COMMAND ARG...")
	}
	want, err := regexp.Compile(`(?m)` + args[0])
	ts.Check(err)
	output := "stdout"
	if neg {
		output = "stderr"
	}
	limit := time.After(scriptTimeout)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ts.Exec(args[1], args[2:]...)
		if neg == (err != nil) && want.MatchString(ts.ReadFile(output)) {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			ts.Fatalf("%s matched %s on no attempt within %v", output, want, scriptTimeout)
		}
	}
}
