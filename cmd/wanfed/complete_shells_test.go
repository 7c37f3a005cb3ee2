// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCompletion_Shells completes "wanfed context us" in each shell that this
// machine has.
func TestCompletion_Shells(t *testing.T) {
	const bashCompletion = "/usr/share/bash-completion/bash_completion" // required by the script for bash
	for _, tt := range []struct {
		shell string
		args  []string
		needs string // a file; "": none
		text  string // of the program that completes; it prints "done:" and the result
	}{
		{"bash", []string{"--norc"}, bashCompletion, `. ` + bashCompletion + `
. ./script
COMP_WORDS=(wanfed context us) COMP_CWORD=2 COMP_LINE="wanfed context us" COMP_POINT=17 COMP_TYPE=9
__start_wanfed 2>/dev/null # compopt fails outside a completion
echo "done:${COMPREPLY[*]}"`},
		{"fish", []string{"--no-config"}, "", `source script
echo done:(complete -C "wanfed context us" | string split -f1 \t)`},
		// Completion in zsh needs a terminal.
		{"zsh", []string{"-f"}, "", `zmodload zsh/zpty
zpty z "TERM=dumb zsh -f -i"
zpty -w z "PS1=; autoload -U compinit; compinit -D -u; . ./script; echo rea''dy"
zpty -r z line '*ready*'
zpty -n -w z $'wanfed context us\t'
zpty -r z line '*use *'
zpty -d z
print -r -- "done:${line//[^a-z]/}"`},
	} {
		t.Run(tt.shell, func(t *testing.T) {
			path, err := exec.LookPath(tt.shell)
			if err != nil {
				t.Skipf("no %s on this machine", tt.shell)
			}
			if _, err := os.Stat(tt.needs); tt.needs != "" && err != nil {
				t.Skipf("no %s on this machine", tt.needs)
			}
			wanfedPath(t) // the shells call wanfed
			script, _, err := call(t, "completion", tt.shell)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			writeFile(t, filepath.Join(dir, "script"), script)
			writeFile(t, filepath.Join(dir, "program"), tt.text)
			ctx, cancel := context.WithTimeout(t.Context(), processTimeout)
			defer cancel()
			cmd := exec.CommandContext(ctx, path, append(tt.args, "program")...)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir)
			out, err := cmd.CombinedOutput()
			_, result, ok := strings.Cut(string(out), "done:")
			if got := strings.TrimSpace(result); err != nil || !ok || !strings.HasSuffix(got, "use") {
				t.Errorf("%s = %q, %v, want use", tt.shell, out, err)
			}
		})
	}
}
