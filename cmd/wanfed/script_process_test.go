// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/wanfed/wanfed/internal/subprocess"
)

// scriptLimit is how long a script waits for one thing, on a busy machine.
const scriptLimit = 30 * time.Second

// processes are commands of scripts that go on while the script does:
//
//	start NAME server|gateway ARG...   run it; when it is ready, set $NAME to a server's address, $NAME_http and $NAME_https to its
//	                                   URLs, $NAME_lan and $NAME_wan to a gateway's addresses. Its output goes to NAME.log
//	halt NAME                          stop it, by SIGTERM; it must end well
//	die NAME                           kill it
//	until PATTERN COMMAND ARG...       run the command again and again until it ends well with PATTERN in its stdout; with ! before
//	                                   it, until it ends badly with PATTERN in its stderr
//
// What still runs is killed at the end of the script.
var processes = map[string]func(*testscript.TestScript, bool, []string){
	"start": scriptStart, "halt": scriptHalt, "die": scriptDie, "until": scriptUntil,
}

type processKey struct{}

// running has the processes of one script. Only the script's goroutine uses it.
type running map[string]*subprocess.Process

func (r running) get(ts *testscript.TestScript, neg bool, args []string) *subprocess.Process {
	if neg || len(args) != 1 || r[args[0]] == nil {
		ts.Fatalf("usage: halt|die NAME, of what was started")
	}
	return r[args[0]]
}

func setupProcesses(env *testscript.Env) {
	all := running{}
	env.Values[processKey{}] = all
	env.Defer(func() {
		for _, p := range all {
			p.Kill()
		}
	})
}

func runningOf(ts *testscript.TestScript) running { return ts.Value(processKey{}).(running) }

func scriptStart(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: start NAME server|gateway ARG...")
	}
	name := args[0]
	ctx, cancel := context.WithTimeout(context.Background(), scriptLimit)
	defer cancel()
	exe, err := os.Executable()
	ts.Check(err)
	// The process is this test binary under the name that makes it wanfed, in the script's folder.
	link := filepath.Join(ts.Getenv("WORK"), ".bin", "wanfed")
	if _, err := os.Lstat(link); err != nil {
		ts.Check(os.MkdirAll(filepath.Dir(link), 0o700))
		ts.Check(os.Symlink(exe, link))
	}
	p, err := subprocess.Start(ctx, subprocess.Config{
		Name:    name,
		Command: append([]string{"env", "-C", ts.MkAbs("."), link}, append(args[1:], "--"+subprocess.StopOnEOF)...),
		Env:     []string{"GORACE=atexit_sleep_ms=0"},
		LogPath: ts.MkAbs(name + ".log"),
		Ready:   func(line string) bool { return strings.HasPrefix(line, "wanfed ") },
	})
	ts.Check(err)
	runningOf(ts)[name] = p
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
	ctx, cancel := context.WithTimeout(context.Background(), scriptLimit)
	defer cancel()
	ts.Check(runningOf(ts).get(ts, neg, args).Stop(ctx))
}

func scriptDie(ts *testscript.TestScript, neg bool, args []string) {
	runningOf(ts).get(ts, neg, args).Kill()
}

func scriptUntil(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: [!] until PATTERN COMMAND ARG...")
	}
	want, err := regexp.Compile(`(?m)` + args[0])
	ts.Check(err)
	says := "stdout"
	if neg {
		says = "stderr"
	}
	limit := time.After(scriptLimit)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ts.Exec(args[1], args[2:]...)
		if neg == (err != nil) && want.MatchString(ts.ReadFile(says)) {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			ts.Fatalf("not within %v", scriptLimit)
		}
	}
}
