// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/internal/output"
)

// wrapHelp prints the help of a command. It wraps the paragraphs whose lines do
// not fit the terminal.
func wrapHelp(cmd *cobra.Command, _ []string) {
	out := output.Printer{W: os.Stdout}
	var paragraphs []string
	for text := range strings.SplitSeq(cmp.Or(cmd.Long, cmd.Short), "\n\n") {
		indented := strings.HasPrefix(text, " ") || strings.Contains(text, "\n ")
		if !indented && len(text) > 0 && longest(text) > out.TextWidth() {
			text = out.Wrap(strings.ReplaceAll(text, "\n", " "), 0)
		}
		paragraphs = append(paragraphs, text)
	}
	help := strings.Join(paragraphs, "\n\n") + "\n"
	if cmd.Runnable() || cmd.HasSubCommands() {
		help += "\n" + cmd.UsageString()
	}
	if _, err := fmt.Fprint(cmd.OutOrStdout(), help); err != nil { // cobra has no error of a help
		fmt.Fprintln(os.Stderr, "wanfed:", err)
		os.Exit(exitFailure)
	}
}

// longest returns the length of the longest line of a text.
func longest(text string) (n int) {
	for line := range strings.Lines(text) {
		n = max(n, len(strings.TrimSuffix(line, "\n")))
	}
	return n
}

// flagLine matches the line of a flag in a help text, up to its description.
var flagLine = regexp.MustCompile(`^ {2,}(?:-\w, )?--[\w-]+(?: \S+)? {2,}`)

// wrapUsage prints the usage of a command. It wraps the descriptions of flags at
// the width of the terminal.
func wrapUsage(cmd *cobra.Command) error {
	w := cmd.OutOrStderr()
	var b strings.Builder
	cmd.SetOut(&b)
	err := new(cobra.Command).UsageFunc()(cmd) // the default of cobra
	cmd.SetOut(w)
	out := output.Printer{W: os.Stdout}
	for line := range strings.Lines(b.String()) {
		line = strings.TrimSuffix(line, "\n")
		if start := flagLine.FindString(line); start != "" {
			line = out.Wrap(line, len(start))
		}
		if _, printErr := fmt.Fprintln(w, line); printErr != nil {
			return printErr
		}
	}
	return err
}
